//! Readers that go away: `run ... | head -n 3`.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::resume::journal;
use crate::resume::program::{Ended, finish, num_reused, run, wait};
use crate::resume::rows::long_rows;
use crate::resume::work::Work;

/// Readers, each of which takes one line more than the one before.
const NUM_READERS: usize = 20;

const FLAGS: [&str; 5] = ["-q", "-i", "in.jsonl", "--stats", "stats.json"];

/// Reads so many lines, and goes.
fn read_lines(work: &Work, folder: &Path, flags: &[&str], number: usize) -> (Vec<u8>, Ended) {
    let mut child = run(folder, work.flags).args(FLAGS).args(flags).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = Vec::new();
    for _ in 0..number {
        stdout.read_until(b'\n', &mut lines).unwrap();
    }
    drop(stdout);
    (lines, wait(child))
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run_and_a_journal_keeps_its_rows() {
    // More than a pipe holds: the run cannot end before its reader is gone.
    let flags = &["--temperature", "1", "--max-tokens", "12", "--max-num-seqs", "8"];
    let work = Work { flags, ..Work::sampled(long_rows(7, 120, 1500)) };
    let expected = work.undisturbed();
    let expected = &expected.files["out.jsonl"];
    for number in 0..NUM_READERS {
        let folder = work.folder();
        let folder = folder.path();
        let (lines, ended) = read_lines(&work, folder, &[], number);
        ended.assert_exit(141);
        assert_eq!(ended.stderr, "", "nobody wants to know more");
        assert!(expected.starts_with(&lines), "reader {number}");
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), number);

        let journal = folder.join("j.jsonl");
        let (lines, ended) = read_lines(&work, folder, &["--journal", "j.jsonl"], number);
        ended.assert_exit(141);
        assert_eq!(ended.stderr, "");
        assert!(expected.starts_with(&lines), "reader {number}");
        let num_kept = journal::num_rows(&journal);
        assert!(num_kept >= number, "{num_kept} rows are kept, {number} were read");
        // To a pipe that is read, or to a file.
        let to_file = number % 2 == 1;
        let mut command = run(folder, work.flags);
        command.args(FLAGS).args(["--journal", "j.jsonl"]);
        command.args(["-o", "out.jsonl"].iter().take(if to_file { 2 } else { 0 }));
        let mut ended = finish(&mut command);
        ended.assert_exit(0);
        if to_file {
            assert!(ended.stdout.is_empty());
            ended.stdout = std::fs::read(folder.join("out.jsonl")).unwrap();
        }
        assert!(ended.stdout == *expected, "reader {number}");
        assert_eq!(num_reused(folder) as usize, num_kept);
        assert!(!journal.exists());
    }
}

#[test]
fn notes_are_all_that_is_said_when_a_reader_goes() {
    let work = Work::sampled(long_rows(8, 120, 1500));
    let folder = work.folder();
    let mut command = run(folder.path(), work.flags);
    let mut child = command.args(["-i", "in.jsonl"]).spawn().unwrap();
    drop(child.stdout.take());
    let ended = wait(child);
    ended.assert_exit(141);
    ended.assert_says("in.jsonl: rows are `prompt` text");
    for word in ["error", "help", "rows: ", "Output"] {
        assert!(!ended.stderr.contains(word), "{}", ended.stderr);
    }
}
