//! SIGKILL at random moments: while the model loads, in the middle, and while files get their
//! names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::resume::program::{kill, wait};
use crate::resume::rows::{rows, with_bad_rows, with_constraints};
use crate::resume::work::{Expected, Left, Work};

/// Kills of all tests here together.
const NUM_KILLS: u64 = 60;

/// Half of them.
pub fn num_kills() -> u64 {
    number("VLLM_BATCH_TEST_KILLS").unwrap_or(NUM_KILLS).div_ceil(2)
}

#[expect(clippy::disallowed_methods, reason = "the environment selects kills of this test only")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

pub fn seed() -> u64 {
    number("VLLM_BATCH_TEST_KILL_SEED").unwrap_or(1)
}

/// Experts, of random weights.
const EXPERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/qwen3_moe");

/// Delta nets, of random weights: layers that keep states.
const STATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/qwen3_next");

/// Jobs of so many rows each: sampled with names and without, by experts, with states, with error
/// rows, compressed beside constraints.
fn works(num_rows: usize) -> Vec<Work> {
    let named = || rows(1, num_rows, true);
    vec![
        Work::sampled(named()),
        Work::sampled(rows(2, num_rows, false)),
        Work { model: EXPERTS, ..Work::sampled(named()) },
        Work { model: STATES, ..Work::sampled(named()) },
        Work { errors: Some("errors.jsonl"), ..Work::sampled(with_bad_rows(named())) },
        Work { out: "out.parquet", ..Work::sampled(with_bad_rows(named())) },
        Work { out: "out.jsonl.zst", ..Work::sampled(with_constraints(named())) },
    ]
}

/// Where kills hit, for whoever reads the output of the test.
#[derive(Default)]
struct Census(BTreeMap<&'static str, u64>);

impl Census {
    fn add(&mut self, left: &Left, num_rows: usize) {
        let place = match (left.has_journal, left.has_name, left.has_part, left.journaled) {
            (false, true, ..) => "after the end",
            (true, true, ..) => "between rename and end",
            (false, false, ..) => "before the journal",
            (.., 0) => "before the first row",
            (.., number) if number == num_rows => "with all rows, before rename",
            (_, _, false, _) => "with rows, without part",
            _ => "in the middle",
        };
        *self.0.entry(place).or_default() += 1;
        *self.0.entry("(a part with a torn line)").or_default() += u64::from(left.is_torn);
    }

    fn print(&self, seed: u64) {
        println!("seed {seed}: {:?}", self.0);
    }
}

/// What a process found when it began.
struct Begun {
    journal: PathBuf,
    journal_len: Option<u64>,
}

/// Kills a job again and again until a process comes to its end. Returns the number of kills.
/// `moment` waits, from the start of a process to its kill.
fn kill_until_complete(
    work: &Work,
    expected: &Expected,
    census: &mut Census,
    mut moment: impl FnMut(&Begun, &mut Child),
) -> u64 {
    let folder = work.folder();
    let (mut left, mut num_kills) = (Left::default(), 0);
    loop {
        let journal = work.journal(folder.path());
        let begun = Begun { journal_len: length(&journal), journal };
        let mut child = work.command(folder.path()).spawn().unwrap();
        moment(&begun, &mut child);
        if let Err(ended) = kill(child) {
            expected.assert_complete(work, folder.path(), &ended);
            work.assert_taken_over(folder.path(), &ended, &left);
            return num_kills;
        }
        num_kills += 1;
        let now = expected.assert_left(work, folder.path());
        census.add(&now, work.rows.len());
        assert!(now.has_name || now.journaled >= left.journaled, "rows are lost: {now:?} {left:?}");
        assert!(now.has_name || !left.has_name, "an output is lost");
        left = now;
    }
}

#[test]
fn killed_at_any_time_a_run_is_continued_to_the_same_bytes() {
    let (seed, mut random) = (seed(), Random::new(seed()));
    println!("seed {seed}");
    let works: Vec<_> = works(100).into_iter().map(|work| (work.undisturbed(), work)).collect();
    let (mut census, mut num_done) = (Census::default(), 0);
    while num_done < num_kills() {
        let (expected, work) = &works[random.below(works.len() as u64) as usize];
        // Most of the time goes into the middle of a run; loading it takes a small share.
        let whole = expected.elapsed.as_micros() as u64 * 13 / 10;
        num_done += kill_until_complete(work, expected, &mut census, |_, _| {
            let limit = if random.below(4) == 0 { whole / 10 } else { whole };
            sleep(Duration::from_micros(random.below(limit)));
        });
    }
    census.print(seed);
}

#[test]
fn killed_while_files_get_their_names_a_run_is_continued_to_the_same_bytes() {
    let (seed, mut random) = (seed(), Random::new(seed() ^ 0xF1A1));
    println!("seed {seed}");
    let flags: &[&str] = &["--temperature", "1", "--ignore-eos", "--max-tokens", "4"];
    let works = works(6).into_iter().map(|work| Work { flags, ..work });
    let works: Vec<_> = works.map(|work| (work.undisturbed(), time_to_end(&work), work)).collect();
    let (mut census, mut num_done) = (Census::default(), 0);
    while num_done < num_kills() {
        let (expected, span, work) = &works[random.below(works.len() as u64) as usize];
        num_done += kill_until_complete(work, expected, &mut census, |process, child| {
            wait_for_journal(&process.journal, process.journal_len, child);
            spin(Duration::from_micros(random.below(span.as_micros() as u64 * 6 / 5)));
        });
    }
    census.print(seed);
}

/// Waits until a process has written into its journal or removed it, or has ended.
fn wait_for_journal(journal: &Path, before: Option<u64>, child: &mut Child) {
    while length(journal) == before && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
}

/// None: there is no such file. One without a byte is none that a run has begun.
fn length(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|found| found.len()).filter(|length| *length > 0)
}

/// How long a process lives after it began its journal.
fn time_to_end(work: &Work) -> Duration {
    let folder = work.folder();
    let mut child = work.command(folder.path()).spawn().unwrap();
    wait_for_journal(&work.journal(folder.path()), None, &mut child);
    let started = Instant::now();
    wait(child);
    started.elapsed()
}

/// Sleeping would be longer than what is waited for.
fn spin(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::hint::spin_loop();
    }
}
