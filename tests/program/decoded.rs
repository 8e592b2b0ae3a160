//! Inputs that become large, or say that they do: memory goes by what is decoded, whatever the
//! size of the file. Each command has an address space that the rows would not fit into.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TESTDATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata");

/// Runs the program in an address space of so many MiB.
fn within(mib: usize, folder: &Path, command: &[&str]) -> Output {
    let limited = format!("ulimit -v {}; exec \"$0\" \"$@\"", mib << 10);
    Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_vllm-batch")])
        .args(command)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Exit code and standard error of `check`.
fn check(mib: usize, folder: &Path, file: &str) -> (Option<i32>, String) {
    let output = within(mib, folder, &["check", file]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn pages_of_parquet_take_what_is_counted() {
    let folder = format!("{TESTDATA}/hostile_parquet");
    for (name, code, expected) in [
        ("texts_200m", 2, "6 rows, 6 bad"),
        ("texts_40m", 0, "20 rows, 0 bad"),
        ("late", 2, "2005 rows, 4 bad"),
        ("controls", 2, "2 rows, 2 bad"),
        ("prefixes", 2, "a page of 1000 MiB, the limit is 256 MiB"),
        ("prefixes_in_pages", 0, "400 rows, 0 bad"),
        ("lengths", 2, "a page has lengths that cannot be read"),
        ("dictionary", 2, "a dictionary is shorter than it says"),
        ("dictionary_of_empties", 2, "the limit is 256 MiB"),
    ] {
        let (found, said) = check(1000, Path::new(&folder), &format!("{name}.parquet"));
        assert_eq!(found, Some(code), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
    }
}

#[test]
fn row_groups_without_rows_are_passed_over() {
    let folder = format!("{TESTDATA}/hostile_parquet");
    let (code, said) = check(1000, Path::new(&folder), "empty_groups.parquet");
    assert!(code == Some(0) && said.contains("4 rows, 0 bad"), "{said}");
    let run = |inputs: &[&str]| {
        let model = format!("{TESTDATA}/demo");
        let mut command = vec!["run", "-qq", "--threads", "1", "-m", &model, "--max-tokens", "1"];
        command.extend(inputs.iter().flat_map(|input| ["-i", *input]));
        let output = within(4000, Path::new(&folder), &command);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8(output.stdout).unwrap().lines().count(), said)
    };
    let (some, none) = ("empty_groups.parquet", "no_rows.parquet");
    for (inputs, expected) in
        [(&[some][..], 4), (&[some, none], 4), (&[none, some], 4), (&[some, none, some], 8)]
    {
        let (code, rows, said) = run(inputs);
        assert_eq!((code, rows), (Some(0), expected), "{inputs:?}: {said}");
    }
    let (code, rows, said) = run(&[none]);
    assert!((code, rows) == (Some(4), 0) && said.contains("no rows"), "{said}");
}

#[test]
fn encrypted_columns_are_said_to_be_encrypted() {
    let folder = format!("{TESTDATA}/hostile_parquet");
    let (code, said) = check(1000, Path::new(&folder), "encrypted_column.parquet");
    assert!(
        code == Some(2) && said.contains("columns of the Parquet file are encrypted"),
        "{said}"
    );
}

#[test]
fn cells_and_fields_are_counted_beside_their_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let columns = format!("prompt{}\nx\n", ",a".repeat(12 << 20));
    fs::write(path.join("columns.csv"), columns).unwrap();
    let cells = format!("x{}\n", ",".repeat(30 << 20));
    fs::write(path.join("cells.csv"), format!("prompt,a\n{cells}{cells}y,z\n")).unwrap();
    let fields = format!("{{\"prompt\":\"x\"{}}}\n", ",\"\":0".repeat(6 << 20));
    fs::write(path.join("fields.jsonl"), format!("{fields}{{\"prompt\":\"y\"}}\n")).unwrap();
    for (name, code, expected) in [
        ("columns.csv", 2, "the CSV header has 12582913 cells, the limit is 65536"),
        ("cells.csv", 2, "the row has 31457281 cells, the header has 2"),
        ("fields.jsonl", 2, "the row has more than 65536 fields"),
    ] {
        let (found, said) = check(400, path, name);
        assert_eq!(found, Some(code), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
    }
}
