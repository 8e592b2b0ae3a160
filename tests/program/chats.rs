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
    assert!(said.contains("--system-prompt: rows of text do not use it; --chat"), "{said}");
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

const TOOL: &str = r#"{"type":"function","function":{"name":"flag","parameters":{"type":"object","properties":{"on":{"type":"boolean"}},"required":["on"],"additionalProperties":false}}}"#;
const ASKED: &str = r#""messages":[{"role":"user","content":"What is 2+3?"}]"#;

/// Reads the arguments of a call of `flag`, which must be its schema's.
fn is_on(arguments: &Value) -> bool {
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert_eq!(arguments.as_object().unwrap().len(), 1, "{arguments}");
    arguments["on"].as_bool().unwrap()
}

#[test]
fn an_answer_that_must_call_a_tool_does() {
    let folder = tempfile::tempdir().unwrap();
    let choices = [r#""required","parallel_tool_calls":false"#, r#"{"function":{"name":"flag"}}"#];
    let plain = |choice: &&str| format!(r#"{{{ASKED},"tools":[{TOOL}],"tool_choice":{choice}}}"#);
    let rows = choices.iter().map(plain).collect::<Vec<_>>().join("\n");
    // The model likes white space, which JSON may have anywhere.
    let flags = ["--max-tokens", "200", "--frequency-penalty", "2"];
    let (code, rows, said) = run(folder.path(), &rows, &flags);
    assert_eq!(code, Some(0), "{said}");
    for (row, reason) in rows.iter().zip(["tool_calls", "stop"]) {
        assert_eq!((&row["response"], &row["finish_reason"]), (&Value::Null, &reason.into()));
        let call = &row["tool_calls"][0];
        assert_eq!(
            (&call["type"], &call["function"]["name"]),
            (&"function".into(), &"flag".into())
        );
        is_on(&call["function"]["arguments"]);
    }
    let body = format!(r#"{ASKED},"tools":[{TOOL}],"tool_choice":{}"#, choices[0]);
    let two = r#""n":2,"temperature":0.3,"seed":1"#;
    let batch =
        format!(r#"{{"custom_id":"a","url":"/v1/chat/completions","body":{{{body},{two}}}}}"#);
    let (_, rows, said) = run(folder.path(), &batch, &flags);
    let choices = &rows[0]["response"]["body"]["choices"];
    let calls = |index: usize| &choices[index]["message"]["tool_calls"];
    is_on(&calls(1)[0]["function"]["arguments"]);
    assert_eq!(choices[0]["finish_reason"], "tool_calls", "{said}");
    assert_ne!(calls(0)[0]["id"], calls(1)[0]["id"]);
    let (_, again, _) = run(folder.path(), &batch, &flags);
    assert_eq!(*choices, again[0]["response"]["body"]["choices"], "ids of the row alone");
    let tool = r#"{"name":"flag","input_schema":{"type":"object","properties":{"on":{"type":"boolean"}},"required":["on"],"additionalProperties":false}}"#;
    let choice = r#"{"type":"any","disable_parallel_tool_use":true}"#;
    let message = format!(
        r#"{{"custom_id":"a","params":{{{ASKED},"tools":[{tool}],"tool_choice":{choice}}}}}"#
    );
    let (_, rows, said) = run(folder.path(), &message, &flags);
    let message = &rows[0]["result"]["message"];
    assert_eq!(message["stop_reason"], "tool_use", "{said}");
    assert!(message["content"][0]["input"]["on"].is_boolean(), "{message}");
}

#[test]
fn calls_that_nobody_reads_stay_text_and_a_warning_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let row = format!("{{{ASKED},\"tools\":[{TOOL}]}}\n");
    let warning = "the row has tools, and no parser reads calls from its answer";
    let (code, rows, said) = run(folder.path(), &row.repeat(2), &[]);
    assert_eq!((code, &rows[0]["response"]), (Some(0), &"5".into()), "{said}");
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    let (_, rows, said) = run(folder.path(), &row, &["--tool-call-parser", "hermes"]);
    assert_eq!(rows[0]["response"], "5");
    assert!(!said.contains(warning), "{said}");
}

#[test]
fn a_reasoning_parser_shows_thinking_apart() {
    let folder = tempfile::tempdir().unwrap();
    // An answer without an end of thinking is all thinking.
    let flags = ["--reasoning-parser", "deepseek_r1"];
    let (code, rows, said) = run(folder.path(), &format!("{{{ASKED}}}"), &flags);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!((&rows[0]["response"], &rows[0]["reasoning"]), (&Value::Null, &"5".into()));
    let batch = format!(r#"{{"custom_id":"a","url":"/v1/chat/completions","body":{{{ASKED}}}}}"#);
    let body = run(folder.path(), &batch, &flags).1[0]["response"]["body"].take();
    assert_eq!(body["choices"][0]["message"]["reasoning"], "5");
    assert!(body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
    let template = "{{ messages[0].content }}{% if enable_thinking %}<think></think>{% endif %}";
    let (_, _, said) = run(folder.path(), &batch, &["--chat-template", template]);
    assert!(said.contains("--reasoning-parser qwen3 shows it apart"), "{said}");
    let off = ["--chat-template-kwargs", r#"{"enable_thinking":false}"#];
    let flags = [&off[..], &["--chat-template", template]].concat();
    assert!(!run(folder.path(), &batch, &flags).2.contains("The model thinks"));
    let (code, _, said) = run(folder.path(), &batch, &["--reasoning-parser", "other"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("no reasoning parser is called `other`"), "{said}");
    let csv = ["--format", "csv", "-o", "out.csv", "--chat", "--reasoning-parser", "deepseek_r1"];
    let (code, _, said) = run(folder.path(), "prompt\nWhat is 2+3?\n", &csv);
    assert_eq!(code, Some(2));
    assert!(said.contains("CSV has no room for the thinking"), "{said}");
}
