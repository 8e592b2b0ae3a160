//! Parquet in and out through the program: the rows are those of JSON lines, and files that are
//! broken end a run as other bad input does. Files are of `testdata/parquet`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Map, Value};
use tempfile::TempDir;
use vllm_batch::cli::input::parquet::{ParquetFile, ParquetRows};
use vllm_batch::cli::input::reader::Content;

const FLAGS: [&str; 4] = ["--temperature", "1", "--max-tokens", "4"];

/// The file, and its rows as JSON lines.
fn given(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/parquet").join(name)
}

fn command(folder: &TempDir, words: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_vllm-batch"));
    let model = match words[0] {
        "embed" => "testdata/golden_embeddings/bert",
        _ => "testdata/demo",
    };
    command.arg(words[0]).arg("--model").arg(root.join(model)).args(&words[1..]);
    command.current_dir(folder.path()).stdin(Stdio::null());
    command
}

#[track_caller]
fn run(folder: &TempDir, flags: &[&str], code: i32) -> String {
    let words = [&["run"], flags, &FLAGS].concat();
    let output = command(folder, &words).output().unwrap();
    said(&output, code)
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn read(folder: &TempDir, name: &str) -> Vec<u8> {
    fs::read(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The rows of a table.
fn rows(path: &Path) -> Vec<Map<String, Value>> {
    let mut rows = ParquetRows::new(ParquetFile::open(File::open(path).unwrap()).unwrap());
    let mut found = Vec::new();
    while let Some(record) = rows.next_row().unwrap() {
        let Content::Line(line) = record.content else { panic!("rows are lines") };
        found.push(serde_json::from_str(&line).unwrap());
    }
    found
}

fn copied(folder: &TempDir, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(given("prompts.parquet")).unwrap();
    change(&mut bytes);
    fs::write(folder.path().join(name), bytes).unwrap();
}

#[test]
fn rows_of_parquet_are_answered_as_json_lines_are() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["prompts.parquet", "prompts.jsonl"] {
        fs::copy(given(name), folder.path().join(name)).unwrap();
    }
    run(&folder, &["-i", "prompts.jsonl", "-o", "lines.jsonl"], 0);
    let said = run(&folder, &["-i", "prompts.parquet", "-o", "table.jsonl"], 0);
    assert!(said.contains("prompts.parquet: rows are"), "{said}");
    assert_eq!(read(&folder, "table.jsonl"), read(&folder, "lines.jsonl"));
    // Known by its bytes alone.
    fs::rename(folder.path().join("prompts.parquet"), folder.path().join("prompts")).unwrap();
    run(&folder, &["-i", "prompts", "-o", "unnamed.jsonl"], 0);
    assert_eq!(read(&folder, "unnamed.jsonl"), read(&folder, "lines.jsonl"));
}

#[test]
fn a_table_has_the_fields_of_json_lines_and_is_an_input_again() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(given("prompts.parquet"), folder.path().join("in.parquet")).unwrap();
    run(&folder, &["-i", "in.parquet", "-o", "out.jsonl"], 0);
    run(&folder, &["-i", "in.parquet", "-o", "out.parquet"], 0);
    let lines = String::from_utf8(read(&folder, "out.jsonl")).unwrap();
    let found = rows(&folder.path().join("out.parquet"));
    assert_eq!(found.len(), lines.lines().count());
    for (found, line) in found.iter().zip(lines.lines()) {
        let wanted: Map<String, Value> = serde_json::from_str(line).unwrap();
        for (name, value) in found {
            assert_eq!(value, wanted.get(name).unwrap_or(&Value::Null), "{name}");
        }
        assert!(wanted.keys().all(|name| found.contains_key(name)), "{line}");
    }
    let meta: Value = serde_json::from_slice(&read(&folder, "out.parquet.meta.json")).unwrap();
    assert_eq!(meta["format"], "parquet");
    // The same run is complete; another one gives the same bytes.
    let said = run(&folder, &["-i", "in.parquet", "-o", "out.parquet"], 0);
    assert!(said.contains("Nothing to do"), "{said}");
    run(&folder, &["-i", "in.parquet", "-o", "again.parquet"], 0);
    assert_eq!(read(&folder, "again.parquet"), read(&folder, "out.parquet"));
    // Its own columns are renamed where they come again.
    run(&folder, &["-i", "out.parquet", "-o", "twice.parquet", "--prompt-column", "prompt"], 0);
    let twice = rows(&folder.path().join("twice.parquet"));
    assert_eq!(twice[0]["input_response"], found[0]["response"]);
    assert_eq!(twice[0]["input_usage"], found[0]["usage"]);
}

#[test]
fn several_files_and_limits_are_one_input() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.parquet", "b.parquet"] {
        fs::copy(given("prompts.parquet"), folder.path().join(name)).unwrap();
    }
    run(&folder, &["-i", "?.parquet", "-o", "out.jsonl", "--limit", "45"], 0);
    let lines = String::from_utf8(read(&folder, "out.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 45);
    let limited = run(&folder, &["-i", "a.parquet", "-o", "one.jsonl", "--limit", "3"], 0);
    assert!(limited.contains("3 rows"), "{limited}");
}

#[test]
fn what_cannot_be_read_is_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    copied(&folder, "cut.parquet", |bytes| bytes.truncate(bytes.len() - 9));
    copied(&folder, "footer.parquet", |bytes| {
        let at = bytes.len() - 40;
        bytes[at - 200..at].fill(0xff);
    });
    copied(&folder, "first.parquet", |bytes| bytes[40..60].fill(0));
    fs::write(folder.path().join("text.parquet"), "a\nb\n").unwrap();
    for (name, wanted) in [
        ("cut.parquet", "a pipe or cut off"),
        ("footer.parquet", "the Parquet file is damaged"),
        ("first.parquet", "cannot read first.parquet: row group 1: column "),
        ("text.parquet", "it does not begin and end with PAR1"),
    ] {
        let said = run(&folder, &["-i", name, "-o", "out.jsonl"], 2);
        assert!(said.contains(wanted), "{name}: {said}");
        assert!(!folder.path().join("out.jsonl").exists());
    }
    let words = [&["run", "-o", "out.jsonl"][..], &FLAGS].concat();
    let mut child = command(&folder, &words);
    let mut child = child.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let bytes = fs::read(given("prompts.parquet")).unwrap();
    let _ = child.stdin.take().unwrap().write_all(&bytes);
    let said = said(&child.wait_with_output().unwrap(), 2);
    assert!(said.contains("-i FILE.parquet"), "{said}");
}

#[test]
fn damage_in_the_middle_ends_the_run_and_keeps_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(given("prompts.parquet")).unwrap();
    // The last prompt as its page has it, not as the footer's statistics do.
    let footer = bytes.windows(6).position(|bytes| bytes == b"schema").expect("the root's name");
    let at = bytes[..footer].windows(4).rposition(|bytes| bytes == b"39+3");
    let at = at.expect("the last prompt");
    copied(&folder, "in.parquet", |bytes| bytes[at] = b'x');
    let said = run(&folder, &["-i", "in.parquet", "-o", "out.jsonl"], 5);
    assert!(said.contains("row group 6: column prompt: a page has another checksum"), "{said}");
    fs::copy(given("prompts.parquet"), folder.path().join("in.parquet")).unwrap();
    let said = run(&folder, &["-i", "in.parquet", "-o", "out.jsonl"], 0);
    assert!(said.contains("Continuing a run with 35 finished rows"), "{said}");
}

#[test]
fn outputs_that_are_no_table_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(given("prompts.parquet"), folder.path().join("in.parquet")).unwrap();
    let input = ["-i", "in.parquet"];
    for (flags, wanted) in [
        (&["-o", "out.parquet.gz"][..], "Parquet within another compression"),
        (&["-o", "o.jsonl", "--errors", "e.parquet"], "error rows are JSON lines"),
        (&["-o", "out.parquet", "--output-format", "openai"], "lines of a batch API"),
    ] {
        let said = run(&folder, &[&input, flags].concat(), 2);
        assert!(said.contains(wanted), "{flags:?}: {said}");
    }
    run(&folder, &[&input[..], &["-o", "out.jsonl", "--limit", "2"]].concat(), 0);
    let shard = folder.path().join("out.jsonl");
    let merge = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["merge", "-o", "all.parquet"])
        .arg(shard)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(said(&merge, 2).contains("Parquet is merged into FILE.parquet"));
}

#[test]
fn vectors_are_lists_of_floats() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"text\":\"a b\"}\n{\"text\":7}\n").unwrap();
    for out in ["out.parquet", "out.jsonl"] {
        let output = command(&folder, &["embed", "-i", "in.jsonl", "-o", out]).output().unwrap();
        said(&output, 3);
    }
    let found = rows(&folder.path().join("out.parquet"));
    let line = String::from_utf8(read(&folder, "out.jsonl")).unwrap();
    let wanted: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert_eq!(found[0]["embedding"], wanted["embedding"]);
    assert!(found[1]["embedding"].is_null() && found[1]["error"].is_object());
    let file = File::open(folder.path().join("out.parquet")).unwrap();
    let schema = ParquetFile::open(file).unwrap();
    let column = schema.schema().get_fields().iter().find(|column| column.name() == "embedding");
    assert!(format!("{:?}", column.unwrap()).contains("FLOAT"));
}
