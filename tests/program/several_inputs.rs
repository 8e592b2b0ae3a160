//! Several `--input` files are one input: rows are numbered through, and errors name file and line.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

struct Run {
    code: Option<i32>,
    rows: String,
    said: String,
}

/// `run` of the demo model in a folder; sampled, so that a row's answer depends on its number.
fn run(folder: &Path, flags: &[&str], stdin: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_vllm-batch"))
        .args(["run", "-m", DEMO, "--temperature", "1", "--max-tokens", "6"])
        .args(["--progress", "none"])
        .args(flags)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses at once does not read.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), rows: text(output.stdout), said: text(output.stderr) }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

const A: &str = "{\"prompt\":\"2+3=\"}\n\n{\"prompt\":\"4+4=\"}";
const B: &str = "{\"prompt\":\"1+1=\"}\n{\"prompt\":\"3+3=\"}\n";

#[test]
fn several_files_are_one_input() {
    let whole = format!("{A}\n{B}");
    let folder = folder(&[("a.jsonl", A), ("b.jsonl", B), ("none.jsonl", ""), ("w.txt", &whole)]);
    let path = folder.path();
    let expected = run(path, &["-i", "w.txt", "--format", "jsonl"], "");
    assert_eq!((expected.code, expected.rows.lines().count()), (Some(0), 4), "{}", expected.said);
    for (flags, stdin) in [
        (&["-i", "a.jsonl", "-i", "b.jsonl"][..], ""),
        (&["-i", "a.jsonl", "none.jsonl", "b.jsonl"], ""),
        (&["-i", "*.jsonl"], ""),
        (&["-i", "a.jsonl", "-i", "-"], B),
        (&["-i", "-", "-i", "b.jsonl"], A),
    ] {
        let found = run(path, flags, stdin);
        assert_eq!(
            (found.code, &found.rows),
            (Some(0), &expected.rows),
            "{flags:?} {}",
            found.said
        );
    }
    let other_order = run(path, &["-i", "b.jsonl", "-i", "a.jsonl"], "");
    assert!(other_order.code == Some(0) && other_order.rows != expected.rows);
}

#[test]
fn errors_name_the_file_and_its_line() {
    let folder = folder(&[("a.jsonl", A), ("b.jsonl", "{\"prompt\":\"x\"}\n{\"prompt\":\n{}\n")]);
    let path = folder.path();
    let inputs = ["-i", "a.jsonl", "-i", "b.jsonl"];
    let found = run(path, &inputs, "");
    assert_eq!(found.code, Some(3), "{}", found.said);
    assert!(found.said.contains("b.jsonl:2:"), "{}", found.said);
    assert!(found.said.contains("b.jsonl:3: expected `prompt` text"), "{}", found.said);
    let line = found.rows.lines().nth(3).unwrap();
    assert!(line.starts_with(r#"{"file":"b.jsonl","line":2,"input":"#), "{line}");
    let failed = run(path, &[&inputs[..], &["--on-bad-row", "fail"]].concat(), "");
    assert_eq!(failed.code, Some(2), "{}", failed.said);
    assert!(failed.said.contains("error[bad_json]: b.jsonl:2:"), "{}", failed.said);
    for (flags, wanted) in [
        (&["-i", "a.jsonl", "-i", "gone.jsonl"][..], "cannot read gone.jsonl"),
        (&["-i", "*.csv"], "no file has such a name"),
        (&["-i", "-", "-i", "-"], "standard input is named twice"),
        (&["-i", "a.jsonl", "-i", "b.jsonl", "-o", "b.jsonl", "--overwrite"], "b.jsonl"),
    ] {
        let refused = run(path, flags, "");
        assert_eq!(refused.code, Some(2), "{flags:?} {}", refused.said);
        assert!(refused.said.contains(wanted), "{flags:?} {}", refused.said);
    }
    assert!(fs::read_to_string(path.join("b.jsonl")).unwrap().contains("\"x\""));
}

#[test]
fn a_run_over_several_files_is_continued_and_sharded() {
    let folder = folder(&[("a.jsonl", A), ("b.jsonl", &format!("{B}{{\n"))]);
    let path = folder.path();
    let inputs = ["-i", "a.jsonl", "-i", "b.jsonl"];
    let flags = [&inputs[..], &["-o", "out.jsonl", "--max-errors", "0"]].concat();
    let stopped = run(path, &flags, "");
    assert_eq!(stopped.code, Some(5), "{}", stopped.said);
    fs::write(path.join("b.jsonl"), B).unwrap();
    let continued = run(path, &flags, "");
    assert_eq!(continued.code, Some(0), "{}", continued.said);
    assert!(continued.said.contains("Continuing a run"), "{}", continued.said);
    let out = fs::read_to_string(path.join("out.jsonl")).unwrap();
    assert_eq!(out, run(path, &inputs, "").rows);
    let again = run(path, &flags, "");
    assert!(again.code == Some(0) && again.said.contains("Nothing to do"), "{}", again.said);
    let other = ["-i", "b.jsonl", "-i", "a.jsonl", "-o", "out.jsonl"];
    assert_eq!(run(path, &other, "").code, Some(6));
    let shard = |index: usize| {
        let flags = ["--shard", &format!("{index}/2")];
        run(path, &[&inputs[..], &flags].concat(), "").rows
    };
    let (even, odd) = (shard(0), shard(1));
    let merged: Vec<&str> = even.lines().zip(odd.lines()).flat_map(|(a, b)| [a, b]).collect();
    assert_eq!(merged, out.lines().collect::<Vec<_>>());
}

#[test]
fn tables_share_a_header_or_become_json() {
    let folder = folder(&[
        ("a.csv", "id,prompt\n1,2+3=\n"),
        ("b.csv", "id,prompt\n2,4+4=\n"),
        ("c.csv", "prompt,id\n2,4+4=\n"),
        ("d.jsonl", "{\"prompt\":\"1+1=\",\"id\":3}\n"),
    ]);
    let path = folder.path();
    let tables = run(path, &["-i", "a.csv", "b.csv"], "");
    assert_eq!(tables.code, Some(0), "{}", tables.said);
    assert_eq!(tables.rows.lines().count(), 3);
    assert!(tables.rows.starts_with("id,prompt,response,"), "{}", tables.rows);
    for (files, wanted) in [
        (&["a.csv", "c.csv"][..], "c.csv: the columns are prompt, id, and id, prompt in the table"),
        (&["a.csv", "d.jsonl"], "one CSV cannot hold the rows of tables and of other inputs"),
    ] {
        let refused = run(path, &[&["-i"], files].concat(), "");
        assert_eq!((refused.code, refused.rows.as_str()), (Some(2), ""), "{}", refused.said);
        assert!(
            refused.said.contains(wanted) && refused.said.contains("help:"),
            "{}",
            refused.said
        );
    }
    for files in [["a.csv", "d.jsonl"], ["d.jsonl", "a.csv"]] {
        let out = ["-i", files[0], files[1], "-o", "out.jsonl", "--overwrite"];
        let found = run(path, &out, "");
        assert_eq!(found.code, Some(0), "{}", found.said);
        let text = fs::read_to_string(path.join("out.jsonl")).unwrap();
        assert!(text.contains(r#""id":"1","prompt":"2+3=""#), "{text}");
        assert!(text.contains(r#""prompt":"1+1=","id":3"#), "{text}");
    }
}
