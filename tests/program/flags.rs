//! Flags: typed, in variables and in files; what is said of wrong ones, and of what they resolved
//! to.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::cli::{
    PLAIN, TINY, assert_exit, finish, names, over, rows, temporary, text, vllm_batch,
};

/// Exit code 2, and all of `wanted` on standard error.
#[track_caller]
fn assert_refused(output: &Output, wanted: &[&str]) {
    assert_exit(output, 2);
    let stderr = text(&output.stderr);
    for wanted in wanted {
        assert!(stderr.contains(wanted), "{wanted:?} is not in: {stderr}");
    }
    assert!(output.stdout.is_empty());
}

fn refused(folder: &Path, line: &str, wanted: &[&str]) {
    let flags: Vec<&str> = line.split_whitespace().collect();
    assert_refused(&finish(&mut vllm_batch(folder, &flags), "{\"prompt\":\"a\"}\n"), wanted);
}

#[test]
fn wrong_usage_exits_2_and_says_what_is_true() {
    let folder = temporary();
    for (line, wanted) in [
        ("run --model m --temprature 1", "tip: a similar flag: '--temperature'"),
        ("run --model m --temperature 9", "must be in [0, 2]"),
        ("run", "--model"),
        ("rum", "tip: a similar command: 'run'"),
        ("", "Usage"),
        ("run --model m --device gpu", "expected auto, cpu, cuda, cuda:N or cuda:all"),
        ("run --model m --format xml", "jsonl"),
        (
            "run --model m --enable-expert-parallel",
            "tip: --tensor-parallel-size N shares a model out to N GPUs",
        ),
        ("run --model m --trust-remote-code", "tip: no code of a model is ever run"),
        ("run --model m --max-new-tokens=2", "tip: it is --max-tokens here"),
        ("serve m", "tip: the model is named by a flag: -m m"),
        ("run -m m --port 8000", "tip: `serve` answers requests over HTTP"),
        ("plan", "--model"),
        ("run --model m --task score", "tip: the command says it: `run` completes"),
        ("run m", "tip: the input is named by a flag: -i m; the model by -m"),
        ("run -m m in.jsonl", "tip: the input is named by a flag: -i in.jsonl"),
        ("bench m", "tip: the model is named by a flag: -m m"),
        ("run -m m --seed -1", "must be at least 0, got -1. A run always has a seed"),
        ("run -m m --chat --no-chat", "cannot be used with"),
        ("check --chat --no-chat a", "cannot be used with"),
        ("check", "<FILE>..."),
        ("merge -i a", "tip: files are named without a flag: vllm-batch merge SHARD"),
        ("diff --input a", "tip: files are named without a flag: vllm-batch diff A B"),
        ("show -i a", "tip: files are named without a flag: vllm-batch show OUT"),
    ] {
        refused(folder.path(), line, &[wanted]);
    }
    let output = finish(&mut vllm_batch(folder.path(), &["run", "-m", "m", "--xyzzy"]), "");
    assert!(!text(&output.stderr).contains("tip:"), "{}", text(&output.stderr));
}

/// Names that other programs have for what is here.
#[test]
fn flags_of_other_programs_lead_to_ours() {
    let folder = temporary();
    for (flag, wanted) in [
        ("--guided-json", "--structured-outputs.json"),
        ("--choices", "--structured-outputs.choice"),
        ("--guided-regex", "--structured-outputs.regex"),
        ("--schema", "--structured-outputs.json"),
        ("--json", "--structured-outputs.json"),
        ("--force", "--overwrite"),
        ("--n-gpu-layers", "--device"),
        ("--repeat-penalty", "--repetition-penalty"),
        ("--reverse-prompt", "--stop"),
        ("--hf-repo", "--model"),
        ("--instructions", "--system-prompt"),
        ("--tools", "rows have it"),
        ("--tasks", "`eval`"),
        ("--apply-chat-template", "--chat"),
        ("--gen_kwargs", "--temperature"),
        ("--torch_dtype", "--dtype"),
        ("--load-in-8bit", "--quantization"),
        ("--num-samples", "--sample N"),
        ("--text-column", "--prompt-column"),
        ("--max_new_tokens", "--max-tokens"),
        ("--max_tokens", "--max-tokens"),
    ] {
        let output = finish(&mut vllm_batch(folder.path(), &["run", "-m", "m", flag, "x"]), "");
        assert_exit(&output, 2);
        let said = text(&output.stderr);
        let tip =
            said.lines().find(|line| line.contains("tip:")).unwrap_or_else(|| panic!("{said}"));
        assert!(tip.contains(wanted), "{flag}: {tip}");
        let usage = "\nUsage: vllm-batch run [OPTIONS] --model <DIR|GGUF|HF_ID>\n";
        assert!(said.contains(usage), "{flag}: {said}");
    }
    let output = finish(&mut vllm_batch(folder.path(), &["embed", "-m", "m", "-p", "x"]), "");
    assert!(text(&output.stderr).contains("tip: `run` has it"), "{}", text(&output.stderr));
    // A command that has the flag has no tip about it.
    let output = finish(&mut vllm_batch(folder.path(), &["diff", "a", "b", "--jsn"]), "");
    assert!(text(&output.stderr).contains("tip: a similar flag: '--json'"));
    assert!(text(&output.stderr).contains("\nUsage: vllm-batch diff [OPTIONS] <A> <B>\n"));
}

/// No line of an example or of a paragraph is broken in two.
#[test]
fn help_of_eval_fits_a_terminal_of_80_columns() {
    let folder = temporary();
    let help = finish(&mut vllm_batch(folder.path(), &["eval", "--help"]), "");
    let (_, rest) = text(&help.stdout).split_once("Examples:").unwrap();
    let long = rest.lines().find(|line| line.chars().count() > 80);
    assert_eq!(long, None);
}

#[test]
fn one_choice_that_is_a_list_is_refused_with_the_flags_that_were_meant() {
    let folder = temporary();
    let mut command = vllm_batch(folder.path(), &["run", "--model", TINY]);
    command.args(["--structured-outputs.choice", "positive,negative"]);
    let output = finish(&mut command, "{\"prompt\":\"a\"}\n");
    let meant = "repeat the flag: --structured-outputs.choice 'positive' \
                 --structured-outputs.choice 'negative'";
    assert_refused(&output, &["\"positive,negative\" is one choice", meant]);
}

/// `eval` does not ask for a model beside `--rescore`: what it requires is a rule of its own.
#[test]
fn eval_takes_its_flags_from_a_file_and_from_variables() {
    let folder = temporary();
    let config = "[eval]\nmax-tokens = 3\nscorer = \"exact\"\n";
    fs::write(folder.path().join("batch.toml"), config).unwrap();
    let row = "{\"prompt\":\"a\",\"expected\":\"b\"}\n";
    let eval = |variables: &[(&str, &str)]| {
        let mut command = vllm_batch(folder.path(), &["eval", "--config", "batch.toml"]);
        command.args(["--ignore-eos", "--out", "out.jsonl"]).envs(variables.iter().copied());
        finish(&mut command, row)
    };
    assert_exit(&eval(&[("VLLM_BATCH_MODEL", TINY), ("VLLM_BATCH_DEVICE", "cpu")]), 0);
    let out = fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    assert_eq!(rows(&out)[0]["usage"]["completion_tokens"], 3);
    assert_refused(&eval(&[]), &["--model <", "required arguments were not provided"]);
}

#[test]
fn a_file_and_variables_set_flags() {
    let folder = temporary();
    let config = format!("[run]\nmodel = \"{TINY}\"\nmax-tokens = 3\ntop_k = 5\n[bench]\n");
    fs::write(folder.path().join("batch.toml"), config).unwrap();
    let run = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = vllm_batch(folder.path(), &["run", "--config", "batch.toml"]);
        command.args(["--ignore-eos", "--temperature", "0"]).args(flags);
        command.envs(variables.iter().copied());
        finish(&mut command, "{\"prompt\":\"a\"}\n")
    };
    let tokens = |output: &Output| {
        assert_exit(output, 0);
        rows(text(&output.stdout))[0]["usage"]["completion_tokens"].clone()
    };
    assert_eq!(tokens(&run(&[], &[])), 3);
    let variable = [("VLLM_BATCH_MAX_TOKENS", "4")];
    let output = run(&["-v"], &variable);
    assert_eq!(tokens(&output), 4);
    let said = text(&output.stderr);
    for wanted in [
        "--max-tokens=4 from VLLM_BATCH_MAX_TOKENS\n",
        "--top-k=5 from batch.toml:4\n",
        "top_k 5 (batch.toml:4)",
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
    assert!(!said.contains("--max-tokens=3"), "{said}");
    assert_eq!(tokens(&run(&["--max-tokens", "5"], &variable)), 5);
    let unknown = run(&[], &[("VLLM_BATCH_MAX_TOKEN", "4")]);
    assert_eq!(tokens(&unknown), 3);
    assert!(text(&unknown.stderr).contains("VLLM_BATCH_MAX_TOKEN is not the variable of a flag"));
    assert_refused(
        &run(&[], &[("VLLM_BATCH_TOP_P", "2")]),
        &["error[environment]: VLLM_BATCH_TOP_P: invalid value '2' for '--top-p <P>': top_p must"],
    );
    fs::write(folder.path().join("batch.toml"), "[run]\n\nmax-tokns = 3\n").unwrap();
    let wanted = "error[config_file]: batch.toml:3: [run] has no key `max-tokns`\n\
                  help: did you mean `max-tokens`?";
    assert_refused(&run(&[], &[]), &[wanted]);
}

/// A run is one run, however its flags are given; and 0 is 0, whoever says it.
#[test]
fn where_a_value_comes_from_is_no_part_of_a_run() {
    let folder = temporary();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(TINY).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, model.join(path.file_name().unwrap())).unwrap();
    }
    fs::write(model.join("generation_config.json"), "{\"temperature\":0.0}").unwrap();
    fs::write(folder.path().join("batch.toml"), "[run]\nmax-tokens = 2\n").unwrap();
    let run = |flags: &[&str]| {
        let flags = [&["-o", "out.jsonl"], flags].concat();
        over(folder.path(), "{\"prompt\":\"a\"}\n", "model", &flags)
    };
    assert_exit(&run(&["--config", "batch.toml"]), 0);
    let again = run(&["--max-tokens", "2", "--temperature", "0"]);
    assert_exit(&again, 0);
    assert_eq!(
        text(&again.stderr),
        "Nothing to do: out.jsonl is complete, with 1 row, 0 of them error rows\n",
        "and no note before it"
    );
    assert_exit(&run(&["--max-tokens", "3"]), 6);
}

#[test]
fn verbose_and_stats_show_what_was_resolved() {
    let folder = temporary();
    let flags = ["-v", "--num-gpu-blocks-override", "16", "--block-size", "16", "--threads", "1"];
    let stats = ["--device", "cpu", "--stats", "stats.json", "--max-tokens", "2"];
    let output = over(folder.path(), "{\"prompt\":\"a\"}\n", TINY, &[&flags[..], &stats].concat());
    assert_exit(&output, 0);
    let said = text(&output.stderr);
    for wanted in [
        "kernels cpu-",
        ", 1 thread, float32\n",
        "KV cache: 256 tokens in 16 blocks of 16, ",
        "Maximum concurrency for rows of 256 tokens: 1.00x\n",
        "max_tokens 2 (flag)",
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
    assert!(!said.contains("0x0") && !said.contains("None"), "no debug output: {said}");
    let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
    let engine = serde_json::from_str::<Value>(&stats).unwrap()["engine"].clone();
    for (key, value) in [("kv_cache_tokens", 256), ("block_size", 16), ("threads", 1)] {
        assert_eq!(engine[key], value, "{key}: {engine}");
    }
    assert_eq!(engine["dtype"], "float32");
    let quiet = over(folder.path(), "{\"prompt\":\"a\"}\n", TINY, &["--max-tokens", "2"]);
    assert!(!text(&quiet.stderr).contains("KV cache"), "only -v says it");
}

#[test]
fn rows_cut_by_their_own_limit_get_no_advice() {
    let folder = temporary();
    let input = "{\"prompt\":\"a\",\"max_tokens\":2}\n{\"prompt\":\"b\"}\n";
    let flags = ["--ignore-eos", "--max-tokens", "3", "-o", "out.jsonl"];
    let output = over(folder.path(), input, TINY, &flags);
    assert_exit(&output, 0);
    let wanted = "\nCut at the length limit: 1 row; raise --max-tokens (now 3)\n\
                  Cut at the max_tokens that the row itself has: 1 row\n";
    assert!(text(&output.stderr).contains(wanted), "{}", text(&output.stderr));
}

#[test]
fn chat_rows_need_a_chat_template() {
    let folder = temporary();
    let chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n";
    for (input, flags, what, remedy) in [
        ("{\"prompt\":\"a\"}\n", &["--chat"][..], "--chat", ", or leave out --chat"),
        (chat, &[], "the rows are chat", ""),
    ] {
        let output = over(folder.path(), input, PLAIN, &[flags, &["-o", "out.jsonl"]].concat());
        let message = format!(
            "error[no_chat_template]: {what}: the model has no chat template\nhelp: give one with \
             --chat-template FILE{remedy}\n"
        );
        assert_refused(&output, &[&message]);
        assert_eq!(names(folder.path()), ["in.jsonl"]);
    }
    // The template itself, as vLLM takes it.
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let flags = ["--chat-template", template, "--max-tokens", "1"];
    assert_exit(&over(folder.path(), chat, PLAIN, &flags), 0);
}

#[test]
fn batch_requests_need_a_chat_template_if_all_are_chat() {
    let folder = temporary();
    let line = |id: u32, url: &str, prompt: &str| {
        format!(
            "{{\"custom_id\":\"{id}\",\"method\":\"POST\",\"url\":\"/v1/{url}\",\
             \"body\":{{{prompt},\"max_tokens\":1}}}}\n"
        )
    };
    let chat =
        |id| line(id, "chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]");
    let output = over(folder.path(), &(chat(1) + &chat(2)), PLAIN, &["-o", "out.jsonl"]);
    assert_refused(&output, &["the rows are chat: the model has no chat template"]);
    assert_eq!(names(folder.path()), ["in.jsonl"]);
    let mixed = chat(1) + &line(2, "completions", "\"prompt\":\"a\"");
    let output = over(folder.path(), &mixed, PLAIN, &[]);
    assert_exit(&output, 3);
    assert!(text(&output.stdout).contains("no_chat_template"), "{}", text(&output.stdout));
}

#[test]
fn completions_and_manual_know_every_flag() {
    let folder = temporary();
    let output = |flags: &[&str]| {
        let output = finish(&mut vllm_batch(folder.path(), flags), "");
        assert_exit(&output, 0);
        String::from_utf8(output.stdout).unwrap()
    };
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(output(&["completions", shell]).contains("max-num-batched-tokens"), "{shell}");
    }
    let man = output(&["man"]).replace("\\-", "-");
    assert!(man.contains(".TH vllm-batch") && man.contains("--logit-bias"));
    assert!(output(&["diff", "--help"]).contains("Usage: vllm-batch diff [OPTIONS] <A> <B>\n"));
    // One layout for every command: flags and their descriptions on one line.
    for command in ["run", "check", "merge", "join", "diff"] {
        let help = output(&[command, "--help"]);
        let quiet = help.lines().find(|line| line.contains("--quiet")).unwrap();
        assert!(quiet.split_whitespace().count() > 2, "{command}: {help}");
    }
}

#[test]
fn bench_gives_no_advice_about_flags_that_it_lacks() {
    let folder = temporary();
    let flags = ["bench", "-m", TINY, "--num-prompts", "1"];
    let output = finish(&mut vllm_batch(folder.path(), &flags), "");
    assert_refused(&output, &["the prompt does not fit the context\nhelp: shorten --input-len"]);
    assert!(!text(&output.stderr).contains("--overflow"));
}

#[test]
fn each_setting_names_where_it_is_set() {
    let folder = temporary();
    let file = folder.path().join("batch.toml");
    fs::write(&file, "[run]\ntop-p = 0.5\nmax-tokens = 7\n").unwrap();
    let flags = ["run", "--model", TINY, "-v", "--temperature", "0.5", "--config", "batch.toml"];
    let mut command = vllm_batch(folder.path(), &flags);
    command.env("VLLM_BATCH_MAX_TOKENS", "3").env("VLLM_BATCH_TEMPERATURE", "0.1");
    let output = finish(&mut command, "{\"prompt\":\"a\"}\n");
    assert_exit(&output, 0);
    let said = text(&output.stderr);
    let line = said.lines().find(|line| line.starts_with("Sampling: ")).expect(said);
    for wanted in [
        "temperature 0.5 (flag)",
        "top_p 0.5 (batch.toml:2)",
        "top_k 0 (default)",
        "max_tokens 3 (VLLM_BATCH_MAX_TOKENS)",
    ] {
        assert!(line.contains(wanted), "{wanted}: {line}");
    }
}
