//! Journals that something damaged: what is whole is used, the rest is computed again, and the
//! bytes are right. One that is no journal any more is refused.

use std::fs;
use std::path::Path;

use crate::random::Random;
use crate::resume::journal;
use crate::resume::program::{Ended, Held, finish_with, num_reused, run};
use crate::resume::rows::rows;

const FLAGS: &[&str] = &[
    "--format",
    "jsonl",
    "--temperature",
    "1",
    "--max-tokens",
    "8",
    "--ignore-eos",
    "-o",
    "out.jsonl",
    "--stats",
    "stats.json",
];

const NUM_ROWS: usize = 24;

/// Cases of each kind of damage.
const NUM_CASES: usize = 12;

/// An input, the journal of a killed run over it with all rows, and the output's bytes.
struct Killed {
    rows: String,
    journal: Vec<u8>,
    /// Bytes before the first record.
    header_len: usize,
    expected: Vec<u8>,
}

impl Killed {
    fn new() -> Self {
        let rows = rows(21, NUM_ROWS, false).concat();
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("out.jsonl.journal");
        let mut held = Held::start(&mut run(folder.path(), FLAGS), name.clone());
        held.feed(rows.as_bytes(), NUM_ROWS);
        held.kill();
        let journal = fs::read(name).unwrap();
        let header_len = journal::header_len(&journal).unwrap();
        let fresh = finish_with(&mut run(folder.path(), &FLAGS[..7]), rows.as_bytes());
        fresh.assert_exit(0);
        Self { rows, journal, header_len, expected: fresh.stdout }
    }

    /// Puts a journal there and runs the command.
    fn run(&self, folder: &Path, journal: &[u8], flags: &[&str]) -> Ended {
        fs::write(folder.join("out.jsonl.journal"), journal).unwrap();
        finish_with(run(folder, FLAGS).args(flags), self.rows.as_bytes())
    }

    /// The same; the bytes must be right, and every row be reused whose record is whole.
    fn assert_mends(&self, journal: &[u8], what: &str) -> usize {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("out.jsonl.journal"), journal).unwrap();
        let num_whole = journal::num_rows(&folder.join("out.jsonl.journal"));
        let ended = self.run(folder, journal, &[]);
        ended.assert_exit(0);
        assert!(fs::read(folder.join("out.jsonl")).unwrap() == self.expected, "{what}");
        assert_eq!(num_reused(folder) as usize, num_whole, "{what}");
        assert!(!folder.join("out.jsonl.journal").exists(), "{what}");
        num_whole
    }
}

#[test]
fn a_damaged_journal_costs_rows_and_never_their_bytes() {
    let seed = 31;
    let mut random = Random::new(seed);
    let killed = Killed::new();
    let length = killed.journal.len();
    let behind_header = (length - killed.header_len) as u64;
    for case in 0..NUM_CASES {
        let what = |kind: &str| format!("seed {seed}, case {case}, {kind}");
        let cut = random.below(length as u64 + 1) as usize;
        killed.assert_mends(&killed.journal[..cut], &what(&format!("cut at {cut}")));

        let mut flipped = killed.journal.clone();
        for _ in 0..1 + random.below(5) {
            let at = killed.header_len + random.below(behind_header) as usize;
            flipped[at] ^= 1 << random.below(8);
        }
        let num_whole = killed.assert_mends(&flipped, &what("flipped"));
        assert!((NUM_ROWS - 5..NUM_ROWS).contains(&num_whole), "{num_whole} rows of {NUM_ROWS}");

        let zeros = vec![0; 1 + random.below(9000) as usize];
        let num_whole =
            killed.assert_mends(&[&killed.journal[..], &zeros].concat(), &what("zeros"));
        assert_eq!(num_whole, NUM_ROWS);
        let from = killed.header_len + random.below(behind_header) as usize;
        let torn = [&killed.journal[..from], &zeros].concat();
        killed.assert_mends(&torn, &what("torn, then zeros"));

        // What looks most like a journal: its own records, from the middle of one.
        let garbage: Vec<u8> = (0..random.below(500)).map(|_| random.next() as u8).collect();
        let again = &killed.journal[from..];
        let garbled = [&killed.journal[..], &garbage, again].concat();
        let num_whole = killed.assert_mends(&garbled, &what("garbage, then records again"));
        assert_eq!(num_whole, NUM_ROWS);
    }
}

#[test]
fn a_journal_that_is_none_is_refused_with_a_remedy_and_kept() {
    let mut random = Random::new(32);
    let killed = Killed::new();
    for case in 0..NUM_CASES {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut journal = killed.journal.clone();
        match case {
            0 => journal = b"notes of someone, by mistake given as a journal\n".to_vec(),
            1 => journal[..killed.header_len].fill(0),
            _ => journal[random.below(killed.header_len as u64) as usize] ^= 0x20,
        }
        let ended = killed.run(folder, &journal, &[]);
        ended.assert_exit(6);
        // What a run wrote may be replaced, what someone else did may not.
        ended.assert_says(match case {
            0 => "error[journal]: out.jsonl.journal is no journal\nhelp: move it away, or choose",
            _ => {
                "error[journal]: out.jsonl.journal is no journal, or damaged at its beginning\n\
                 help: move it away, or start over with --overwrite\n"
            }
        });
        assert!(fs::read(folder.join("out.jsonl.journal")).unwrap() == journal, "it is kept");
        assert!(!folder.join("out.jsonl").exists());
        let ended = killed.run(folder, &journal, &["--overwrite"]);
        if case == 0 {
            ended.assert_exit(6);
            assert!(fs::read(folder.join("out.jsonl.journal")).unwrap() == journal, "it is kept");
            continue;
        }
        ended.assert_exit(0);
        assert_eq!(num_reused(folder), 0);
        assert!(fs::read(folder.join("out.jsonl")).unwrap() == killed.expected, "case {case}");
        assert!(!folder.join("out.jsonl.journal").exists());
    }
}

#[test]
fn a_part_without_its_journal_is_refused_and_kept() {
    let killed = Killed::new();
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("out.jsonl.part");
    fs::write(&part, "precious\n").unwrap();
    let run =
        |flags: &[&str]| finish_with(run(folder.path(), FLAGS).args(flags), killed.rows.as_bytes());
    let ended = run(&[]);
    ended.assert_exit(6);
    ended.assert_says("error[output_unfinished]: out.jsonl.part holds rows of an unfinished run");
    ended.assert_says("help: move it away, or give --overwrite\n");
    assert_eq!(fs::read_to_string(&part).unwrap(), "precious\n");
    assert!(!folder.path().join("out.jsonl.journal").exists());
    run(&["--overwrite"]).assert_exit(0);
    assert!(fs::read(folder.path().join("out.jsonl")).unwrap() == killed.expected);
}
