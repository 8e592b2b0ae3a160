//! SIGINT and SIGTERM: the run ends in order, says what is kept, and the same command continues.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::random::Random;
use crate::resume::journal;
use crate::resume::program::{
    Ended, Held, finish, finish_with, num_reused, run, run_of, signal, wait, wait_for_exit,
    wait_for_rows,
};
use crate::resume::rows::{long_rows, rows};
use crate::resume::work::{Expected, Left, Work};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/demo");

/// Interruptions by each signal.
const NUM_STOPS: usize = 10;

/// What a run says that a signal ended.
fn assert_interrupted(ended: &Ended, name: &str, num_rows: usize) {
    ended.assert_exit(if name == "INT" { 130 } else { 143 });
    let rows = if num_rows == 1 { "1 row".to_owned() } else { format!("{num_rows} rows") };
    ended.assert_says(&format!(
        "error[interrupted]: stopped by SIG{name}\n\
         help: {rows} finished and kept in out.jsonl.journal; the same command continues\n"
    ));
}

/// After an end in order a part has every row that stands in order, and whole lines alone.
fn assert_part(work: &Work, folder: &Path) {
    let finished = journal::positions(&journal::rows(&work.journal(folder)));
    let in_order = (0..).zip(&finished).take_while(|(wanted, found)| wanted == *found).count();
    let part = fs::read(folder.join("out.jsonl.part")).unwrap_or_default();
    assert_eq!(part.iter().filter(|byte| **byte == b'\n').count(), in_order);
    assert!(part.is_empty() || part.ends_with(b"\n"), "whole lines");
}

/// Continues, and looks at what is said of it.
fn assert_continues(work: &Work, expected: &Expected, folder: &Path, left: &Left) {
    let ended = finish_with(&mut work.command_over_stdin(folder), work.rows.concat().as_bytes());
    expected.assert_complete(work, folder, &ended);
    work.assert_taken_over(folder, &ended, left);
    let rows = match left.journaled {
        1 => "1 finished row\n".to_owned(),
        number => format!("{number} finished rows\n"),
    };
    ended.assert_says(&format!("Continuing a run with {rows}"));
    ended.assert_says("Taken over from the run before: ");
}

fn stops(name: &str, seed: u64) {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let work = Work::sampled(rows(3, 100, true));
    let expected = work.undisturbed();
    for _ in 0..NUM_STOPS {
        let folder = work.folder();
        let folder = folder.path();
        // All rows have come, and the input has no end: the run cannot be over before the signal.
        let mut held = Held::start(&mut work.command_over_stdin(folder), work.journal(folder));
        held.feed(work.rows.concat().as_bytes(), 1);
        sleep(Duration::from_micros(random.below(expected.elapsed.as_micros() as u64 / 2)));
        let ended = held.stop(name);
        let left = expected.assert_left(&work, folder);
        assert_interrupted(&ended, name, left.journaled);
        assert_part(&work, folder);
        assert_continues(&work, &expected, folder, &left);
    }
}

#[test]
fn sigint_keeps_what_is_finished_and_the_same_command_continues() {
    stops("INT", 5);
}

#[test]
fn sigterm_keeps_what_is_finished_and_the_same_command_continues() {
    stops("TERM", 6);
}

#[test]
fn a_run_that_waits_for_its_input_stops_too() {
    for (name, number) in [("INT", 1), ("TERM", 7)] {
        let work = Work::sampled(rows(4, 12, false));
        let expected = work.undisturbed();
        let folder = work.folder();
        let folder = folder.path();
        let mut held = Held::start(&mut work.command_over_stdin(folder), work.journal(folder));
        held.feed(work.rows[..number].concat().as_bytes(), number);
        let ended = held.stop(name);
        assert_interrupted(&ended, name, number);
        let left = expected.assert_left(&work, folder);
        assert_eq!(left.journaled, number);
        assert_part(&work, folder);
        let mut command = work.command_over_stdin(folder);
        let ended = finish_with(&mut command, work.rows.concat().as_bytes());
        expected.assert_complete(&work, folder, &ended);
        work.assert_taken_over(folder, &ended, &left);
    }
}

#[test]
fn a_second_signal_ends_a_run_that_cannot_write_and_loses_nothing() {
    let work = Work::sampled(long_rows(5, 100, 4000));
    let expected = &work.undisturbed().files["out.jsonl"];
    for (first, second) in [("INT", "INT"), ("INT", "TERM"), ("TERM", "INT"), ("TERM", "TERM")] {
        let folder = work.folder();
        let folder = folder.path();
        let journal = folder.join("j.jsonl");
        let flags = ["-q", "-i", "in.jsonl", "--journal", "j.jsonl", "--stats", "stats.json"];
        let mut child = run(folder, work.flags).args(flags).spawn().unwrap();
        // Nobody reads what it writes, and it is more than a pipe holds.
        wait_for_rows(&mut child, &journal, 8);
        signal(&child, first);
        sleep(Duration::from_millis(100));
        signal(&child, second);
        // What is in the pipe is read only when it is gone.
        wait_for_exit(&mut child);
        let ended = wait(child);
        let code = ended.status.code().unwrap();
        assert!([130, 143].contains(&code), "{code}: {}", ended.stderr);
        assert!(expected.starts_with(&ended.stdout), "a beginning of the rows");
        let number = journal::num_rows(&journal);
        assert!(number >= 8);
        let ended = finish(run(folder, work.flags).args(flags));
        ended.assert_exit(0);
        assert!(ended.stdout == *expected, "the same bytes, from the first row on");
        assert_eq!(num_reused(folder) as usize, number);
        assert!(!journal.exists());
    }
}

#[test]
fn a_signal_in_a_long_step_keeps_what_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let flags = ["--temperature", "1", "--max-tokens", "2", "--ignore-eos", "-o", "out.jsonl"];
    let engine = ["--max-num-batched-tokens", "200000", "--max-num-seqs", "400"];
    let command = |flags: &[&str]| {
        let mut command = run_of(DEMO, folder, flags);
        command.args(["--format", "jsonl", "--no-enable-prefix-caching"]).args(engine);
        command
    };
    let short = rows(6, 5, true).concat();
    // One step takes all that have come: some ten prompts, about as long as the context.
    let ids = |row: usize| (0..500).map(move |i| (6 + (i * (row + 3)) % 400).to_string());
    let long = |row| ids(row).collect::<Vec<_>>().join(" ");
    let long = |row| format!("{{\"id\":\"long-{row}\",\"prompt\":\"{}\"}}\n", &long(row)[..480]);
    let long: String = (0..24).map(long).collect();
    let all = format!("{short}{long}");
    let journal = folder.join("out.jsonl.journal");
    let mut held = Held::start(&mut command(&flags), journal.clone());
    held.feed(short.as_bytes(), 5);
    held.feed(long.as_bytes(), 5);
    sleep(Duration::from_millis(300));
    let ended = held.stop("INT");
    let number = journal::num_rows(&journal);
    assert_interrupted(&ended, "INT", number);
    let ended = finish_with(command(&flags).args(["--stats", "stats.json"]), all.as_bytes());
    ended.assert_exit(0);
    assert_eq!(num_reused(folder) as usize, number);
    let whole = finish_with(&mut command(&flags[..5]), all.as_bytes());
    assert!(whole.stdout == fs::read(folder.join("out.jsonl")).unwrap());
}
