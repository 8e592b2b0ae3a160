//! Inputs that are edited after an interruption: rows are known by what is in them, so the output
//! is that of a fresh run over the edited input, and rows that did not change are not computed
//! again.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::random::Random;
use crate::resume::journal::{self, Journaled};
use crate::resume::program::{Held, finish_with, num_reused, run};
use crate::resume::rows::words;

const FLAGS: &[&str] =
    &["--format", "jsonl", "--temperature", "1", "--max-tokens", "6", "--ignore-eos", "-qq"];

/// Edits of each kind of input.
const NUM_CASES: usize = 16;

/// What a row's answer is keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// It draws nothing.
    Greedy,
    /// Its name, or its own seed.
    Named,
    Seeded,
    /// Its place.
    Unnamed,
    /// It cannot be asked, and says where it is.
    Bad,
    /// It can be read and not be asked: its prompt is longer than the context.
    TooLong,
}

use Kind::{Bad, Greedy, Named, Seeded, TooLong, Unnamed};

/// A line of the input.
#[derive(Clone, Debug)]
struct Row {
    kind: Kind,
    line: String,
}

impl Row {
    /// A row that no other call makes.
    fn new(kind: Kind, random: &mut Random) -> Self {
        let words = format!("{} {}", words(random), random.below(1 << 40));
        let line = match kind {
            Greedy => format!("{{\"prompt\":\"{words}\",\"temperature\":0}}"),
            Named => format!("{{\"id\":\"row-{}\",\"prompt\":\"{words}\"}}", random.next()),
            Seeded => format!("{{\"prompt\":\"{words}\",\"seed\":{}}}", random.below(99)),
            Unnamed => format!("{{\"prompt\":\"{words}\"}}"),
            Bad => format!("{{\"prompt\" \"{words}\"}}"),
            TooLong => format!("{{\"id\":\"{words}\",\"prompt\":\"{}\"}}", "12 + ".repeat(200)),
        };
        Self { kind, line }
    }
}

/// What an answer can be found by: the line; its place, where that counts; and for a row that
/// cannot be read whether one before it could, since the first that can be read says what rows are.
type Identity = (String, Option<(usize, bool)>);

fn identities(rows: &[Row]) -> Vec<Identity> {
    let first_readable = rows.iter().position(|row| row.kind != Bad).unwrap_or(rows.len());
    let place = |index: usize, kind| match kind {
        Unnamed => Some((index, true)),
        Bad => Some((index, index > first_readable)),
        Greedy | Named | Seeded | TooLong => None,
    };
    rows.iter().enumerate().map(|(at, row)| (row.line.clone(), place(at, row.kind))).collect()
}

fn text(rows: &[Row]) -> Vec<u8> {
    rows.iter().map(|row| format!("{}\n", row.line)).collect::<String>().into_bytes()
}

/// An interrupted run: its rows, and its journal with all of them.
struct Interrupted {
    rows: Vec<Row>,
    journal: Vec<u8>,
    records: Vec<Journaled>,
}

impl Interrupted {
    /// Runs a process until it has finished every row, and kills it.
    fn new(kinds: &[Kind], random: &mut Random) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let kind = |random: &mut Random| kinds[random.below(kinds.len() as u64) as usize];
        let rows: Vec<Row> = (0..30).map(|_| Row::new(kind(random), random)).collect();
        let journal = folder.join("out.jsonl.journal");
        let flags = [FLAGS, &["-o", "out.jsonl"]].concat();
        let mut held = Held::start(&mut run(folder, &flags), journal.clone());
        held.feed(&text(&rows), rows.len());
        held.kill();
        let records = journal::rows(&journal);
        Self { rows, journal: fs::read(&journal).unwrap(), records }
    }

    /// The journal as a kill after so many records leaves it, and the rows in it.
    fn cut(&self, number: usize) -> (&[u8], HashSet<Identity>) {
        let length = match self.records.get(number) {
            // Not at the record's first byte alone: the next may be there in part.
            Some(record) => record.start + (record.end - record.start) * (number % 3) / 3,
            None => self.journal.len(),
        };
        let identities = identities(&self.rows);
        let identity = |record: &Journaled| identities[record.position as usize].clone();
        (&self.journal[..length], self.records[..number].iter().map(identity).collect())
    }
}

/// Changes some rows of an input.
fn edit(rows: &mut Vec<Row>, kinds: &[Kind], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(rows.len() as u64) as usize;
        let other = random.below(rows.len() as u64) as usize;
        let new = Row::new(kinds[random.below(kinds.len() as u64) as usize], random);
        match random.below(6) {
            0 => rows.insert(0, new),
            1 => drop(rows.remove(at)),
            2 => rows.swap(at, other),
            3 => rows[at] = new,
            4 => rows.push(rows[at].clone()),
            _ => rows.insert(at, new),
        }
    }
}

/// Continues over the edited input, and compares with a run that never heard of the other.
fn check(folder: &Path, rows: &[Row], kept: &HashSet<Identity>, what: &str) {
    let flags = [FLAGS, &["-o", "out.jsonl", "--stats", "stats.json"]].concat();
    let ended = finish_with(&mut run(folder, &flags), &text(rows));
    let fresh = finish_with(&mut run(folder, FLAGS), &text(rows));
    let is_error = |row: &Row| matches!(row.kind, Bad | TooLong);
    let code = if rows.iter().any(is_error) { 3 } else { 0 };
    ended.assert_exit(code);
    fresh.assert_exit(code);
    assert!(fs::read(folder.join("out.jsonl")).unwrap() == fresh.stdout, "{what}");
    let num_kept = identities(rows).iter().filter(|identity| kept.contains(*identity)).count();
    assert_eq!(num_reused(folder) as usize, num_kept, "{what}");
    assert!(!folder.join("out.jsonl.journal").exists());
}

#[test]
fn an_edited_input_gives_the_bytes_of_a_fresh_run_and_reuses_what_did_not_change() {
    let seed = 11;
    let mut random = Random::new(seed);
    let sampled = [Named, Seeded, Named, Bad, TooLong];
    let all = [Greedy, Named, Seeded, Unnamed, Bad, TooLong, Unnamed, Greedy];
    let mut num_reused_rows = 0;
    for kinds in [&[Greedy][..], &sampled, &[Unnamed], &all] {
        let before = Interrupted::new(kinds, &mut random);
        for case in 0..NUM_CASES {
            let folder = tempfile::tempdir().unwrap();
            let number = random.below(before.records.len() as u64 + 1) as usize;
            let (journal, kept) = before.cut(number);
            fs::write(folder.path().join("out.jsonl.journal"), journal).unwrap();
            let mut rows = before.rows.clone();
            edit(&mut rows, kinds, &mut random);
            let what = format!("seed {seed}, {kinds:?}, case {case}, {number} rows kept");
            check(folder.path(), &rows, &kept, &what);
            num_reused_rows += num_reused(folder.path());
        }
    }
    // Each case has some thirty rows, and half of them are kept.
    println!("{num_reused_rows} rows reused");
    assert!(num_reused_rows > 400, "{num_reused_rows}");
}
