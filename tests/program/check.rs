//! `check` as users and scripts meet it: what it says of good and bad inputs, and how it exits; and
//! that `run` and `bench` take the compressed inputs that it takes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use vllm_batch::cli::input::compress::Compression;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/llama2");
const GOOD: &str = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";

fn vllm_batch(folder: &Path, flags: &[&str]) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.current_dir(folder).args(flags).env_remove("FORCE_COLOR").env_remove("CLICOLOR_FORCE");
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

/// Exit code and standard error; nothing goes to standard output.
fn check(folder: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let output = vllm_batch(folder, &[&["check"], flags].concat());
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
    folder
}

/// As they are typed for `run`.
#[test]
fn an_input_may_be_named_with_a_flag() {
    let folder = folder(&[("a.jsonl", GOOD), ("b.jsonl", GOOD)]);
    let said = |flags: &[&str]| check(folder.path(), &[&["-q"], flags].concat());
    let expected = said(&["a.jsonl", "b.jsonl"]);
    assert_eq!(expected.0, Some(0));
    for flags in [
        &["-i", "a.jsonl", "b.jsonl", "-m", "any"][..],
        &["--input=a.jsonl", "--input", "b.jsonl"],
        &["a.jsonl", "-i", "b.jsonl"],
    ] {
        assert_eq!(said(flags), expected, "{flags:?}");
    }
    let output = vllm_batch(folder.path(), &["bench", "-m", TINY, "-qq", "-i", "a.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_bad_row_is_shown_with_its_place() {
    let rows = concat!(
        "{\"prompt\":\"a\"}\n\n",
        "{\"prompt\":\"a\" 1}\n",
        "{\"prompt\":\"a\",\"temperature\":\"hot\"}\n",
        "{\"prompt\":\"a\",\"top_p\":0}\n",
        "{\"prompt\":\"a\",\"min_tokens\":9,\"max_tokens\":8}\n",
        "{\"text\":5}\n",
        "{\"prompt\":\"a\",\"min_tokens\":900}\n",
    );
    let folder = folder(&[("rows.jsonl", rows)]);
    let expected = "error[bad_json]: rows.jsonl:3:15: expected ',' or '}'\n\
        3 | {\"prompt\":\"a\" 1}\n\x20 |               ^\n\
        error[invalid_parameter]: rows.jsonl:4: temperature: expected a number, found the string \
        \"hot\"\n\
        error[invalid_parameter]: rows.jsonl:5: top_p must be in (0, 1], got 0.0.\n\
        error[invalid_parameter]: rows.jsonl:6: min_tokens must be less than or equal to \
        max_tokens=8, got 9.\n\
        error[row_shape]: rows.jsonl:7: expected `prompt` text as in the first row, found an object with the fields text\n\
        rows.jsonl: 7 rows, 5 bad (bad_json 1, invalid_parameter 3, row_shape 1), 1 blank line\n";
    assert_eq!(check(folder.path(), &["-q", "rows.jsonl"]), (Some(2), expected.to_owned()));
    let (_, said) = check(folder.path(), &["rows.jsonl"]);
    assert!(said.starts_with("rows.jsonl: rows are `prompt` text"), "{said}");
    // Notes on fields that set parameters stand among the errors.
    let is_error = |line: &&str| !line.contains("--row-params");
    let errors: String = said.split_inclusive('\n').filter(is_error).collect();
    assert!(errors.ends_with(expected) && errors.len() < said.len(), "{said}");
    let (code, said) = check(folder.path(), &["--max-errors", "2", "-q", "rows.jsonl"]);
    assert_eq!((code, said.matches("error[").count()), (Some(2), 2));
    assert!(said.ends_with("; 2 of 5 errors shown, --max-errors shows more\n"), "{said}");
    let (code, said) = check(folder.path(), &["--limit", "1", "-qq", "rows.jsonl"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

#[test]
fn the_exit_code_is_that_of_the_worst_input() {
    let rows =
        [("good.jsonl", GOOD), ("bad.jsonl", "{\"prompt\":\"a\"}\n{\n"), ("none.jsonl", "\n")];
    let folder = folder(&rows);
    let check = |names: &[&str]| check(folder.path(), names);
    assert_eq!(check(&["good.jsonl"]).0, Some(0));
    assert_eq!(check(&["good.jsonl", "none.jsonl"]).0, Some(4));
    let (code, said) = check(&["none.jsonl", "bad.jsonl", "good.jsonl"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("error[no_rows]: none.jsonl has no rows"), "{said}");
    assert!(said.ends_with("good.jsonl: 2 rows, 0 bad, 0 blank lines\n"), "{said}");
    let (code, said) = check(&["gone.jsonl", "good.jsonl"]);
    assert!(code == Some(2) && said.contains("error[input]: cannot read gone.jsonl: "), "{said}");
    assert_eq!(check(&["-"]).0, Some(4), "standard input, here empty");
    assert_eq!(check(&[]).0, Some(2), "nothing to check");
}

#[test]
fn flags_of_the_input_are_those_of_run() {
    let table = "name,age\nAnn,7\nBob\n";
    let chats = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n";
    let folder = folder(&[("t.txt", table), ("c.jsonl", chats)]);
    let check = |flags: &[&str]| check(folder.path(), flags).0;
    assert_eq!(check(&["t.txt"]), Some(0), "lines of text");
    let template = ["--format", "csv", "--template", "Hi {{name}}", "t.txt"];
    assert_eq!(check(&template), Some(2), "the last row has one cell");
    assert_eq!(check(&[&["--limit", "1"], &template[..]].concat()), Some(0));
    assert_eq!(check(&["--format", "csv", "t.txt"]), Some(2), "no prompt column");
    assert_eq!(
        check(&["--format", "csv", "--prompt-column", "name", "--limit", "1", "t.txt"]),
        Some(0)
    );
    assert_eq!(
        (check(&["--chat", "c.jsonl"]), check(&["--no-chat", "c.jsonl"])),
        (Some(0), Some(2))
    );
}

/// Rows of the same bytes, in any wrapping, whatever the name says.
#[test]
fn run_and_bench_take_compressed_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrapped = |name: &str, compression: Compression, text: &str| {
        let mut bytes = Vec::new();
        text.split_inclusive('\n').for_each(|row| compression.encode(row.as_bytes(), &mut bytes));
        fs::write(folder.path().join(name), bytes).expect("written");
    };
    wrapped("plain.jsonl", Compression::None, GOOD);
    wrapped("rows.jsonl.gz", Compression::Gzip, GOOD);
    wrapped("rows.data", Compression::Zstd, GOOD);
    wrapped("rows.csv.zst", Compression::Zstd, "id,prompt\n1,a\n2,b\n");
    let run = |name: &str| {
        let flags =
            ["run", "--model", TINY, "--max-tokens", "4", "--device", "cpu", "-q", "-i", name];
        let output = vllm_batch(folder.path(), &flags);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let plain = run("plain.jsonl");
    assert_eq!(run("rows.jsonl.gz"), plain);
    assert_eq!(run("rows.data"), plain);
    assert!(run("rows.csv.zst").starts_with(b"id,prompt,response,"));
    let flags = ["bench", "--model", TINY, "--dataset", "rows.jsonl.gz", "--output-len", "4"];
    let output = vllm_batch(folder.path(), &[&flags[..], &["--device", "cpu"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));

    let mut cut = fs::read(folder.path().join("rows.jsonl.gz")).expect("written");
    cut.truncate(cut.len() - 3);
    fs::write(folder.path().join("cut.jsonl.gz"), cut).expect("written");
    let output = vllm_batch(
        folder.path(),
        &["run", "--model", TINY, "--device", "cpu", "-i", "cut.jsonl.gz"],
    );
    let said = String::from_utf8(output.stderr).expect("text");
    let wanted = "error[input]: cannot read cut.jsonl.gz: the gzip data is cut off, after line 2";
    assert!(output.status.code() == Some(5) && said.contains(wanted), "{said}");
    let rows = String::from_utf8(output.stdout).expect("text");
    assert_eq!(rows.lines().count(), 2, "what was read is answered: {said}");
}

#[test]
fn slips_and_other_shapes_are_said_once_and_counted() {
    let rows = concat!(
        "{\"prompt\":\"a\",\"temprature\":0}\n",
        "{\"prompt\":[1,2]}\n",
        "{\"prompt\":\"a\",\"temprature\":0,\"max_new_tokens\":5}\n",
        "{\"prompt\":[3]}\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"score\":1}\n",
    );
    let folder = folder(&[("rows.jsonl", rows)]);
    let (code, said) = check(folder.path(), &["rows.jsonl"]);
    let expected = "rows.jsonl: rows are `prompt` text, completed as text (--chat sends a user turn)\n\
        rows.jsonl: line 1: `temprature` is no parameter and passes through; did you mean \
        `temperature`?\n\
        rows.jsonl: line 2: the row is one of `prompt` token ids, unlike the first; such rows are used as \
        they are\n\
        rows.jsonl: line 3: `max_new_tokens` is no parameter and passes through; did you mean \
        `max_tokens`?\n\
        rows.jsonl: line 5: the row is one of chat `messages`, unlike the first; such rows are rendered \
        with the chat template\n\
        rows.jsonl: 2 rows have `temprature`; did you mean `temperature`?\n\
        rows.jsonl: 2 rows are `prompt` token ids, used as they are, unlike the first\n\
        rows.jsonl: 5 rows, 0 bad, 0 blank lines\n";
    assert_eq!((code, said.as_str()), (Some(0), expected));
}

#[test]
fn the_note_on_batch_requests_says_how_they_are_sent() {
    let row =
        r#"{"custom_id":"a","params":{"max_tokens":9,"messages":[{"role":"user","content":"a"}]}}"#;
    let folder = folder(&[("rows.jsonl", row)]);
    let (code, said) = check(folder.path(), &["rows.jsonl"]);
    let note = "rows.jsonl: rows are Anthropic batch requests, rendered with the chat template\n";
    assert!(code == Some(0) && said.starts_with(note), "{said}");
}

#[test]
fn chats_with_a_last_answer_are_bad_only_where_that_is_asked_for() {
    let row = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    let folder = folder(&[("rows.jsonl", row)]);
    assert_eq!(check(folder.path(), &["rows.jsonl"]).0, Some(0));
    let (code, said) = check(folder.path(), &["--last-assistant", "error", "rows.jsonl"]);
    assert!(code == Some(2) && said.contains("error[last_assistant]: rows.jsonl:1:"), "{said}");
}
