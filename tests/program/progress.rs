//! What is shown of a run while it works.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::resume::program::{finish, run};

fn events(stderr: &str) -> Vec<Value> {
    stderr.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn json_is_all_there_is_and_ends_with_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let rows = "{\"prompt\":\"a\"}\n{\"prompt\":7}\n{\"prompt\":\"b\",\"seed\":\"corn\"}\n";
    fs::write(path.join("in.jsonl"), rows).unwrap();
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--progress", "json", "-q", "--max-tokens"];
    let ended = finish(run(path, &flags).args(["4", "--stats", "stats.json"]));
    ended.assert_exit(3);
    let events = events(&ended.stderr);
    let (result, before) = events.split_last().unwrap();
    let progress = before.iter().rfind(|event| event["event"] == "progress").unwrap();
    assert_eq!((&progress["rows_done"], &progress["rows_failed"]), (&3.into(), &2.into()));
    assert_eq!(progress["estimated_seconds_left"], 0.0);
    assert_eq!(result["event"], "result");
    let stats: Value =
        serde_json::from_str(&fs::read_to_string(path.join("stats.json")).unwrap()).unwrap();
    for (key, value) in stats.as_object().unwrap() {
        assert_eq!(&result[key], value, "{key}");
    }
    assert_eq!((&result["exit_code"], &result["error"]), (&3.into(), &Value::Null));
    // Nothing to do, and a refusal.
    let again = finish(run(path, &flags).arg("4"));
    again.assert_exit(3);
    assert_eq!(self::events(&again.stderr).last().unwrap()["complete"], true);
    let refused = finish(run(path, &flags).arg("5"));
    refused.assert_exit(6);
    let events = self::events(&refused.stderr);
    let result = events.last().unwrap();
    assert_eq!((&result["event"], &result["exit_code"]), (&"result".into(), &6.into()));
    assert_eq!(result["error"]["code"], "output_complete");
}

/// Keys of a document, with those of objects within it: `rows.total`.
fn keys(value: &Value, before: &str, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let name = format!("{before}{key}");
        keys(value, &format!("{name}."), found);
        found.push(name);
    }
}

#[test]
fn every_key_is_in_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\"}\n{\"prompt\":7}\n").unwrap();
    let flags = ["-i", "in.jsonl", "-o", "out.jsonl", "--progress", "json", "-q", "--max-tokens"];
    let ended = finish(run(path, &flags).args(["4", "--errors", "errors.jsonl"]));
    ended.assert_exit(3);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/JOBS.md");
    let page = fs::read_to_string(page).unwrap();
    let meta = fs::read_to_string(path.join("out.jsonl.meta.json")).unwrap();
    let mut found = Vec::new();
    keys(&serde_json::from_str(&meta).unwrap(), "", &mut found);
    events(&ended.stderr).iter().for_each(|event| keys(event, "", &mut found));
    for name in found {
        // Codes of errors, sizes of the machine and flags have their own tables.
        let within = ["rows.by_code.", "engine.", "fingerprint.fields."];
        let is_listed = within.iter().any(|prefix| name.starts_with(prefix));
        assert!(is_listed || page.contains(&format!("`{name}`")), "`{name}` is on no page");
    }
}

/// Names of Rust's types and variants, which users do not know.
fn rust_names(value: &Value, found: &mut Vec<String>) {
    let is_name = |text: &str| {
        text.starts_with(char::is_uppercase)
            && text.contains(char::is_lowercase)
            && text.chars().all(char::is_alphanumeric)
    };
    match value {
        Value::String(text) if is_name(text) || text.contains("Some(") => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| rust_names(item, found)),
        Value::Object(fields) => {
            found.extend(fields.keys().filter(|key| is_name(key)).cloned());
            fields.values().for_each(|value| rust_names(value, found));
        }
        _ => {}
    }
}

#[test]
fn what_users_read_has_no_names_of_rust() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\",\"text\":\"a\"}\n").unwrap();
    let encoder = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden_embeddings/bert");
    let completes = ["-i", "in.jsonl", "-o", "out.jsonl", "--stats", "stats.json", "-v"];
    let mut embeds = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    embeds.current_dir(path).args(["embed", "--device", "cpu", "-m", encoder]);
    embeds.stdout(Stdio::piped()).stderr(Stdio::piped());
    let runs = [run(path, &[&completes[..], &["--overflow", "truncate-left"]].concat()), {
        embeds.args(completes).arg("--overwrite");
        embeds
    }];
    for mut command in runs {
        let ended = finish(&mut command);
        ended.assert_exit(0);
        assert!(!ended.stderr.contains("Some(") && !ended.stderr.contains("BFloat16"));
        for name in ["out.jsonl.meta.json", "stats.json"] {
            let text = fs::read_to_string(path.join(name)).unwrap();
            let mut found = Vec::new();
            rust_names(&serde_json::from_str(&text).unwrap(), &mut found);
            assert!(found.is_empty(), "{name}: {found:?}");
        }
    }
}
