//! Rows without text: error rows of one code, in every format and of every command, which a flag
//! lets through.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::cli::{DEMO, assert_exit, finish, rows, temporary, text, vllm_batch};
use crate::piped;

const ALLOW: &str = "--allow-empty-prompts";
const BERT: &str = "testdata/golden_embeddings/bert";
const CLASSES: &str = "testdata/golden_classifiers/bert";

/// The codes of an output's rows, and the messages.
fn errors(folder: &Path, name: &str) -> Vec<(Option<String>, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let rows = rows(&fs::read_to_string(folder.join(name)).unwrap());
    let error = |row: &Value| {
        let error = &row["error"];
        (text(&error["code"]), text(&error["message"]).unwrap_or_default())
    };
    rows.iter().map(error).collect()
}

fn run(folder: &Path, flags: &[&str]) -> Output {
    let mut command = vllm_batch(folder, &["run", "-m", DEMO, "--max-tokens", "2"]);
    finish(command.args(["-o", "out.jsonl", "--overwrite"]).args(flags), "")
}

/// Files of the same four rows: a text, none, white space, a text.
fn write_files(folder: &Path) {
    let texts = ["2+3=", "", " \u{a0}", "1+1="];
    let table = |separator: char| {
        let row = |(id, text): (usize, &&str)| format!("{id}{separator}{text}{separator}x\n");
        let rows: String = texts.iter().enumerate().map(row).collect();
        format!("id{separator}text{separator}note\n{rows}")
    };
    fs::write(folder.join("in.csv"), table(',')).unwrap();
    fs::write(folder.join("in.tsv"), table('\t')).unwrap();
    let lines = |row: fn(&str) -> Value| piped::rows(&texts.map(row));
    let write = |name: &str, row| fs::write(folder.join(name), lines(row)).unwrap();
    write("in.jsonl", |text| json!({"text": text, "note": "x"}));
    write("bare.jsonl", |text| json!(text));
    write("parts.jsonl", |text| json!({"a": {"text": text}, "note": "x"}));
    write("alpaca.jsonl", |text| json!({"instruction": text, "input": text}));
    write("messages.jsonl", |text| {
        let system = json!({"role": "system", "content": "Do it."});
        json!({"messages": [system, {"role": "user", "content": text}]})
    });
    write("sharegpt.jsonl", |text| {
        let answer = json!({"from": "gpt", "value": "an answer"});
        json!({"conversations": [{"from": "human", "value": text}, answer]})
    });
    write("choices.jsonl", |text| json!({"prompt": text, "choices": ["a", "b"]}));
    fs::write(folder.join("in.txt"), "2+3=\n\u{a0}\n\u{a0}\n1+1=\n").unwrap();
    let output = run(folder, &["-i", "in.jsonl", "-o", "in.parquet"]);
    assert_exit(&output, 3);
}

#[test]
fn rows_without_text_are_error_rows_in_every_format() {
    let folder = temporary();
    let path = folder.path();
    write_files(path);
    let choice = ["--structured-outputs.choice", "yes", "--structured-outputs.choice", "no"];
    let template = ["--template", "Label: {{text}}"];
    let cases: &[(&str, &[&str], &str)] = &[
        ("in.csv", &[], "`text`"),
        ("in.csv", &choice, "`text`"),
        ("in.csv", &["--chat"], "the last message"),
        ("in.csv", &["--prompt-column", "text"], "`text`"),
        ("in.csv", &template, "every field of --template"),
        ("in.tsv", &[], "`text`"),
        ("in.parquet", &[], "`text`"),
        ("in.jsonl", &[], "`text`"),
        ("in.jsonl", &template, "every field of --template"),
        ("in.jsonl", &["--loglikelihood", "text"], "`text`"),
        ("parts.jsonl", &["--prompt-column", "a.text"], "`a.text`"),
        ("parts.jsonl", &["--template", "Label: {{a.text}}"], "every field of --template"),
        ("bare.jsonl", &[], "the prompt"),
        ("alpaca.jsonl", &[], "`instruction`"),
        ("messages.jsonl", &[], "`messages`: the last message"),
        ("sharegpt.jsonl", &[], "`conversations`: the last message"),
        ("choices.jsonl", &["--loglikelihood", "choices"], "`prompt`"),
        ("in.txt", &[], "the prompt"),
    ];
    for (input, flags, what) in cases {
        let output = run(path, &[&["-i", input], *flags].concat());
        assert_exit(&output, 3);
        let errors = errors(path, "out.jsonl");
        let codes: Vec<_> = errors.iter().map(|(code, _)| code.as_deref()).collect();
        let empty = Some("empty_prompt");
        assert_eq!(codes, [None, empty, empty, None], "{input} {flags:?}");
        let expected = format!("{what} is empty; {ALLOW} asks it all the same");
        for (_, message) in &errors[1..3] {
            assert!(message.ends_with(&expected), "{input} {flags:?}: {message}");
        }
        assert_exit(&run(path, &[&["-i", input, ALLOW], *flags].concat()), 0);
    }
    // One of the fields is enough.
    let both = ["-i", "in.csv", "--template", "{{note}}: {{text}}"];
    assert_exit(&run(path, &both), 0);
}

#[test]
fn check_and_one_prompt_and_a_run_that_goes_on_know_them() {
    let folder = temporary();
    let path = folder.path();
    write_files(path);
    let check = finish(&mut vllm_batch(path, &["check", "in.csv"]), "");
    assert_exit(&check, 2);
    assert!(text(&check.stderr).contains("2 bad (empty_prompt 2)"), "{}", text(&check.stderr));
    assert_exit(&finish(&mut vllm_batch(path, &["check", "in.csv", ALLOW]), ""), 0);
    let one = |flags: &[&str]| {
        let mut command = vllm_batch(path, &["run", "-m", DEMO, "--max-tokens", "2"]);
        finish(command.args(flags), "")
    };
    let typed = one(&["-p", ""]);
    assert_exit(&typed, 3);
    assert!(text(&typed.stderr).contains("empty_prompt"), "{}", text(&typed.stderr));
    assert_exit(&one(&["-p", " ", ALLOW]), 0);
    // Other bytes, so another run.
    assert_exit(&one(&["-i", "in.csv", "-o", "a.jsonl"]), 3);
    let other = one(&["-i", "in.csv", "-o", "a.jsonl", ALLOW]);
    assert_exit(&other, 6);
    let said = text(&other.stderr);
    assert!(said.contains("allow_empty_prompts: false then, true now"), "{said}");
    // Rows that failed for it are asked alone.
    let retry = ["-i", "in.csv", "-o", "a.jsonl", ALLOW, "--retry-failed"];
    let retried = one(&retry);
    assert_exit(&retried, 0);
    let said = text(&retried.stderr);
    assert!(said.contains("Going on from 2 rows with an answer"), "{said}");
    assert_exit(&one(&["-i", "in.csv", "-o", "fresh.jsonl", ALLOW]), 0);
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    assert!(read("a.jsonl") == read("fresh.jsonl"));
    assert_exit(&one(&["-i", "in.csv", "-o", "a.jsonl", ALLOW]), 0);
}

#[test]
fn requests_and_other_commands_have_the_same_error() {
    let request = |url: &str, body: Value| json!({"custom_id": "a", "url": url, "body": body});
    let user = |text: &str| json!([{"role": "user", "content": text}]);
    let message = json!({"custom_id": "a", "params": {"max_tokens": 2, "messages": user("")}});
    let cases: &[(&str, &str, Value, Option<&str>)] = &[
        (
            "run",
            DEMO,
            request("/v1/chat/completions", json!({"messages": user(" ")})),
            Some("messages"),
        ),
        ("run", DEMO, request("/v1/completions", json!({"prompt": ""})), Some("prompt")),
        ("run", DEMO, request("/v1/responses", json!({"input": ""})), Some("input")),
        ("run", DEMO, message, None),
        ("embed", BERT, json!({"text": ""}), None),
        ("embed", BERT, request("/v1/embeddings", json!({"input": ["a", ""]})), Some("input")),
        ("classify", CLASSES, json!({"text": " "}), None),
        ("classify", CLASSES, json!({"text_1": "a", "text_2": ""}), None),
        ("score", BERT, json!({"text_1": "", "text_2": ["a", "b"]}), None),
        (
            "score",
            BERT,
            request("/v1/score", json!({"text_1": "a", "text_2": " "})),
            Some("text_2"),
        ),
        ("rerank", BERT, json!({"query": "", "documents": ["a"]}), None),
        ("rerank", BERT, json!({"query": "a", "documents": ["", " "]}), None),
        (
            "rerank",
            BERT,
            request("/v1/rerank", json!({"query": "", "documents": ["a"]})),
            Some("query"),
        ),
    ];
    for (command, model, row, param) in cases {
        let flags: &[&str] = if *model == DEMO { &[] } else { &["--tokenizer", BERT] };
        let run = |more: &[&str]| {
            let command = piped::command(command, model, &[flags, more].concat());
            piped::fed(command, &format!("{row}\n"))
        };
        let output = run(&[]);
        assert_eq!(output.status.code(), Some(3), "{row}: {}", piped::errors(&output));
        let answer = &piped::lines(&output)[0];
        let answered = answer.to_string();
        let is_known = answered.contains("\"empty_prompt\"") || row["params"].is_object();
        let is_told = answered.contains("is empty; --allow-empty-prompts");
        assert!(is_known && is_told, "{command} {row}: {answered}");
        if let Some(param) = param {
            let error = &answer["response"]["body"]["error"];
            assert_eq!(error["param"], json!(param), "{command} {row}: {answered}");
        }
        let allowed = run(&[ALLOW]);
        assert_eq!(allowed.status.code(), Some(0), "{row}: {}", piped::errors(&allowed));
    }
    // A document without text is one that fits badly.
    let row = json!({"query": "a", "documents": ["", "b"]});
    let output = piped::fed(piped::command("rerank", BERT, &[]), &format!("{row}\n"));
    assert_eq!(output.status.code(), Some(0), "{}", piped::errors(&output));
}
