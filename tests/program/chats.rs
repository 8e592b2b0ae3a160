//! Chats through the program: where they end, what their template sees, and what is said of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");
const ANSWERED: &str = concat!(
    r#"{"messages":[{"role":"user","content":"What is 2+3?"},{"role":"assistant","content":"5"}]}"#,
    "\n",
    r#"{"messages":[{"role":"user","content":"What is 4+4?"},{"role":"assistant","content":"8"}]}"#,
    "\n"
);

/// Exit code, rows and standard error.
fn run(folder: &Path, rows: &str, flags: &[&str]) -> (Option<i32>, Vec<Value>, String) {
    fs::write(folder.join("in.jsonl"), rows).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--model", DEMO, "-i", "in.jsonl", "--temperature", "0", "--max-tokens", "6"])
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), rows, String::from_utf8(output.stderr).unwrap())
}

fn prompt_tokens(rows: &[Value]) -> Vec<u64> {
    rows.iter().map(|row| row["usage"]["prompt_tokens"].as_u64().unwrap()).collect()
}

#[test]
fn chats_with_their_answers_are_asked_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let (code, rows, said) = run(folder.path(), ANSWERED, &[]);
    assert_eq!((code, rows.len()), (Some(0), 2), "{said}");
    let note = "in.jsonl: line 1: the chat ends with the assistant's answer, which is not sent";
    assert_eq!(said.matches(note).count(), 1, "{said}");
    assert!(said.contains("in.jsonl: 2 rows end with an answer, which was not sent"), "{said}");
    let asked = ANSWERED.replace(r#",{"role":"assistant","content":"5"}"#, "");
    let asked = asked.replace(r#",{"role":"assistant","content":"8"}"#, "");
    let (_, alone, said) = run(folder.path(), &asked, &[]);
    assert!(!said.contains("not sent"), "{said}");
    let answers = |rows: &[Value]| rows.iter().map(|row| row["response"].clone()).collect();
    let (with, without): (Vec<Value>, Vec<Value>) = (answers(&rows), answers(&alone));
    assert_eq!(with, without);
    let (code, open, _) = run(folder.path(), ANSWERED, &["--last-assistant", "continue"]);
    assert_eq!(code, Some(0));
    assert!(prompt_tokens(&open)[0] > prompt_tokens(&rows)[0]);
    let (code, errors, _) = run(folder.path(), ANSWERED, &["--last-assistant", "error"]);
    assert_eq!((code, &errors[1]["error"]["code"]), (Some(3), &"last_assistant".into()));
}

#[test]
fn a_system_prompt_is_sent_and_belongs_to_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let (code, plain, said) = run(folder.path(), ANSWERED, &[]);
    assert_eq!(code, Some(0), "{said}");
    let with = ["--system-prompt", "Be brief.", "-o", "out.jsonl"];
    let (code, _, said) = run(folder.path(), ANSWERED, &with);
    assert_eq!(code, Some(0), "{said}");
    let out = fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    let first: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert!(prompt_tokens(&[first])[0] > prompt_tokens(&plain)[0]);
    let other = ["--system-prompt", "Be long.", "-o", "out.jsonl"];
    let (code, _, said) = run(folder.path(), ANSWERED, &other);
    assert_eq!(code, Some(6), "{said}");
    assert!(said.contains("system_prompt"), "{said}");
    let (_, _, said) = run(folder.path(), r#"{"prompt":"a"}"#, &["--system-prompt", "S"]);
    assert!(said.contains("--system-prompt is not sent without --chat"), "{said}");
}

#[test]
fn variables_that_the_template_does_not_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--chat-template-kwargs", r#"{"no_such_switch":true}"#];
    let (code, _, said) = run(folder.path(), ANSWERED, &flags);
    assert_eq!(code, Some(0), "{said}");
    let warning = "the chat template does not read `no_such_switch`, so it changes nothing";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    for json in ["[]", "{", r#"{"tokenize":true}"#] {
        let (code, _, said) = run(folder.path(), ANSWERED, &["--chat-template-kwargs", json]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("--chat-template-kwargs") && said.contains("help:"), "{said}");
    }
}
