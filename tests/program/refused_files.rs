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

/// What the system refuses has a remedy that fits, whichever flag names the file.
#[test]
fn refusals_of_the_system_have_their_own_help() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::create_dir(path.join("folder")).unwrap();
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\",\"expected\":\"a\"}\n").unwrap();
    let long = "a".repeat(300);
    let long = long.as_str();
    let kinds = [
        ("folder", "name"),
        ("in.jsonl/x", "one of its folders is a file"),
        (long, "use a shorter name"),
    ];
    let commands: [&[&str]; 11] = [
        &["run", "-m", DEMO, "-i", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "-o", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "-o", "out.jsonl", "--errors", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "--stats", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "--chat-template", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "--config", "FILE"],
        &["run", "-m", DEMO, "-i", "in.jsonl", "--structured-outputs.json", "FILE"],
        &["eval", "-m", DEMO, "-i", "in.jsonl", "-o", "out.jsonl", "--baseline", "FILE"],
        &["diff", "in.jsonl", "FILE"],
        &["merge", "FILE", "-o", "out.jsonl"],
        &["check", "FILE"],
    ];
    for (name, wanted) in kinds {
        for command in commands {
            let words = command.iter().map(|word| if *word == "FILE" { name } else { word });
            let mut program = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
            let output = program.args(words).current_dir(path).stdin(Stdio::null()).output();
            let output = output.unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{command:?} {name}: {said}");
            assert!(said.contains(wanted), "{command:?} {name}: {said}");
            assert!(!said.contains("help: check its name"), "{command:?} {name}: {said}");
        }
    }
    // A model or a tokenizer that cannot be looked at is not called missing.
    for flag in ["-m", "--tokenizer"] {
        let mut flags = vec!["-i", "in.jsonl", flag, "./in.jsonl/x"];
        if flag != "-m" {
            flags.extend(["-m", DEMO]);
        }
        let (_, _, said) = run(path, &flags);
        assert!(said.contains("one of its folders is a file"), "{said}");
    }
}

#[test]
fn a_model_without_a_tokenizer_names_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::create_dir(path.join("m")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(Path::new(DEMO).join(name), path.join("m").join(name)).unwrap();
    }
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    let (code, _, said) = run(path, &["-m", "m", "-i", "in.jsonl"]);
    assert!(code == Some(7) && said.contains("tokenizer.json: not found"), "{said}");
    assert!(said.contains("--tokenizer"), "{said}");
    let (code, _, said) = run(path, &["-m", "m", "-i", "in.jsonl", "--tokenizer", DEMO]);
    assert_eq!(code, Some(0), "{said}");
}

/// An error in what answers must match names the file, and where in it.
#[test]
fn a_schema_that_is_refused_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    fs::write(path.join("in.jsonl"), "{\"prompt\":\"a\"}\n").unwrap();
    for (flag, name, text, wanted) in [
        (
            "json",
            "broken.json",
            "{\"type\":\"object\",\n \"properties\": }\n",
            "error[structured_outputs]: broken.json:2:16: the file is not JSON: expected value",
        ),
        (
            "json",
            "schema.json",
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"strin\"}}}",
            "error[structured_outputs]: schema.json: Invalid type: strin at /properties/a/type\n",
        ),
        ("json", "list.json", "[1]", "error[structured_outputs]: list.json: "),
        ("grammar", "g.gbnf", "root ::= \"a", "error[structured_outputs]: g.gbnf: line 1: "),
        ("structural-tag", "t.json", "{\"a\":1}", "error[structured_outputs]: t.json: "),
    ] {
        fs::write(path.join(name), text).unwrap();
        let flag = format!("--structured-outputs.{flag}");
        let (code, _, said) = run(path, &["-m", DEMO, "-i", "in.jsonl", &flag, name]);
        assert!(code == Some(2) && said.contains(wanted), "{name}: {said}");
    }
    let text = "{\"type\":\"strin\"}";
    let (code, _, said) =
        run(path, &["-m", DEMO, "-i", "in.jsonl", "--structured-outputs.json", text]);
    let wanted = "error[structured_outputs]: --structured-outputs.json: ";
    assert!(code == Some(2) && said.contains(wanted), "{said}");
}
