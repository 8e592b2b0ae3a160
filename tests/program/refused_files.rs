//! Files that are refused by name or by what is in them, before the model is loaded; and CSV, which
//! has no room for everything.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

/// Exit code, standard output and standard error.
fn run(folder: &Path, flags: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "--temperature", "0", "--max-tokens", "4", "--progress", "none"])
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[track_caller]
fn assert_refused(folder: &Path, flags: &[&str], wanted: &str) {
    let (code, rows, said) = run(folder, flags);
    assert_eq!((code, rows.as_str()), (Some(2), ""), "{flags:?}: {said}");
    assert!(said.contains(wanted) && said.contains("help:"), "{flags:?}: {said}");
}

#[test]
fn files_that_hold_no_rows_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::copy(Path::new(DEMO).join("model.safetensors"), path.join("weights")).unwrap();
    fs::copy(Path::new(DEMO).join("model.safetensors"), path.join("rows.txt")).unwrap();
    fs::write(path.join("random"), b"ab\0\x01\xff\n").unwrap();
    fs::write(path.join("rows.yaml"), "- prompt: a\n").unwrap();
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    let none = ["-m", "./none", "-i"];
    for (name, wanted) in [
        ("weights", "the input is a binary file: model weights"),
        ("rows.txt", "the input is a binary file: model weights"),
        ("random", "the input is a binary file: it has a NUL byte at offset 3"),
        ("rows.yaml", "by its name the input is YAML"),
    ] {
        assert_refused(path, &[&none[..], &[name]].concat(), wanted);
    }
    let out = [&none[..], &["in.jsonl", "-o", "out.xlsx"]].concat();
    assert_refused(path, &out, "by its name the output is a spreadsheet");
    assert_refused(path, &["-m", "a.gguf", "-i", "in.jsonl"], "no such file: a.gguf");
}

#[test]
fn csv_drops_nothing_that_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.csv"), "prompt,n\na,1\nb,2\n").unwrap();
    let demo = ["-m", DEMO, "-i", "in.csv"];
    for flags in [
        &["--n", "2"][..],
        &["--logprobs", "1"],
        &["--prompt-logprobs", "0", "-o", "out.csv"],
        &["--output-format", "full"],
    ] {
        assert_refused(path, &[&demo[..], flags].concat(), flags[0]);
        assert_refused(path, &[&demo[..], flags].concat(), "name the output FILE.jsonl");
    }
    // A row that asks for it by its column is an error row.
    let (code, rows, said) = run(path, &[&demo[..], &["--logit-bias", "5=1"]].concat());
    assert_eq!(code, Some(3), "{said}");
    let rows: Vec<&str> = rows.lines().collect();
    assert!(rows[1].starts_with("a,1,") && !rows[1].contains("error"), "{rows:?}");
    assert!(rows[2].contains("unsupported_field: n: CSV output has room"), "{rows:?}");
    fs::write(path.join("plain.csv"), "prompt\na\nb\n").unwrap();
    let plain = ["-m", DEMO, "-i", "plain.csv", "--logprobs", "1"];
    assert_eq!(run(path, &[&plain[..], &["-o", "out.jsonl"]].concat()).0, Some(0));
    let (code, rows, _) = run(path, &[&plain[..], &["--output-format", "simple"]].concat());
    assert_eq!((code, rows.lines().count()), (Some(0), 3));
}
