//! The command line as users and scripts meet it: exit codes, streams, files. Numbers in these
//! tests are an interface (docs/CLI.md); change them only by adding.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
/// A model of random weights with a context of 256 tokens.
pub const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");
/// The same without a chat template.
pub const PLAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/opt");
const PROMPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/prompts.jsonl");

/// The binary, in a folder of its own, without variables that change what it shows.
pub fn vllm_batch(folder: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(flags);
    for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    // Those of tests are no flags, and each would be a note.
    for (name, _) in std::env::vars() {
        if name.starts_with("VLLM_BATCH_") {
            command.env_remove(name);
        }
    }
    command
}

/// `run` of a model over rows, which lie in `in.jsonl`.
pub fn over(folder: &Path, rows: &str, model: &str, flags: &[&str]) -> Output {
    fs::write(folder.join("in.jsonl"), rows).unwrap();
    let mut command = vllm_batch(folder, &["run", "--model", model, "-i", "in.jsonl"]);
    finish(command.args(flags), "")
}

/// `run` of the demo model: greedy, short.
pub fn demo(folder: &Path, flags: &[&str]) -> Command {
    let mut command = vllm_batch(folder, &["run", "--model", DEMO, "--temperature", "0"]);
    command.args(["--max-tokens", "8"]).args(flags);
    command
}

pub fn finish(command: &mut Command, input: &str) -> Output {
    let pipe = || Stdio::piped();
    let mut child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
    // A program that refuses at once does not read.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
pub fn assert_exit(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
}

pub fn rows(jsonl: &str) -> Vec<Value> {
    jsonl.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

pub fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

mod without_a_model {
    use super::*;

    #[test]
    fn help_goes_to_standard_output_and_names_the_exit_codes() {
        let folder = temporary();
        for flags in [&["--help"][..], &["run", "--help"], &["run", "-h"], &["run", "--help", "-v"]]
        {
            let output = finish(&mut vllm_batch(folder.path(), flags), "");
            assert_exit(&output, 0);
            let help = text(&output.stdout);
            assert!(help.contains("Exit codes:") && help.contains("Examples:"), "{flags:?}");
            assert!(output.stderr.is_empty());
        }
    }

    #[test]
    fn a_missing_input_is_refused_and_leaves_nothing() {
        let folder = temporary();
        let flags = ["run", "--model", "m", "-i", "none.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 2);
        assert!(
            text(&output.stderr).starts_with("error[input]: cannot read none.jsonl: No such file")
        );
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn a_missing_model_is_refused_and_leaves_nothing() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "in.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 2);
        assert!(
            text(&output.stderr).contains("error[model_not_found]: no such folder: ./none\nhelp:")
        );
        assert_eq!(names(folder.path()), ["in.jsonl"]);
    }

    #[test]
    fn a_folder_that_is_no_model_exits_7_and_leaves_nothing() {
        let folder = temporary();
        fs::create_dir(folder.path().join("model")).unwrap();
        fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
        let flags = ["run", "--model", "./model", "-i", "in.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 7);
        assert!(text(&output.stderr).contains("config.json"));
        assert_eq!(names(folder.path()), ["in.jsonl", "model"]);
    }

    #[test]
    fn an_input_without_rows_exits_4() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "\n\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "in.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 4);
        assert!(text(&output.stderr).contains("error[no_rows]: in.jsonl has no rows"));
        assert_eq!(names(folder.path()), ["in.jsonl"]);
    }

    #[test]
    fn an_empty_standard_input_exits_4() {
        let folder = temporary();
        let output = finish(&mut vllm_batch(folder.path(), &["run", "--model", "./none"]), "");
        assert_exit(&output, 4);
        assert!(text(&output.stderr).contains("error[no_rows]: <stdin> has no rows"));
    }

    #[test]
    fn an_input_of_the_wrong_shape_is_refused_before_the_model() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "{\"colour\":\"red\"}\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "in.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 2);
        assert!(text(&output.stderr).contains("error[input]: in.jsonl: "));
        assert_eq!(names(folder.path()), ["in.jsonl"]);
    }

    #[test]
    fn an_output_that_exists_is_kept() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
        fs::write(folder.path().join("out.jsonl"), "precious\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "in.jsonl", "-o", "out.jsonl"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 6);
        assert!(
            text(&output.stderr)
                .contains("help: choose another --out, or replace it with --overwrite")
        );
        assert_eq!(fs::read_to_string(folder.path().join("out.jsonl")).unwrap(), "precious\n");
        assert_eq!(names(folder.path()), ["in.jsonl", "out.jsonl"]);
    }

    #[test]
    fn rows_of_an_unfinished_run_are_kept() {
        let folder = temporary();
        let part = folder.path().join("out.jsonl.part");
        fs::write(&part, "precious\n").unwrap();
        let run = |flags: &[&str]| over(folder.path(), "{\"prompt\":\"a\"}\n", "./none", flags);
        let output = run(&["-o", "out.jsonl"]);
        assert_exit(&output, 6);
        let message = "error[output_unfinished]: out.jsonl.part holds rows of an unfinished \
                       run without journal\n\
                       help: move it away, or give --overwrite\n";
        assert_eq!(text(&output.stderr).split_once("error").unwrap().1, &message["error".len()..]);
        // A run that is allowed to replace them and then refused has nothing to put in their place.
        assert_exit(&run(&["-o", "out.jsonl", "--overwrite"]), 2);
        assert_eq!(fs::read_to_string(&part).unwrap(), "precious\n");
    }

    #[test]
    fn an_output_that_another_run_writes_is_refused() {
        let folder = temporary();
        let journal = File::create(folder.path().join("out.jsonl.journal")).unwrap();
        journal.lock().unwrap();
        for flags in [&["-o", "out.jsonl"][..], &["-o", "out.jsonl", "--overwrite"]] {
            let output = over(folder.path(), "{\"prompt\":\"a\"}\n", "./none", flags);
            assert_exit(&output, 6);
            let message = "error[output_locked]: another run has out.jsonl.journal\n";
            assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
        }
        assert_eq!(names(folder.path()), ["in.jsonl", "out.jsonl.journal"]);
    }

    #[test]
    fn a_hub_that_cannot_be_reached_is_said_at_once() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
        let mut command = vllm_batch(folder.path(), &["run", "--model", "nope", "-i", "in.jsonl"]);
        // Nobody listens there.
        command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("NO_PROXY", "127.0.0.1");
        command.env("HF_HUB_CACHE", folder.path().join("hub"));
        for name in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
            command.env_remove(name);
        }
        let output = finish(&mut command, "");
        assert_exit(&output, 2);
        let message = "error[hub_unreachable]: cannot reach 127.0.0.1:9 for nope: connection refused\n\
                       help: there is no folder ./nope either; check the name, the network, \
                       HF_ENDPOINT and the proxy variables\n";
        assert!(text(&output.stderr).ends_with(message), "{}", text(&output.stderr));
    }

    #[test]
    fn text_without_columns_may_be_a_csv_without_its_name() {
        let folder = temporary();
        fs::write(folder.path().join("rows"), "the text\na\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "rows", "--prompt-column", "text"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 2);
        let help =
            "\nhelp: give --format csv if the input is CSV; else leave out --prompt-column\n";
        assert!(text(&output.stderr).ends_with(help), "{}", text(&output.stderr));
    }

    #[test]
    fn csv_output_needs_columns() {
        let folder = temporary();
        fs::write(folder.path().join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
        let flags = ["run", "--model", "./none", "-i", "in.jsonl", "-o", "out.csv"];
        let output = finish(&mut vllm_batch(folder.path(), &flags), "");
        assert_exit(&output, 2);
        assert!(text(&output.stderr).contains("CSV output needs CSV input"));
        assert_eq!(names(folder.path()), ["in.jsonl"]);
    }

    #[test]
    fn colours_follow_flag_and_environment() {
        let folder = temporary();
        let flags = ["run", "--model", "m", "-i", "none.jsonl"];
        let colored = |command: &mut Command| finish(command, "").stderr.contains(&0x1b);
        let command = || vllm_batch(folder.path(), &flags);
        assert!(!colored(&mut command()), "no terminal");
        assert!(colored(command().env("FORCE_COLOR", "1")));
        assert!(colored(command().env("CLICOLOR_FORCE", "1")));
        assert!(!colored(command().env("FORCE_COLOR", "1").env("NO_COLOR", "1")));
        assert!(colored(command().args(["--color", "always"]).env("NO_COLOR", "1")));
        assert!(!colored(command().args(["--color", "never"]).env("FORCE_COLOR", "1")));
    }
}

#[test]
fn flags_that_the_model_cannot_honour_name_themselves() {
    let folder = temporary();
    let utilization = "(--gpu-memory-utilization) is too little for a KV cache of 256 tokens";
    for (flags, wanted) in [
        (["--max-model-len", "1"], "--max-model-len: expected 2 to 256, the model's context"),
        (["--max-model-len", "999"], "got 999"),
        (["--gpu-memory-utilization", "0.00000001"], utilization),
        (["--kv-offloading-size", "1"], "--kv-offloading-size: it is not supported on the CPU"),
        (["--kv-cache-memory-bytes", "4Gib"], "expected bytes such as 4GiB or 512M"),
    ] {
        let output = over(folder.path(), "{\"prompt\":\"a\"}\n", TINY, &flags);
        assert_exit(&output, 2);
        assert!(text(&output.stderr).contains(wanted), "{flags:?}: {}", text(&output.stderr));
    }
}

#[test]
fn rows_cut_by_the_context_get_no_advice_about_max_tokens() {
    let folder = temporary();
    let flags = ["--max-model-len", "16", "--ignore-eos", "-o", "out.jsonl"];
    let output = over(folder.path(), "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n", TINY, &flags);
    assert_exit(&output, 0);
    let summary = text(&output.stderr);
    assert!(summary.contains("\n2 rows reached the context of 16 tokens\n"), "{summary}");
    assert!(!summary.contains("--max-tokens"), "{summary}");
}

#[test]
fn a_run_that_stops_before_its_first_row_leaves_nothing() {
    let folder = temporary();
    let input = "{\"prompt\":\"a\",\"max_tokens\":200}\n{\"prompt\" 1}\n";
    let flags = ["--ignore-eos", "--on-bad-row", "fail", "-o", "out.jsonl"];
    let output = over(folder.path(), input, TINY, &flags);
    assert_exit(&output, 2);
    let errors = text(&output.stderr);
    assert!(errors.contains("error[bad_json]: in.jsonl:2:11: expected ':'"), "{errors}");
    assert_eq!(names(folder.path()), ["in.jsonl"]);
}

#[test]
fn a_device_without_room_may_have_taken_some_rows() {
    let folder = temporary();
    let output = over(folder.path(), "{\"prompt\":\"a\"}\n", TINY, &["-o", "/dev/full"]);
    assert_exit(&output, 5);
    let errors = text(&output.stderr);
    assert!(errors.contains("error[disk_full]: ") && errors.contains("/dev/full (incomplete)"));
    assert!(errors.contains("; some rows may have been written; the same command"), "{errors}");
}

#[test]
fn quickstart() {
    let folder = temporary();
    let flags = ["-i", PROMPTS, "-o", "out.jsonl"];
    let output = finish(&mut demo(folder.path(), &flags), "");
    assert_exit(&output, 0);
    assert!(output.stdout.is_empty(), "rows go to the file");
    assert_eq!(names(folder.path()), ["out.jsonl", "out.jsonl.meta.json"]);
    let (input, out) = (fs::read_to_string(PROMPTS).unwrap(), folder.path().join("out.jsonl"));
    let (input, out) = (rows(&input), rows(&fs::read_to_string(out).unwrap()));
    assert_eq!(input.len(), out.len());
    for (before, after) in input.iter().zip(&out) {
        for (key, value) in before.as_object().unwrap() {
            assert_eq!(&after[key], value, "the input passes through");
        }
        assert!(after["response"].is_string() && after["usage"]["prompt_tokens"].is_u64());
    }
    let summary = text(&output.stderr);
    assert!(summary.contains(&format!("{} rows: {} ok, 0 failed", input.len(), input.len())));
    assert!(
        summary.contains("\nTokens: ") && summary.ends_with("\nOutput: out.jsonl\n"),
        "{summary}"
    );
}

#[test]
fn standard_streams_give_the_same_bytes_and_only_rows() {
    let folder = temporary();
    let prompts = fs::read_to_string(PROMPTS).unwrap();
    assert_exit(&finish(&mut demo(folder.path(), &["-i", PROMPTS, "-o", "out.jsonl"]), ""), 0);
    let piped = finish(&mut demo(folder.path(), &[]), &prompts);
    assert_exit(&piped, 0);
    assert_eq!(fs::read(folder.path().join("out.jsonl")).unwrap(), piped.stdout);
    let dashes = finish(&mut demo(folder.path(), &["-i", "-", "-o", "-"]), &prompts);
    assert_eq!(dashes.stdout, piped.stdout);
}

#[test]
fn a_bad_row_is_an_error_row_and_changes_no_other() {
    let folder = temporary();
    let good = ["{\"id\":1,\"prompt\":\"2+3=\"}", "{\"id\":2,\"prompt\":\"4+4=\"}"];
    let clean = finish(&mut demo(folder.path(), &[]), &good.join("\n"));
    assert_exit(&clean, 0);
    let input = format!("{}\n{{\"id\":9,\"prompt\":\"a\" 1}}\n{}\n", good[0], good[1]);
    let output = finish(&mut demo(folder.path(), &[]), &input);
    assert_exit(&output, 3);
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!([lines[0], lines[2]].join("\n") + "\n", text(&clean.stdout));
    let bad: Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!((&bad["response"], &bad["error"]["code"]), (&Value::Null, &"bad_json".into()));
    let summary = text(&output.stderr);
    assert!(summary.contains("3 rows: 2 ok, 1 failed"), "{summary}");
    assert!(summary.contains("  bad_json  1\n    <stdin>:2:22: "), "{summary}");
}

#[test]
fn a_bad_row_can_end_the_run() {
    let folder = temporary();
    // The bad row comes first: a good one before it may or may not be finished when it is read.
    fs::write(folder.path().join("in.jsonl"), "\n{\"prompt\" 1}\n{\"prompt\":\"a\"}\n").unwrap();
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--on-bad-row", "fail"];
    let output = finish(&mut demo(folder.path(), &flags), "");
    assert_exit(&output, 2);
    assert!(text(&output.stderr).contains("error[bad_json]: in.jsonl:2:11: "));
    assert_eq!(names(folder.path()), ["in.jsonl"]);
}

#[test]
fn too_many_errors_stop_the_run() {
    let folder = temporary();
    let bad = "{\"prompt\" 1}\n";
    let good = "{\"prompt\":\"a\"}\n";
    fs::write(folder.path().join("in.jsonl"), bad.repeat(50) + good).unwrap();
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--max-errors", "3"];
    let output = finish(&mut demo(folder.path(), &flags), "");
    assert_exit(&output, 5);
    assert!(text(&output.stderr).contains("error[max_errors]: 4 of "), "{}", text(&output.stderr));
    assert_eq!(names(folder.path()), ["in.jsonl", "out.jsonl.journal", "out.jsonl.part"]);
    let allowed = ["-i", "in.jsonl", "-o", "out.jsonl", "--max-errors", "50"];
    let output = finish(&mut demo(folder.path(), &allowed), "");
    assert_exit(&output, 3);
    assert!(text(&output.stderr).contains("Taken over from the run before: "));
    assert_eq!(names(folder.path()), ["in.jsonl", "out.jsonl", "out.jsonl.meta.json"]);
}

#[test]
fn csv_in_csv_out() {
    let folder = temporary();
    fs::write(folder.path().join("in.csv"), "id,text\n1,2+3=\n2,\"a\nb\"\n").unwrap();
    let flags = ["-i", "in.csv", "-o", "out.csv", "--template", "{{text}}"];
    assert_exit(&finish(&mut demo(folder.path(), &flags), ""), 0);
    let out = fs::read_to_string(folder.path().join("out.csv")).unwrap();
    let header = "id,text,response,finish_reason,prompt_tokens,completion_tokens,error\n1,2+3=,";
    assert!(out.starts_with(header), "{out}");
    assert!(out.contains("\n2,\"a\nb\","), "{out}");
    let flags = ["-i", "in.csv", "-o", "out.jsonl", "--limit", "1"];
    assert_exit(&finish(&mut demo(folder.path(), &flags), ""), 0);
    let out = rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    assert_eq!((out.len(), &out[0]["text"]), (1, &"2+3=".into()));
}

#[test]
fn stats_are_a_superset_of_vllms_throughput_keys() {
    let folder = temporary();
    let flags = ["-i", PROMPTS, "-o", "out.jsonl", "--stats", "stats.json"];
    assert_exit(&finish(&mut demo(folder.path(), &flags), ""), 0);
    let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    for key in [
        "elapsed_time",
        "num_requests",
        "total_num_tokens",
        "requests_per_second",
        "tokens_per_second",
    ] {
        assert!(stats[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {stats}");
    }
    let number = fs::read_to_string(PROMPTS).unwrap().lines().count();
    assert_eq!((&stats["rows"]["ok"], &stats["complete"]), (&number.into(), &true.into()));
}

#[test]
fn quiet_twice_says_nothing_and_json_progress_is_json() {
    let folder = temporary();
    let prompts = fs::read_to_string(PROMPTS).unwrap();
    let once = finish(&mut demo(folder.path(), &["-q"]), &prompts);
    assert!(text(&once.stderr).contains(" rows: "), "the summary stays");
    assert!(!text(&once.stderr).contains("Loaded"));
    let twice = finish(&mut demo(folder.path(), &["-qq"]), &prompts);
    assert_exit(&twice, 0);
    assert_eq!(text(&twice.stderr), "");
    let json = finish(&mut demo(folder.path(), &["-qq", "--progress", "json"]), &prompts);
    let events = rows(text(&json.stderr));
    let [.., progress, result] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&progress["event"], &result["event"]), (&"progress".into(), &"result".into()));
    assert_eq!(progress["rows_done"], progress["rows_total"]);
}

#[test]
fn overwrite_replaces_the_output() {
    let folder = temporary();
    fs::write(folder.path().join("out.jsonl"), "precious\n").unwrap();
    let flags = ["-i", PROMPTS, "-o", "out.jsonl", "--overwrite"];
    assert_exit(&finish(&mut demo(folder.path(), &flags), ""), 0);
    assert!(!fs::read_to_string(folder.path().join("out.jsonl")).unwrap().contains("precious"));
}

#[test]
fn a_closed_standard_output_is_warned_about() {
    let folder = temporary();
    let run = demo(folder.path(), &["-q"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(run.get_program()).args(run.get_args());
    let output = finish(shell.current_dir(folder.path()), "{\"prompt\":\"2+3=\"}\n");
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    assert!(said.contains("warning: standard output is closed, or /dev/null"), "{said}");
    shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >/dev/null", "sh"]).arg(run.get_program()).args(run.get_args());
    let output = finish(shell.current_dir(folder.path()), "{\"prompt\":\"2+3=\"}\n");
    assert!(!text(&output.stderr).contains("warning"), "that is asked for");
}
