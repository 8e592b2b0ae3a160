//! The demo model as a user meets it: it answers, and bad rows stay where they are.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn run(input: &Path, flags: &[&str]) -> (Option<i32>, Vec<String>) {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-qq", "--model", "testdata/demo", "--input"])
        .arg(input)
        .args(flags)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let rows = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    (output.status.code(), rows)
}

fn json(row: &str) -> Value {
    serde_json::from_str(row).unwrap()
}

#[test]
fn more_than_nine_of_ten_evaluation_rows_are_answered_right() {
    let (code, rows) = run(Path::new("testdata/eval.jsonl"), &[]);
    assert_eq!((code, rows.len()), (Some(0), 200));
    let is_right = |row: &&String| {
        let row = json(row);
        row["response"].as_str().unwrap().trim() == row["answer"].as_str().unwrap()
    };
    let num_right = rows.iter().filter(is_right).count();
    println!("{num_right} of 200 right");
    assert!(num_right > 180, "{num_right} of 200 right");
}

#[test]
fn every_kind_of_bad_row_is_an_error_row_in_its_place_and_good_rows_keep_their_bytes() {
    let good: Vec<String> = (0..8)
        .map(|i| format!(r#"{{"id":"g{i}","prompt":"{i}+{i}=","temperature":1.0}}"#))
        .collect();
    let too_long = format!(r#"{{"id":"long","prompt":"{}"}}"#, "red bird ".repeat(600));
    let bad = [
        (r#"{"id":"json","prompt":"a" "b"}"#, "bad_json"),
        (too_long.as_str(), "context_length"),
        (r#"{"id":"type","prompt":"a","temperature":"hot"}"#, "invalid_parameter"),
        (r#"{"id":"range","prompt":"a","top_p":1.5}"#, "invalid_parameter"),
        (r#"{"id":"shape","question":5}"#, "row_shape"),
        (r#"{"id":"null","prompt":null}"#, "row_shape"),
        (r#"{"id":"limit","prompt":"a","max_tokens":0}"#, "invalid_parameter"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (clean, mixed) = (folder.path().join("clean.jsonl"), folder.path().join("mixed.jsonl"));
    std::fs::write(&clean, good.join("\n")).unwrap();
    let mut lines = Vec::new();
    for (index, row) in good.iter().enumerate() {
        lines.push(row.as_str());
        lines.extend(bad.get(index).map(|(row, _)| *row));
    }
    std::fs::write(&mixed, lines.join("\n")).unwrap();

    let (code, expected) = run(&clean, &[]);
    assert_eq!((code, expected.len()), (Some(0), good.len()));
    let (code, rows) = run(&mixed, &[]);
    assert_eq!((code, rows.len()), (Some(3), good.len() + bad.len()));
    let mut rows = rows.iter();
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(rows.next(), Some(expected));
        let Some((line, code)) = bad.get(index) else { continue };
        let row = json(rows.next().unwrap());
        assert_eq!(
            (&row["response"], row["finish_reason"].as_str()),
            (&Value::Null, Some("error"))
        );
        let message = row["error"]["message"].as_str().unwrap();
        assert_eq!(row["error"]["code"], *code, "{line}: {message}");
        assert!(!message.is_empty());
    }
}

/// Each command reads it, and an output that another file made is not continued.
#[test]
fn a_gguf_file_is_a_model_for_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    std::fs::write(&input, "{\"prompt\":\"Hello\",\"max_tokens\":3}\n").unwrap();
    let command = |arguments: &[&str], model: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
            .args(arguments)
            .arg("--model")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/gguf").join(model))
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let run = ["run", "-i", "in.jsonl", "-o", "out.jsonl", "--device", "cpu"];
    let bench = ["bench", "--num-prompts", "1", "--input-len", "4", "--output-len", "2"];
    for arguments in [&["plan", "-i", "in.jsonl"][..], &bench, &run, &run] {
        let (code, said) = command(arguments, "llama.gguf");
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
    }
    let row = std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    assert_eq!(json(row.trim())["usage"]["completion_tokens"], 3);
    let (code, said) = command(&run, "qwen3.gguf");
    assert_eq!(code, Some(6), "{said}");
}
