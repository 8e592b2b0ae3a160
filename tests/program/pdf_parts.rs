//! Documents within chats: PDFs whose pages are images in their place, and plain texts.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

const SEES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/smolvlm");
const PDF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/pdf");

/// The rows of an output, and what was said.
fn run(rows: &[Value], flags: &[&str]) -> (Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.path().join("in.jsonl"), text).unwrap();
    answers(folder.path(), &[&["-i", "in.jsonl"], flags].concat())
}

fn answers(folder: &Path, flags: &[&str]) -> (Vec<Value>, String) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"))
        .args(["run", "--model", SEES, "--max-tokens", "3", "--temperature", "0"])
        .args(["--longest-side", "100"])
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("COLUMNS", "400")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let rows = text(output.stdout);
    let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (rows, text(output.stderr))
}

/// A file of testdata in base64.
fn data(name: &str) -> String {
    base64::encode(&fs::read(Path::new(PDF).join(name)).unwrap())
}

fn uri(name: &str) -> String {
    format!("data:application/pdf;base64,{}", data(name))
}

/// A row that asks about these parts.
fn row(parts: Value) -> Value {
    let mut parts = parts;
    parts.as_array_mut().unwrap().push(json!({"type": "text", "text": "Read it."}));
    json!({"messages": [{"role": "user", "content": parts}]})
}

fn tokens(row: &Value) -> u64 {
    row["usage"]["prompt_tokens"].as_u64().unwrap_or_else(|| panic!("{row}"))
}

#[test]
fn pages_of_a_document_are_images_in_its_place() {
    let anthropic = |source: Value| json!({"type": "document", "source": source});
    let pdf = |name: &str| {
        let data = data(name);
        anthropic(json!({"type": "base64", "media_type": "application/pdf", "data": data}))
    };
    let said = |text: &str| json!({"type": "text", "text": text});
    let rows = [
        row(json!([pdf("three.pdf")])),
        row(
            json!([{"type": "file", "file": {"filename": "a.pdf", "file_data": uri("three.pdf")}}]),
        ),
        row(json!([{"type": "input_file", "file_data": uri("three.pdf")}])),
        row(json!([pdf("turned.pdf")])),
        row(json!([pdf("turned.pdf"), pdf("three.pdf"), pdf("turned.pdf")])),
        row(json!([said("Notes"), said("A"), said("Plain.")])),
        row(json!([{
            "type": "document", "title": "Notes", "context": "A",
            "source": {"type": "text", "media_type": "text/plain", "data": "Plain."},
        }])),
        row(json!([pdf("encrypted.pdf")])),
        row(json!([pdf("broken.pdf")])),
    ];
    let (found, errors) = run(&rows, &[]);
    let same = |a: usize, b: usize| {
        assert_eq!(found[a]["response"], found[b]["response"], "{errors}");
        assert_eq!(tokens(&found[a]), tokens(&found[b]));
    };
    for (a, b) in [(0, 1), (0, 2), (5, 6)] {
        same(a, b);
    }
    // Tokens of pages add up; those around them are there once.
    let one = tokens(&found[3]);
    let around = 2 * one + tokens(&found[0]) - tokens(&found[4]);
    assert_eq!(around % 2, 0);
    let codes = [7, 8].map(|at: usize| found[at]["error"]["code"].clone());
    assert_eq!(codes, ["media_unsupported", "media_decode"], "{errors}");
    // A page of a file is asked about as a document of one page is.
    let folder = tempfile::tempdir().unwrap();
    fs::copy(Path::new(PDF).join("turned.pdf"), folder.path().join("a.pdf")).unwrap();
    let (pages, errors) = answers(folder.path(), &["-i", "a.pdf", "-p", "Read it."]);
    assert_eq!(pages[0]["response"], found[3]["response"], "{errors}");
    assert_eq!(tokens(&pages[0]), one);
}

#[test]
fn documents_are_limited_as_images_are_and_urls_are_asked_for_by_flag() {
    let document = |part: Value| row(json!([part]));
    let url = json!({"type": "url", "url": "http://127.0.0.1:9/a.pdf"});
    let rows = [
        document(json!({"type": "input_file", "file_data": uri("many.pdf")})),
        document(json!({"type": "document", "source": url})),
        document(json!({"type": "document", "source": {"type": "file", "file_id": "f"}})),
        document(json!({"type": "file", "file": {"file_id": "f"}})),
    ];
    let (found, errors) = run(&rows, &["--limit-mm-per-prompt", r#"{"image": 11}"#]);
    let codes: Vec<_> = found.iter().map(|row| row["error"]["code"].as_str().unwrap()).collect();
    let unsupported = "unsupported_field";
    assert_eq!(codes, ["media_count", "media_forbidden", unsupported, unsupported], "{errors}");
    assert!(found[0]["error"]["message"].as_str().unwrap().contains("12 pages"), "{}", found[0]);
}

#[test]
fn batch_requests_have_documents() {
    let input = json!([{"role": "user", "content": [
        {"type": "input_file", "filename": "a.pdf", "file_data": uri("three.pdf")},
        {"type": "input_text", "text": "Read it."},
    ]}]);
    let openai = json!({"custom_id": "a", "method": "POST", "url": "/v1/responses",
        "body": {"model": "m", "input": input, "max_output_tokens": 3, "temperature": 0}});
    let content = json!([
        {"type": "document", "source": {
            "type": "base64", "media_type": "application/pdf", "data": data("three.pdf"),
        }},
        {"type": "text", "text": "Read it."},
    ]);
    let anthropic = json!({"custom_id": "a", "params": {"model": "m", "max_tokens": 3,
        "temperature": 0, "messages": [{"role": "user", "content": content}]}});
    let own = row(json!([{"type": "input_file", "file_data": uri("three.pdf")}]));
    let (own, errors) = run(&[own], &[]);
    let prompt_tokens = tokens(&own[0]);
    let (openai, more) = run(&[openai], &[]);
    let usage = &openai[0]["response"]["body"]["usage"];
    assert_eq!(usage["input_tokens"], prompt_tokens, "{} {more}", openai[0]);
    let (anthropic, more) = run(&[anthropic], &[]);
    let usage = &anthropic[0]["result"]["message"]["usage"];
    assert_eq!(usage["input_tokens"], prompt_tokens, "{} {more} {errors}", anthropic[0]);
}
