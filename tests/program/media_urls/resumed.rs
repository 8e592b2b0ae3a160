//! Runs over images at URLs that were killed: whether the same command asks for the images of
//! finished rows again, and what it does with those that have changed.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{ALLOWED, SEES, Said, Server, codes, program, rows};
use crate::images::picture;
use crate::resume::journal;
use crate::resume::program::kill;

/// Rows that finish before the run is killed.
const NUM_ROWS: usize = 6;

const RUN: [&str; 13] = [
    "run",
    "--model",
    SEES,
    "--max-tokens",
    "4",
    "--temperature",
    "1",
    "-o",
    "out.jsonl",
    "--format",
    "jsonl",
    "--stats",
    "stats.json",
];

/// What a row asks, beside its image.
fn row(id: usize, prompt: &str, url: &str) -> String {
    format!("{}\n", json!({"id": id, "prompt": prompt, "image": url}))
}

/// A folder with rows, each of its own image, and a last one whose image never comes.
fn folder(server: &Server) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for id in 0..NUM_ROWS {
        server.draw(&format!("/{id}"), picture(9 + id as u32, id as u32));
        lines += &row(id, "What is it?", &server.url(&format!("/{id}")));
    }
    lines += &row(NUM_ROWS, "What is it?", &server.url("/never"));
    fs::write(folder.path().join("in.jsonl"), lines).unwrap();
    folder
}

/// Runs until all rows but the last are in the journal, and kills the process.
fn kill_at_the_last_row(folder: &Path) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(RUN).args(["-q", "-i", "-"]).args(ALLOWED).current_dir(folder);
    // As a pipe: a row is answered before the next is read.
    let child = command.stdin(File::open(folder.join("in.jsonl")).unwrap()).spawn().unwrap();
    let begun = Instant::now();
    while journal::num_rows(&folder.join("out.jsonl.journal")) < NUM_ROWS {
        assert!(begun.elapsed() < Duration::from_secs(300), "rows do not finish");
        sleep(Duration::from_millis(20));
    }
    kill(child).map(drop).unwrap_or_else(|_| panic!("it had ended"));
}

fn resume(folder: &Path, flags: &[&str]) -> Said {
    program(folder, &[&RUN[..], &["-i", "in.jsonl"], &ALLOWED, flags].concat())
}

/// Rows that the last run took over.
fn num_reused(folder: &Path) -> u64 {
    let text = fs::read_to_string(folder.join("stats.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["rows"]["reused"].as_u64().unwrap()
}

fn responses(folder: &Path, name: &str) -> Vec<Value> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    rows(&text).iter().map(|row| row["response"].clone()).collect()
}

/// Gives the last row an image, and says what a run from the beginning answers.
fn straight(folder: &Path, server: &Server) -> Vec<Value> {
    server.draw("/never", picture(20, 99));
    let flags = ["--out", "straight.jsonl", "--stats", "other.json"];
    let said = resume(folder, &flags);
    assert_eq!(said.code, 0, "{}", said.errors);
    server.take_asked();
    responses(folder, "straight.jsonl")
}

const TRUST: [&str; 2] = ["--on-resume-media", "trust"];

#[test]
fn images_are_fetched_again_and_a_changed_one_is_a_changed_row() {
    let server = Server::start();
    let folder = folder(&server);
    kill_at_the_last_row(folder.path());
    let before = responses_of_journal(folder.path());
    server.draw("/2", picture(30, 77));
    let expected = straight(folder.path(), &server);
    let said = resume(folder.path(), &["--on-resume-media", "refetch"]);
    assert_eq!(said.code, 0, "{}", said.errors);
    assert_eq!(num_reused(folder.path()), NUM_ROWS as u64 - 1, "{}", said.errors);
    assert_eq!(server.take_asked().len(), NUM_ROWS + 1);
    let after = responses(folder.path(), "out.jsonl");
    assert_eq!(after, expected);
    let changed: Vec<_> = (0..NUM_ROWS).filter(|id| after[*id] != before[*id]).collect();
    assert_eq!(changed, [2]);
}

/// Answers of finished rows, in the order of the input.
fn responses_of_journal(folder: &Path) -> Vec<Value> {
    let mut rows = journal::rows(&folder.join("out.jsonl.journal"));
    rows.sort_by_key(|row| row.position);
    let response = |row: &journal::Journaled| {
        serde_json::from_slice::<Value>(&row.row).unwrap()["response"].clone()
    };
    rows.iter().map(response).collect()
}

#[test]
fn finished_rows_are_trusted_and_no_image_of_theirs_is_asked_for() {
    let server = Server::start();
    let folder = folder(&server);
    kill_at_the_last_row(folder.path());
    let before = responses_of_journal(folder.path());
    server.draw("/2", picture(30, 77));
    server.draw("/never", picture(20, 99));
    server.take_asked();
    let said = resume(folder.path(), &TRUST);
    assert_eq!(said.code, 0, "{}", said.errors);
    assert_eq!(num_reused(folder.path()), NUM_ROWS as u64, "{}", said.errors);
    let asked = server.take_asked();
    assert_eq!(asked, [("/never".to_owned(), 1)].into(), "{}", said.errors);
    assert_eq!(responses(folder.path(), "out.jsonl")[..NUM_ROWS], before);
}

#[test]
fn a_complete_output_is_trusted_by_the_texts_of_its_rows() {
    let server = Server::start();
    let folder = folder(&server);
    server.draw("/never", picture(20, 99));
    assert_eq!(resume(folder.path(), &[]).code, 0);
    server.draw("/2", picture(30, 77));
    server.take_asked();
    let said = resume(folder.path(), &TRUST);
    assert!(said.code == 0 && said.errors.contains("Nothing to do"), "{}", said.errors);
    assert!(server.take_asked().is_empty());
    // Without it a changed image is a changed input, and so is a changed text with it.
    let said = resume(folder.path(), &[]);
    assert!(said.code == 6 && said.errors.contains("--retry-failed"), "{}", said.errors);
    let text = fs::read_to_string(folder.path().join("in.jsonl")).unwrap();
    fs::write(folder.path().join("in.jsonl"), text.replacen("What", "Who", 1)).unwrap();
    let said = resume(folder.path(), &TRUST);
    assert_eq!(said.code, 6, "{}", said.errors);
}

/// Images of rows behind one that is asked are decoded ahead, unless they are known.
#[test]
fn a_row_that_is_asked_again_asks_for_no_image_of_others() {
    let server = Server::start();
    let folder = folder(&server);
    kill_at_the_last_row(folder.path());
    let text = fs::read_to_string(folder.path().join("in.jsonl")).unwrap();
    let (_, others) = text.split_once('\n').unwrap();
    let edited = row(0, "What else is it?", &server.url("/0")) + others;
    fs::write(folder.path().join("in.jsonl"), edited).unwrap();
    server.draw("/never", picture(20, 99));
    server.take_asked();
    let said = resume(folder.path(), &TRUST);
    assert_eq!((said.code, num_reused(folder.path())), (0, NUM_ROWS as u64 - 1), "{}", said.errors);
    assert_eq!(server.take_asked(), [("/0".to_owned(), 1), ("/never".to_owned(), 1)].into());
}

/// A row with other words is another one, whatever is known of its image; and so is a row of which
/// nothing is known.
#[test]
fn a_server_that_is_gone_is_missed_by_rows_that_are_not_finished() {
    let server = Server::start();
    let folder = folder(&server);
    kill_at_the_last_row(folder.path());
    let before = responses_of_journal(folder.path());
    let text = fs::read_to_string(folder.path().join("in.jsonl")).unwrap();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let edited = row(1, "What else is it?", &server.url("/1"));
    lines[1] = &edited;
    fs::write(folder.path().join("in.jsonl"), lines.concat()).unwrap();
    server.take_asked();
    server.set_gone(true);
    let said = resume(folder.path(), &TRUST);
    assert_eq!(said.code, 3, "{}", said.errors);
    let out = fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
    let found = codes(&out);
    for (id, found) in found.iter().enumerate() {
        let expected = if [1, NUM_ROWS].contains(&id) { "media_unavailable" } else { "ok" };
        assert_eq!(found, expected, "row {id}: {out}");
    }
    let mut asked: Vec<_> = server.take_asked().into_keys().collect();
    asked.sort();
    assert_eq!(asked, ["/1", "/never"]);
    let after = responses(folder.path(), "out.jsonl");
    assert!((0..NUM_ROWS).all(|id| id == 1 || after[id] == before[id]));
}

/// The numbers of sampled rows without a name are part of what was asked. Where such a row has
/// another place its image is needed again, and is what it was or an error row.
#[test]
fn a_row_that_is_computed_again_has_the_image_that_is_known_or_none() {
    let server = Server::start();
    let folder = folder(&server);
    let path = folder.path();
    let without_ids = |skipped: usize| {
        let text: String = (skipped..=NUM_ROWS)
            .map(|id| {
                let name = if id == NUM_ROWS { "/never".into() } else { format!("/{id}") };
                format!("{}\n", json!({"prompt": "What?", "image": server.url(&name)}))
            })
            .collect();
        fs::write(path.join("in.jsonl"), text).unwrap();
    };
    without_ids(0);
    kill_at_the_last_row(path);
    // Every row is one place nearer to the beginning.
    without_ids(1);
    server.draw("/never", picture(20, 99));
    server.draw("/2", picture(30, 77));
    server.take_asked();
    let said = resume(path, &TRUST);
    assert_eq!((said.code, num_reused(path)), (3, 0), "{}", said.errors);
    let found = codes(&fs::read_to_string(path.join("out.jsonl")).unwrap());
    assert_eq!(found, ["ok", "media_changed", "ok", "ok", "ok", "ok"]);
    assert_eq!(server.take_asked().len(), NUM_ROWS);
}

#[test]
fn what_is_trusted_is_an_image_at_a_url() {
    let server = Server::start();
    let folder = folder(&server);
    let flags = [&RUN[..], &["-i", "in.jsonl"], &TRUST].concat();
    let said = program(folder.path(), &flags);
    assert!(said.code == 2 && said.errors.contains("--allow-media-urls"), "{}", said.errors);
}
