//! `diff` as users meet it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Two files in a folder, and their differences.
struct Pair {
    folder: TempDir,
    names: [&'static str; 2],
}

impl Pair {
    fn new(names: [&'static str; 2], contents: [&str; 2]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in names.iter().zip(contents) {
            fs::write(folder.path().join(name), content).unwrap();
        }
        Self { folder, names }
    }

    fn jsonl(a: &str, b: &str) -> Self {
        Self::new(["a.jsonl", "b.jsonl"], [a, b])
    }

    fn diff(&self, flags: &[&str]) -> Output {
        command(self.folder.path(), &self.names).args(flags).output().unwrap()
    }

    #[track_caller]
    fn assert_text(&self, flags: &[&str], exit: i32, wanted: &str) {
        let output = self.diff(flags);
        assert_eq!(output.status.code(), Some(exit), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), wanted);
    }

    /// The objects of `--json`.
    #[track_caller]
    fn json(&self, flags: &[&str], exit: i32) -> Vec<Value> {
        let output = self.diff(&[&["--json"], flags].concat());
        assert_eq!(output.status.code(), Some(exit), "{}", text(&output.stderr));
        assert!(text(&output.stderr).starts_with("Rows: "), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}

fn command(folder: &Path, names: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
    command.current_dir(folder).arg("diff").args(names);
    command
}

fn row(id: usize, response: &str) -> String {
    format!("{}\n", json!({"id": id, "response": response, "finish_reason": "stop"}))
}

fn full(id: usize, outputs: &[(&str, &[u32], &str)]) -> String {
    let part = |output: &(&str, &[u32], &str)| {
        let (text, token_ids, reason) = output;
        json!({"text": text, "token_ids": token_ids, "finish_reason": reason})
    };
    let parts: Vec<Value> = outputs.iter().map(part).collect();
    let (response, reason) = (outputs[0].0, outputs[0].2);
    let row = json!({"id": id, "response": response, "finish_reason": reason, "outputs": parts});
    format!("{row}\n")
}

#[test]
fn equal_outputs_exit_0() {
    let rows: String = (0..50).map(|id| row(id, "a")).collect();
    let summary = "Rows: 50 equal, 0 different, 0 only in A, 0 only in B\n";
    for flags in [&[][..], &["--by-id"]] {
        Pair::jsonl(&rows, &rows).assert_text(flags, 0, summary);
    }
    let none = "Rows: 0 equal, 0 different, 0 only in A, 0 only in B\n";
    Pair::jsonl("", "").assert_text(&[], 0, none);
    Pair::new(["a.csv", "b.csv"], ["", ""]).assert_text(&[], 0, none);
}

#[test]
fn the_first_differing_character_is_shown_and_the_terminal_is_safe() {
    let (a, b) = ("é quick\nbrown fox", "é quick\nbrown\u{1b}[2J\u{202e} dog");
    let pair = Pair::jsonl(&(row(1, "x") + &row(7, a)), &(row(1, "x") + &row(7, b)));
    let wanted = "--- a.jsonl\n+++ b.jsonl\nline 2, id 7: character 13 (byte 14)\n  \
                  - é quick\\nbrown fox\n  + é quick\\nbrown\\u{1b}[2J\u{fffd} dog\n    \
                  \u{20}             ^\n\
                  Rows: 1 equal, 1 different, 0 only in A, 0 only in B\n";
    pair.assert_text(&[], 100, wanted);
    let found = pair.json(&[], 100);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["text"]["byte"], 14);
    assert_eq!((&found[0]["line_a"], &found[0]["id"]), (&json!(2), &json!("7")));
}

#[test]
fn the_first_differing_token_is_named() {
    let a = full(1, &[("ab", &[5, 6, 7], "stop")]);
    let b = full(1, &[("ac", &[5, 8], "length")]);
    let head = "--- a.jsonl\n+++ b.jsonl\n";
    let tail = "Rows: 0 equal, 1 different, 0 only in A, 0 only in B\n";
    let wanted = format!(
        "{head}line 1, id 1: token 1: 6 and 8; character 1 (byte 1); finish_reason stop and \
         length\n  - ab\n  + ac\n     ^\n{tail}"
    );
    Pair::jsonl(&a, &b).assert_text(&[], 100, &wanted);
    // The same text of other tokens, and one that is longer.
    let b = full(1, &[("ab", &[5, 6], "stop")]);
    let wanted = format!("{head}line 1, id 1: token 2: 7 and the end\n{tail}");
    Pair::jsonl(&a, &b).assert_text(&[], 100, &wanted);
    // The second completion; one completion more.
    let a = full(1, &[("ab", &[5], "stop"), ("c", &[6], "stop")]);
    let b = full(1, &[("ab", &[5], "stop"), ("c", &[9], "stop"), ("d", &[1], "stop")]);
    let wanted = format!("{head}line 1, id 1: output 1, token 0: 6 and 9; 2 and 3 outputs\n{tail}");
    Pair::jsonl(&a, &b).assert_text(&[], 100, &wanted);
    let found = Pair::jsonl(&a, &b).json(&[], 100).remove(0);
    assert_eq!(found["token"], json!({"index": 0, "a": 6, "b": 9}));
    assert_eq!(found["num_outputs"], json!({"a": 2, "b": 3}));
    // Tokens of one side only: the text decides.
    let simple = row(1, "ab");
    let a = full(1, &[("ab", &[5], "stop")]);
    let wanted = "Rows: 1 equal (1 of them differ outside of the answer), 0 different, 0 only in A, \
                  0 only in B\n";
    Pair::jsonl(&a, &simple).assert_text(&[], 0, wanted);
}

#[test]
fn errors_and_answers() {
    let failed = |message: &str| {
        let error = json!({"code": "context_length", "message": message});
        let row = json!({"id": 1, "response": null, "finish_reason": "error", "error": error});
        format!("{row}\n")
    };
    let wanted = "--- a.jsonl\n+++ b.jsonl\nline 1, id 1: an answer and error `context_length: \
                  long`\nRows: 0 equal, 1 different, 0 only in A, 0 only in B\n";
    Pair::jsonl(&row(1, "a"), &failed("long")).assert_text(&[], 100, wanted);
    let found = Pair::jsonl(&failed("long"), &failed("longer")).json(&[], 100);
    let errors = json!({"a": "context_length: long", "b": "context_length: longer"});
    assert_eq!(found[0]["errors"], errors);
    assert!(Pair::jsonl(&failed("long"), &failed("long")).json(&[], 0).is_empty());
}

#[test]
fn rows_of_one_file_only_are_counted() {
    let rows = |ids: &[usize]| ids.iter().map(|id| row(*id, "a")).collect::<String>();
    let pair = Pair::jsonl(&rows(&[1, 2, 3, 4]), &rows(&[1]));
    let wanted = "--- a.jsonl\n+++ b.jsonl\nline 2, id 2: only in A\nline 3, id 3: only in A\n\
                  ... and 1 more rows: --max-shown\n\
                  Rows: 1 equal, 0 different, 3 only in A, 0 only in B\n";
    pair.assert_text(&["--max-shown", "2"], 100, wanted);
    assert_eq!(pair.json(&[], 100).len(), 3);
    assert_eq!(pair.json(&["--max-shown", "1"], 100).len(), 1);
    let found = Pair::jsonl("", &rows(&[5])).json(&[], 100);
    let expected = json!({"kind": "only_in_b", "line_a": null, "line_b": 1, "id": "5"});
    assert_eq!(found, [expected]);
}

#[test]
fn people_see_twenty_rows_and_programs_all() {
    let rows = |answer: &str| (0..30).map(|id| row(id, answer)).collect::<String>();
    let pair = Pair::jsonl(&rows("a"), &rows("b"));
    let output = pair.diff(&[]);
    let shown = text(&output.stdout);
    assert_eq!(shown.matches("\nline ").count(), 20);
    assert!(shown.contains("\n... and 10 more rows: --max-shown\nRows: 0 equal, 30 different"));
    assert_eq!(pair.json(&[], 100).len(), 30);
}

#[test]
fn another_order_needs_by_id() {
    let rows =
        |ids: &[usize]| ids.iter().map(|id| row(*id, &format!("answer {id}"))).collect::<String>();
    let pair = Pair::jsonl(&rows(&[1, 2, 3, 4, 5]), &rows(&[5, 3, 1, 2, 6]));
    let output = pair.diff(&[]);
    assert_eq!(output.status.code(), Some(100));
    let shown = text(&output.stdout);
    assert!(shown.contains("line 1, id 1: ids 1 and 5: not the same row; character 7"), "{shown}");
    assert!(text(&output.stderr).contains("--by-id pairs them by id"));
    let wanted = "--- a.jsonl\n+++ b.jsonl\nline 4, id 4: only in A\nline 5, id 6: only in B\n\
                  Rows: 4 equal, 0 different, 1 only in A, 1 only in B\n";
    pair.assert_text(&["--by-id"], 100, wanted);
}

#[test]
fn equal_ids_are_paired_in_their_order() {
    let (a, b) = (["x", "y", "z"], ["z", "x", "y"]);
    let rows = |answers: [&str; 3]| answers.map(|answer| row(1, answer)).concat();
    let without = "{\"response\":\"n\"}\n";
    let (a, b) = (rows(a) + without, without.to_owned() + &rows(b));
    let found = Pair::jsonl(&a, &b).json(&["--by-id"], 100);
    let lines: Vec<_> = found.iter().map(|row| (&row["line_a"], &row["line_b"])).collect();
    let expected = [(json!(1), json!(2)), (json!(2), json!(3)), (json!(3), json!(4))];
    assert_eq!(lines, expected.each_ref().map(|(a, b)| (a, b)));
}

#[test]
fn openai_lines_csv_and_ours_are_compared_with_each_other() {
    let openai = |id: usize, answer: &str| {
        let message = json!({"role": "assistant", "content": answer});
        let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
        let response = json!({"status_code": 200, "body": body});
        let (request, id) = (format!("batch_req_{}", 9 - id), id.to_string());
        format!(
            "{}\n",
            json!({"id": request, "custom_id": id, "response": response, "error": null})
        )
    };
    let ours = row(1, "a\nb") + &row(2, "c");
    let theirs = openai(2, "c") + &openai(1, "a\nb");
    let csv = "id,response,finish_reason,prompt_tokens,error\r\n\
               1,\"a\nb\",stop,3,\r\n2,C,stop,3,\r\n";
    let equal = "Rows: 2 equal, 0 different, 0 only in A, 0 only in B\n";
    let pair = Pair::jsonl(&ours, &theirs);
    let summary = "Rows: 2 equal (2 of them differ outside of the answer), 0 different, 0 only in \
                   A, 0 only in B\n";
    pair.assert_text(&["--by-id"], 0, summary);
    let pair = Pair::new(["a.jsonl", "b.csv"], [&ours, csv]);
    let wanted = "--- a.jsonl\n+++ b.csv\nlines 2 and 4, id 2: character 0 (byte 0)\n  - c\n  + C\n    \
                  ^\nRows: 1 equal, 1 different, 0 only in A, 0 only in B\n";
    pair.assert_text(&[], 100, wanted);
    let same = Pair::new(["a.jsonl", "b.csv"], [&ours, &csv.replace('C', "c")]);
    same.assert_text(&[], 0, equal);
    let tsv = csv.replace(',', "\t");
    Pair::new(["a.tsv", "b.csv"], [&tsv, csv]).assert_text(&["--by-id"], 0, equal);
}

#[test]
fn another_field() {
    let (a, b) = ("{\"score\":0.5,\"response\":\"a\"}\n", "{\"score\":0.25,\"response\":\"a\"}\n");
    let pair = Pair::jsonl(a, b);
    assert_eq!(pair.diff(&[]).status.code(), Some(0));
    let found = pair.json(&["--field", "score"], 100);
    assert_eq!(found[0]["text"]["a"], "0.5");
}

#[test]
fn what_cannot_be_compared_exits_2() {
    let good = row(1, "a");
    let refused = |pair: &Pair, flags: &[&str], wanted: &str| {
        let output = pair.diff(flags);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        let errors = text(&output.stderr);
        assert!(errors.contains(wanted), "{errors}");
    };
    let bad = format!("{good}{{\"id\":1 2}}\n");
    let two = format!("{good}{good}");
    refused(&Pair::jsonl(&two, &bad), &[], "error[bad_json]: b.jsonl:2:9: expected");
    refused(&Pair::jsonl(&good, "{\"a\":1}\n"), &[], "error[no_field]: b.jsonl:1: the row has no");
    let flags = ["--field", "answer"];
    refused(&Pair::jsonl(&good, &two.replace("\"a\"", "1")), &flags, "no field `answer`\nhelp: ");
    let csv = Pair::new(["a.csv", "b.csv"], ["id,text\n1,a\n", "id,response\n1,a\n"]);
    refused(&csv, &[], "a.csv has no column `response`; it has id, text");
    let ragged = Pair::new(["a.csv", "b.csv"], ["id,response\n1\n", "id,response\n1,a\n"]);
    refused(&ragged, &[], "error[bad_csv]: a.csv:2: the row has 1 cells, the header has 2");
    let pair = Pair::jsonl(&good, &good);
    fs::remove_file(pair.folder.path().join("b.jsonl")).unwrap();
    refused(&pair, &[], "cannot read b.jsonl: No such file");
    // What was found before is shown.
    let output = Pair::jsonl(&two, &(row(1, "b") + "{")).diff(&[]);
    assert!(text(&output.stdout).contains("line 1, id 1: character 0"));
}

#[test]
fn a_reader_that_went_away_exits_141() {
    let rows = |answer: &str| (0..20_000).map(|id| row(id, answer)).collect::<String>();
    let pair = Pair::jsonl(&rows("a"), &rows("b"));
    let mut command = command(pair.folder.path(), &pair.names);
    let mut child =
        command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), ""));
}

#[test]
fn help_names_the_exit_codes() {
    for command in ["merge", "diff"] {
        let mut program = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
        let output = program.args([command, "--help"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let help = text(&output.stdout);
        assert!(help.contains("Examples:") && help.contains("Exit codes:"), "{help}");
        assert_eq!(help.contains("100 some differ"), command == "diff");
    }
}

#[test]
fn one_of_two_outputs_may_be_standard_input() {
    let row = "{\"id\":1,\"response\":\"a\"}\n";
    let pair = Pair::jsonl(row, row);
    for names in [["-", "b.jsonl"], ["b.jsonl", "-"]] {
        let stdin = fs::File::open(pair.folder.path().join("a.jsonl")).unwrap();
        let output = command(pair.folder.path(), &names).stdin(stdin).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let output = command(pair.folder.path(), &["-", "-"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = "error[input]: both outputs are standard input\nhelp: name a file for one";
    assert!(text(&output.stderr).starts_with(message), "{}", text(&output.stderr));
}

/// Colours as git's: what A alone has is red, what B alone has is green.
#[test]
fn colours_come_where_they_are_asked_for() {
    let pair = Pair::jsonl(&(row(1, "ab") + &row(2, "c")), &row(1, "ad"));
    let painted = pair.diff(&["--color", "always"]);
    let painted = text(&painted.stdout);
    for wanted in [
        "\x1b[1m--- a.jsonl\x1b[0m\n",
        "\x1b[31m- ab\x1b[0m\n",
        "\x1b[32m+ ad\x1b[0m\n",
        "\x1b[31mline 2, id 2: only in A\x1b[0m\n",
    ] {
        assert!(painted.contains(wanted), "{wanted:?} in {painted:?}");
    }
    // A pipe has none, nor has JSON, nor one who wants none.
    let plain = pair.diff(&[]);
    assert!(!text(&plain.stdout).contains('\x1b'), "{}", text(&plain.stdout));
    let json = pair.diff(&["--color", "always", "--json"]);
    assert!(!text(&json.stdout).contains('\x1b'), "{}", text(&json.stdout));
    let forced = |variables: &[(&str, &str)]| {
        let mut command = command(pair.folder.path(), &pair.names);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        text(&output.stdout).contains('\x1b')
    };
    assert!(forced(&[("FORCE_COLOR", "1")]));
    assert!(!forced(&[("FORCE_COLOR", "1"), ("NO_COLOR", "1")]));
}
