//! `plan` as users and scripts meet it: what it says of an input. It leaves nothing behind.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::cli::PLAIN;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

fn plan(folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["plan", "-q", "--model", DEMO]).args(flags).current_dir(folder);
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

#[test]
fn a_plan_says_what_the_rows_are_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let long = "1+".repeat(600);
    let rows = format!(
        "{{\"prompt\":\"2+3=\",\"max_tokens\":4}}\n{{\"prompt\":\"{long}\"}}\n{{\"prompt\":\"\
         2+2=\",\"temperature\":-1}}\n{{\"prompt\":\"11+22+33=\",\"max_tokens\":9}}\n"
    );
    fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let flags = ["-i", "rows.jsonl", "-o", "out.jsonl", "--output-json", "plan.json"];
    let output = plan(folder.path(), &[&flags[..], &["--explain", "4"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    for wanted in [
        "Rows: 4 in rows.jsonl; 2 to run, 2 that would be error rows\n",
        "  context_length  1\n    rows.jsonl:2: prompt has ",
        "  invalid_parameter  1\n    rows.jsonl:3: temperature",
        "1-16         2 ████████████████████████████████████████\n",
        "\nOutput tokens at most: 13; mean 6, median 4, 90 % up to 9, longest 9\n",
        "\nTime: about ",
        "\nRow 4 as the model sees it, 10 tokens; temperature 0, at most 9 output tokens:\n\
         <|bos|>11+22+33=\n",
    ] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
    let json: Value = serde_json::from_slice(&fs::read(folder.path().join("plan.json")).unwrap())
        .expect("a document");
    assert_eq!((&json["rows"]["ok"], &json["rows"]["failed"]), (&2.into(), &2.into()));
    assert_eq!(json["prompt_tokens"]["max"], 10);
    assert_eq!(json["sample"]["finished"], 2);
    assert!(json["estimate"]["seconds"].as_f64().unwrap() > 0.0);
    let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(fs::DirEntry::file_name).collect();
    assert_eq!(names, ["plan.json", "rows.jsonl"], "no output, no journal");
}

#[test]
fn a_chat_is_shown_with_its_template_and_a_bad_row_with_its_fault() {
    let folder = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}";
    fs::write(folder.path().join("t.jinja"), template).unwrap();
    let rows = "{\"messages\":[{\"role\":\"user\",\"content\":\"2+2\"}]}\n{\"messages\":7}\n";
    fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let flags =
        ["-i", "rows.jsonl", "--chat-template", "t.jinja", "--sample-seconds", "0", "--explain"];
    let explain = |row: &str| plan(folder.path(), &[&flags[..], &[row]].concat());
    let said = text(&explain("1").stdout);
    assert!(said.contains("[user] 2+2;"), "{said}");
    assert!(said.contains("Time: nothing was run to estimate it"), "{said}");
    let said = text(&explain("2").stdout);
    assert!(said.contains("Row 2 would be an error row: rows.jsonl:2: "), "{said}");
    let named = plan(folder.path(), &[&flags[..], &["1", "--output-json", "t.jinja"]].concat());
    assert_eq!(named.status.code(), Some(2), "{}", text(&named.stderr));
    assert!(text(&named.stderr).contains("the chat template"), "{}", text(&named.stderr));
    let output = explain("3");
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("error[explain]: --explain 3: the input has 2 rows"), "{said}");
}

#[test]
fn a_plan_says_how_many_parameters_a_token_goes_through() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rows.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/mixtral");
    let flags = ["--model", model, "-i", "rows.jsonl", "--sample-seconds", "0"];
    let output = plan(folder.path(), &[&flags[..], &["--output-json", "plan.json"]].concat());
    let json = fs::read(folder.path().join("plan.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let number = |key: &str| json[key].as_u64().unwrap();
    // Two layers of 5 experts, of which a token goes to 2: gate, up and down of 24 by 32.
    let idle = 2 * 3 * 3 * 24 * 32;
    assert_eq!(number("active_parameters"), number("parameters") - idle);
    let said = text(&output.stdout);
    assert!(said.contains(" parameters; a token goes through "), "{said}");
}

#[test]
fn an_empty_shard_has_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let chat = "{\"messages\":[{\"role\":\"user\",\"content\":\"2+2\"}]}\n";
    fs::write(folder.path().join("rows.jsonl"), chat.repeat(3)).unwrap();
    let flags = ["--model", PLAIN, "-i", "rows.jsonl", "--shard"];
    let shard = |shard| plan(folder.path(), &[&flags[..], &[shard]].concat());
    let empty = shard("5/10");
    assert_eq!(empty.status.code(), Some(0), "{}", text(&empty.stderr));
    assert!(text(&empty.stdout).contains("Rows: 0 in rows.jsonl"), "{}", text(&empty.stdout));
    let chats = shard("0/10");
    assert_eq!(chats.status.code(), Some(2), "the model has no chat template");
}
