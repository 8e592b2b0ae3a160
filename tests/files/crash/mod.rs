//! Crashes and faults of an output: every operation on its files is a point where the machine may
//! stop or the disk may fail. Afterwards the same command must give the same bytes.
//!
//! `VLLM_BATCH_TEST_CRASH_STATES=1000000 cargo test --test files many` runs as many random
//! histories of crash after crash (`scripts/crash-soak`).

mod disk;
pub mod job;
mod models;
pub mod random;

use disk::{Fault, MemoryDisk, Op, Tree};
use job::{Job, OUT};
use models::{after_crash, models};
use random::Random;

/// The jobs whose every operation is a crash point.
fn jobs() -> Vec<Job> {
    let job = |seed, splits_errors, replaces| Job {
        num_rows: 64,
        seed,
        splits_errors,
        replaces,
        is_table: false,
    };
    let plain = (1..4).map(|seed| job(seed, false, false));
    let split = (4..6).map(|seed| job(seed, true, false));
    // A table takes a hundred times as long to make as its rows.
    let table = Job { is_table: true, num_rows: 12, ..job(7, false, false) };
    plain.chain(split).chain([job(6, false, true), table]).collect()
}

/// The disk in the beginning.
fn before(job: &Job) -> Tree {
    match job.replaces {
        true => [(OUT.into(), b"an older output\n".to_vec())].into(),
        false => Tree::new(),
    }
}

/// Rows whose journal records were durable before `log[at]`, by what the journal's syncs covered.
fn num_durable_rows(log: &[Op], at: usize) -> u64 {
    let journal = log.iter().find_map(|op| match op {
        Op::Create { path, file } if path.to_string_lossy().ends_with(".journal") => Some(*file),
        _ => None,
    });
    let Some(journal) = journal else { return 0 };
    let synced =
        log[..at].iter().rposition(|op| matches!(op, Op::Sync { file } if *file == journal));
    let mut content = Vec::new();
    for op in &log[..synced.unwrap_or(0)] {
        if let Op::Write { file, offset, bytes } = op
            && *file == journal
        {
            disk::apply_write(&mut content, *offset, bytes);
        }
    }
    // Kind 1 and 2 are rows: counted by their records' first bytes, independently of the reader.
    let is_row = |at: usize| {
        content[at..].starts_with(b"\xb5VBr") && matches!(content.get(at + 20), Some(1 | 2))
    };
    (0..content.len()).filter(|at| is_row(*at)).count() as u64
}

#[test]
fn after_a_crash_at_any_operation_the_same_command_gives_the_same_bytes() {
    let mut num_states = 0;
    for job in jobs() {
        let tree = before(&job);
        let disk = MemoryDisk::holding(&tree);
        job.run(&disk, job.replaces).expect("nothing disturbs it");
        job.assert_complete(&disk.tree(), &|| format!("{job:?}"));
        let log = disk.log();
        for at in 0..=log.len() {
            let num_durable = num_durable_rows(&log, at);
            for model in models(job.seed.wrapping_mul(1_000_003) ^ at as u64) {
                let found = after_crash(&tree, &log, at, model);
                let what = || format!("{job:?}, {model:?} before {at}: {:?}", log.get(at));
                num_states += 1;
                check_resume(&job, &found, num_durable, &what);
            }
        }
    }
    println!("{num_states} states");
    assert!(num_states >= 5_000, "{num_states} states");
}

/// Continues on what a crash left, and compares.
fn check_resume(job: &Job, found: &Tree, num_durable: u64, what: &dyn Fn() -> String) {
    // Before the first run came to its journal, what is there is an output of someone else's: the
    // command that was typed had --overwrite.
    let is_begun = found.contains_key(std::path::Path::new(&format!("{OUT}.journal")));
    let is_complete = found.contains_key(std::path::Path::new(&format!("{OUT}.meta.json")));
    let overwrite = job.replaces && !is_complete && (!is_begun || num_durable == 0);
    let disk = MemoryDisk::holding(found);
    let done = job.run(&disk, overwrite).unwrap_or_else(|error| panic!("{}: {error}", what()));
    job.assert_complete(&disk.tree(), what);
    let most = job.num_rows - num_durable;
    assert!(
        done.num_computed <= most,
        "{}: {} rows computed again, {num_durable} of them were durable",
        what(),
        done.num_computed
    );
}

#[test]
fn after_many_crashes_the_same_command_gives_the_same_bytes() {
    let wanted = asked("VLLM_BATCH_TEST_CRASH_STATES").unwrap_or(2_000);
    let first = asked("VLLM_BATCH_TEST_CRASH_SEED").unwrap_or(0);
    let (mut num_states, mut seed) = (0, first);
    while num_states < wanted {
        num_states += crash_after_crash(seed);
        seed += 1;
    }
    println!("{num_states} states of {} histories", seed - first);
}

/// A number that the environment gives.
#[expect(clippy::disallowed_methods, reason = "long runs are asked for in the environment")]
fn asked(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// A history of crashes, each at a random operation of what the one before left. Returns how many.
fn crash_after_crash(seed: u64) -> u64 {
    let mut random = Random::new(seed ^ 0x0C0F_FEE0);
    let splits_errors = random.below(2) == 0;
    let is_table = seed.is_multiple_of(8);
    let num_rows = 1 + random.below(if is_table { 8 } else { 64 });
    let mut job = Job { num_rows, seed, splits_errors, replaces: false, is_table };
    let mut tree = Tree::new();
    for crash in 0.. {
        job.seed = random.next();
        let disk = MemoryDisk::holding(&tree);
        let what = || format!("seed {seed}, crash {crash}: {job:?}");
        job.run(&disk, false).unwrap_or_else(|error| panic!("{}: {error}", what()));
        job.assert_complete(&disk.tree(), &what);
        let log = disk.log();
        if crash == 6 || log.is_empty() {
            return crash;
        }
        let at = random.below(log.len() as u64 + 1) as usize;
        let models = models(random.next());
        let model = models[random.below(models.len() as u64) as usize];
        tree = after_crash(&tree, &log, at, model);
    }
    unreachable!("a history ends")
}

#[test]
fn a_fault_of_any_operation_ends_the_run_and_the_same_command_continues() {
    let mut num_faults = 0;
    for job in jobs() {
        let tree = before(&job);
        for fault in [Fault::NoSpace, Fault::Io, Fault::Short] {
            for at in 0.. {
                let disk = MemoryDisk::holding(&tree);
                disk.fail_at(at, fault);
                let result = job.run(&disk, job.replaces);
                if !disk.fault_struck() {
                    assert!(at > 40, "{job:?}: {at} operations only");
                    break;
                }
                num_faults += 1;
                let what = || format!("{job:?}, {fault:?} at {at}");
                match (&result, fault) {
                    (Ok(_), Fault::Short) => {}
                    (Err(error), Fault::NoSpace) => {
                        assert!(error.to_string().contains("no storage space"), "{error}");
                    }
                    (Err(_), Fault::Io) => {}
                    other => panic!("{}: {other:?}", what()),
                }
                let left = disk.tree();
                check_resume(&job, &left, 0, &what);
            }
        }
    }
    println!("{num_faults} faults");
    assert!(num_faults > 1_500, "{num_faults} faults");
}

#[test]
fn damage_in_the_middle_of_a_journal_costs_only_the_rows_that_it_hits() {
    let (num_rows, seed) = (64, 9);
    let (splits_errors, replaces, is_table) = (false, false, false);
    let job = Job { num_rows, seed, splits_errors, replaces, is_table };
    let disk = MemoryDisk::default();
    job.run(&disk, false).expect("nothing disturbs it");
    let log = disk.log();
    // Just before the end record every row is in the journal.
    let at = log.iter().rposition(|op| matches!(op, Op::Rename { .. })).expect("renames") - 8;
    let whole = after_crash(&Tree::new(), &log, at, models::Model::Killed);
    let journal = std::path::PathBuf::from(format!("{OUT}.journal"));
    let length = whole[&journal].len();
    let mut random = Random::new(1);
    for case in 0..300 {
        let mut tree = whole.clone();
        let content = tree.get_mut(&journal).expect("it is there");
        // Not in the header: that is refused, see the ledger's own tests.
        let start = 200 + random.below(length as u64 - 300) as usize;
        let count = 1 + random.below(64) as usize;
        for byte in content.iter_mut().skip(start).take(count) {
            *byte ^= 1 + random.below(255) as u8;
        }
        let disk = MemoryDisk::holding(&tree);
        let done = job.run(&disk, false).unwrap_or_else(|error| panic!("case {case}: {error}"));
        job.assert_complete(&disk.tree(), &|| format!("case {case}"));
        assert!(done.num_computed <= 4, "case {case}: {} rows again", done.num_computed);
    }
}
