//! What the machine refuses: memory, threads, open files. It ends a run with exit 2 where a flag
//! asked for it, else with exit 5. It is never "a bug", and no model is to be deleted for it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// It has no chat template, whose engine takes much address space of its own.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/opt");

/// Runs one row under a limit of the shell; returns exit code and standard error.
#[track_caller]
fn run(folder: &Path, limit: &str, flags: &[&str]) -> (Option<i32>, String) {
    fs::write(folder.join("in.jsonl"), "{\"prompt\": \"a\"}\n").unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
    command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["run", "--model", MODEL, "-i", "in.jsonl", "-qq"]);
    command.args(["--device", "cpu", "--progress", "none", "--max-tokens", "2"]).args(flags);
    let output = command.current_dir(folder).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_flag_that_asks_for_too_much_is_named_and_nothing_is_left() {
    for (flag, value) in [
        ("--kv-cache-memory-bytes", "4000000GiB"),
        ("--num-gpu-blocks-override", "4294967295"),
        ("--max-num-batched-tokens", "400000000000"),
        ("--threads", "100000"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (code, stderr) = run(folder.path(), ":", &["-o", "out.jsonl", flag, value]);
        assert_eq!(code, Some(2), "{flag}: {stderr}");
        assert!(stderr.starts_with("error[config]: ") && stderr.contains(flag), "{stderr}");
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "{flag}: files beside the input");
    }
}

#[test]
fn without_descriptors_the_model_is_not_blamed() {
    let folder = tempfile::tempdir().unwrap();
    let mut refusals = 0;
    for limit in 4..12 {
        let (code, stderr) = run(folder.path(), &format!("ulimit -n {limit}"), &["--threads", "1"]);
        assert!(matches!(code, Some(0 | 2 | 5)), "{limit}: {code:?} {stderr}");
        assert!(!stderr.contains("delete") && !stderr.contains("a bug"), "{limit}: {stderr}");
        if code == Some(5) && stderr.contains("error[machine]") {
            assert!(stderr.contains("the same command continues"), "{stderr}");
            refusals += 1;
        }
    }
    assert!(refusals > 0);
}

/// Few texts are as long as a model's context: no memory is taken for them before they come.
#[test]
fn a_long_context_takes_no_memory_of_short_texts() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden_embeddings/qwen3");
    for name in ["model.safetensors", "tokenizer.json"] {
        fs::copy(golden.join(name), model.join(name)).unwrap();
    }
    let config = fs::read_to_string(golden.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["max_position_embeddings"] = (1 << 24).into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let rows: String = ["a".to_owned(), "the cat ".repeat(60), "b".to_owned()]
        .map(|text| serde_json::json!({"text": text}).to_string() + "\n")
        .concat();
    fs::write(folder.path().join("in.jsonl"), rows).unwrap();
    let embed = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        command.args(["embed", "--model", "model", "-i", "in.jsonl", "-q", "--threads", "1"]);
        command.args(["--max-num-batched-tokens", "32"]);
        command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap()
    };
    // Buffers for the whole context would take 10 GiB.
    let limited = embed("ulimit -v 4194304");
    assert_eq!(limited.status.code(), Some(0), "{}", String::from_utf8_lossy(&limited.stderr));
    let rows = String::from_utf8(limited.stdout).unwrap();
    let lines: Vec<serde_json::Value> =
        rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[1]["usage"]["prompt_tokens"].as_u64().unwrap() > 100, "{}", lines[1]["usage"]);
    assert!(lines.iter().all(|line| line["embedding"].is_array()));
}

/// Every command that reads or writes files, over one row.
const COMMANDS: [&str; 13] = [
    "run -m ROOT/golden/opt -i in.jsonl -o OUT --max-tokens 2",
    "run -m ROOT/golden/opt -i in.jsonl --max-tokens 2 --structured-outputs.json schema.json",
    "eval -m ROOT/golden/opt -i in.jsonl -o OUT --max-tokens 2 --report OUT.report.json",
    "eval --rescore then.jsonl -o OUT --scorer exact",
    "embed -m ROOT/golden_embeddings/bert -i in.jsonl -o OUT",
    "reward -m ROOT/golden_classifiers/qwen2_steps -i in.jsonl -o OUT",
    "score -m ROOT/golden_embeddings/bert -i pairs.jsonl -o OUT",
    "rerank -m ROOT/golden_embeddings/bert -i queries.jsonl -o OUT",
    "plan -m ROOT/golden/opt -i in.jsonl --sample-seconds 0",
    "bench -m ROOT/golden/opt --num-prompts 1 --input-len 4 --output-len 2",
    "check in.jsonl",
    "merge s0.jsonl s1.jsonl -o OUT",
    "diff s0.jsonl s1.jsonl",
];

/// Runs each command under a limit of the shell; hands over how it ended and what it said.
fn under_limits(limits: &[String], check: &mut dyn FnMut(Option<i32>, &str, &str)) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");
    let judged = "{\"prompt\":\"a\",\"response\":\"a\",\"expected\":\"a\",\
                  \"finish_reason\":\"stop\"}\n";
    for (name, text) in [
        ("in.jsonl", "{\"prompt\":\"a\",\"text\":\"a\",\"expected\":\"a\"}\n"),
        ("pairs.jsonl", "{\"text_1\":\"a\",\"text_2\":\"b\"}\n"),
        ("queries.jsonl", "{\"query\":\"a\",\"documents\":[\"a\",\"b\"]}\n"),
        ("two.jsonl", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n"),
        ("then.jsonl", judged),
        ("schema.json", "{\"type\":\"integer\"}"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    let run = |line: &str, limit: &str, out: &str| {
        let line = line.replace("ROOT", root).replace("OUT", out);
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
        command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        command.args(line.split_whitespace()).current_dir(folder).env_remove("GITHUB_STEP_SUMMARY");
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for shard in ["0", "1"] {
        let line = "run -m ROOT/golden/opt -i two.jsonl --max-tokens 2 -qq -o OUT --shard ";
        let (code, said) = run(&format!("{line}{shard}/2"), ":", &format!("s{shard}.jsonl"));
        assert_eq!(code, Some(0), "{said}");
    }
    for (at, line) in COMMANDS.iter().enumerate() {
        for (step, limit) in limits.iter().enumerate() {
            let (code, said) = run(line, limit, &format!("{at}-{step}.jsonl"));
            check(code, &said, &format!("{line} under {limit}"));
        }
    }
}

#[test]
fn without_descriptors_no_command_blames_a_file() {
    let limits: Vec<String> = (4..10).map(|limit| format!("ulimit -n {limit}")).collect();
    let mut num_stopped = 0;
    under_limits(&limits, &mut |code, said, what| {
        // 100: `diff` finds that the rows differ.
        assert!(matches!(code, Some(0 | 3 | 5 | 100)), "{what}: {code:?} {said}");
        num_stopped += usize::from(code == Some(5));
    });
    assert!(num_stopped > COMMANDS.len(), "{num_stopped}");
}

#[test]
fn without_memory_no_command_ends_without_a_word() {
    // Below its own size the program is not even loaded.
    let program = fs::metadata(assert_cmd::cargo::cargo_bin!("vllm-batch")).unwrap().len() >> 20;
    let limits = [8, 20, 60, 110, 260, 560].map(|more| (program + more) << 10);
    let limits: Vec<String> = limits.map(|kib| format!("ulimit -v {kib}")).into();
    let mut num_stopped = 0;
    under_limits(&limits, &mut |code, said, what| {
        // 127: the program itself is not loaded.
        let is_known = matches!(code, Some(0 | 2 | 3 | 5 | 100 | 127));
        assert!(is_known, "{what}: {code:?} {said}");
        num_stopped += usize::from(code == Some(5));
    });
    assert!(num_stopped > 0, "{num_stopped}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_stack_of_the_main_thread_is_there_before_others_take_the_address_space() {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["run", "-m", MODEL, "--ready-fd", "2", "-qq", "--device", "cpu"]);
    command.args(["--max-tokens", "2"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let stack = vllm_batch_base::machine::address_space::meminfo_bytes(&status, "VmStk:");
    child.stdin.take().unwrap().write_all(b"{\"prompt\": \"a\"}\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(stack.unwrap() >= 2 << 20, "{stack:?}");
}

/// Set where a test is to make its process abort.
const ABORTS: &str = "VLLM_BATCH_TEST_ABORTS";

#[expect(clippy::disallowed_methods, reason = "the other process is told by a variable")]
fn is_to_abort() -> bool {
    std::env::var_os(ABORTS).is_some()
}

/// The test that makes a process abort, run in a process of its own.
fn aborted(name: &str, limit: &str) -> (Option<i32>, String) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("machine::{name}"), "--nocapture"]).env(ABORTS, "1");
    let output = command.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn overflows() {
    if !is_to_abort() {
        return;
    }
    #[expect(unconditional_recursion, reason = "the stack is to overflow")]
    fn deeper(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 64]);
        room[0] + deeper(depth + 1) + room[63]
    }
    vllm_batch::cli::run::signals::survive_limits().unwrap();
    println!("{}", deeper(0));
}

#[test]
fn lacks_memory() {
    if !is_to_abort() {
        return;
    }
    vllm_batch::cli::run::signals::survive_limits().unwrap();
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                barrier.wait();
                let mut held: Vec<Vec<u8>> = Vec::new();
                loop {
                    held.push(std::hint::black_box(vec![1; 100_000]));
                }
            });
        }
    });
}

#[test]
fn a_stack_that_overflows_is_a_bug_and_no_lack_of_memory() {
    let (code, said) = aborted("overflows", ":");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("error[internal]: ") && !said.contains("memory"), "{said}");
}

#[test]
fn threads_that_lack_memory_at_once_end_as_one_does() {
    for _ in 0..10 {
        let (code, said) = aborted("lacks_memory", "ulimit -v 600000");
        assert_eq!(code, Some(5), "{said}");
        assert_eq!(said.matches("error[machine]: ").count(), 1, "{said}");
        assert!(said.contains("the same command continues"), "{said}");
    }
}
