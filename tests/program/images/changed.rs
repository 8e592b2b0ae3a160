//! A row is its text and the bytes of its images: what a run does with files that have changed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{DEMO, SEES, answers, beside, codes, folder, picture, program, rows, seen_rows};

/// Rows that a run took over.
fn num_reused(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["rows"]["reused"].as_u64().unwrap()
}

#[test]
fn a_changed_file_is_a_changed_row_of_the_journal() {
    let folder = folder(&[
        beside("a.png"),
        beside("b.png"),
        beside("no.png"),
        json!({"prompt": 5}),
        json!({"prompt": "2+3="}),
    ]);
    let path = folder.path();
    let start = |flags: &[&str]| {
        let always = ["run", "--model", DEMO, "-i", "data/in.jsonl", "--max-tokens", "4"];
        let side = ["--stats", "stats.json", "-o", "out.jsonl"];
        program(path, &[&always[..], &side, flags].concat())
    };
    // Four error rows end the run, and are in its journal.
    let again = || {
        let said = start(&["--max-errors", "3"]);
        assert_eq!(said.code, 5, "{}", said.errors);
        let text = fs::read_to_string(path.join("stats.json")).unwrap();
        let stats: Value = serde_json::from_str(&text).unwrap();
        (num_reused(path), stats["rows"]["by_code"]["media_not_found"] == 1)
    };
    assert_eq!(again(), (0, true));
    assert_eq!(again(), (4, true));
    fs::write(path.join("data/b.png"), picture(5, 9)).unwrap();
    assert_eq!(again(), (3, true), "one picture is another");
    // The same bytes under the same name are the same row, whenever they were written.
    fs::write(path.join("data/a.png"), picture(4, 1)).unwrap();
    assert_eq!(again(), (4, true));
    fs::write(path.join("data/no.png"), "no picture").unwrap();
    assert_eq!(again(), (3, false), "it fails for another reason");
    fs::write(path.join("data/no.png"), picture(4, 4)).unwrap();
    assert_eq!(again(), (3, false));
    assert_eq!(start(&[]).code, 3);
    let found = codes(&fs::read_to_string(path.join("out.jsonl")).unwrap());
    assert_eq!((&found[2], found[4].as_str()), (&found[0], "ok"), "{found:?}");
}

#[test]
fn a_complete_output_is_that_of_its_images() {
    let text = json!({"prompt": "2+3="});
    let folder = folder(&[text.clone(), beside("a.png"), beside("no.png"), text]);
    let path = folder.path();
    let again = |flags: &[&str]| {
        let always = ["run", "--model", DEMO, "-i", "data/in.jsonl", "--max-tokens", "4"];
        let side = ["--stats", "stats.json", "-o", "out.jsonl"];
        program(path, &[&always[..], &side, flags].concat())
    };
    let out = || fs::read_to_string(path.join("out.jsonl")).unwrap();
    assert_eq!(again(&[]).code, 3);
    let first = codes(&out());
    assert_eq!(first[2], "media_not_found");
    let said = again(&[]);
    assert!(said.errors.contains("Nothing to do"), "{}", said.errors);
    // A file that has come is asked for by `--retry-failed` alone, like any failed row.
    fs::write(path.join("data/no.png"), picture(4, 4)).unwrap();
    let said = again(&[]);
    assert!(said.code == 3 && said.errors.contains("Nothing to do"), "{}", said.errors);
    let said = again(&["--retry-failed"]);
    assert_eq!(num_reused(path), 2, "{}", said.errors);
    assert_eq!(codes(&out())[2], first[1]);
    // Another picture under the same name is another input.
    fs::write(path.join("data/a.png"), picture(4, 8)).unwrap();
    let said = again(&[]);
    assert!(said.code == 6 && said.errors.contains("--retry-failed"), "{}", said.errors);
    let said = again(&["--retry-failed"]);
    assert_eq!(said.code, 3, "{}", said.errors);
    assert!(again(&[]).errors.contains("Nothing to do"));
}

#[test]
fn a_continued_run_computes_the_rows_of_a_changed_picture_again() {
    let folder = folder(&seen_rows());
    let data = folder.path().join("data");
    fs::write(data.join("c.png"), picture(37, 9)).unwrap();
    let before = answers(folder.path(), &[]);
    let lines = fs::read_to_string(data.join("in.jsonl")).unwrap();
    // A row that ends the run, in the place of the last one.
    let cut = lines.lines().take(15).map(|line| format!("{line}\n")).collect::<String>();
    fs::write(data.join("in.jsonl"), cut + "{broken\n").unwrap();
    let run = |max_errors: &str| {
        let model = ["run", "--model", SEES, "-i", "data/in.jsonl", "-o", "out.jsonl"];
        let flags = ["--max-tokens", "6", "--max-errors", max_errors];
        program(folder.path(), &[&model[..], &flags].concat())
    };
    let stopped = run("0");
    assert_ne!(stopped.code, 0, "{}", stopped.errors);
    fs::write(data.join("c.png"), picture(37, 10)).unwrap();
    fs::write(data.join("in.jsonl"), &lines).unwrap();
    let ended = run("0");
    assert_eq!(ended.code, 0, "{}", ended.errors);
    let after = rows(&fs::read_to_string(folder.path().join("out.jsonl")).unwrap());
    assert_eq!(after, answers(folder.path(), &[]));
    let changed = after.iter().zip(&before).enumerate().filter(|(_, (a, b))| a != b);
    assert_eq!(changed.map(|(id, _)| id).collect::<Vec<_>>(), [3, 7, 11, 15]);
}
