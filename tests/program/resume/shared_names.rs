//! Two processes that name one file, as whatever: one of them does all of its work, and the other
//! is refused before it has touched anything.
//!
//! `VLLM_BATCH_TEST_PAIRS=20 cargo test --test program shared_names` runs each pair as often.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resume::program::{Ended, HANG, json, names, run, wait};
use crate::resume::rows::{rows, with_bad_rows};

/// How often each pair runs.
const NUM_PAIRS: u64 = 2;

const FLAGS: [&str; 4] = ["-o", "--errors", "--journal", "--stats"];

/// One of two processes: its rows, and its name for the file of each flag.
struct Side {
    rows: String,
    files: BTreeMap<&'static str, String>,
}

impl Side {
    fn new(name: &str, seed: u64) -> Self {
        let rows = with_bad_rows(rows(seed, 12, true)).concat();
        Self { rows, files: FLAGS.map(|flag| (flag, format!("{name}{flag}"))).into() }
    }

    /// A flag names a file by this name.
    fn naming(mut self, flag: &'static str, name: &str) -> Self {
        self.files.insert(flag, name.to_owned());
        self
    }

    /// The process, with all its rows, while its input has no end.
    fn start(&self, folder: &Path) -> (Child, ChildStdin) {
        let flags = ["--format", "jsonl", "--temperature", "1", "--max-tokens", "4", "-q"];
        let mut command = run(folder, &flags);
        command.args(self.files.iter().flat_map(|(flag, name)| [*flag, name.as_str()]));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // One that is refused does not read.
        let _ = stdin.write_all(self.rows.as_bytes());
        (child, stdin)
    }

    /// What it writes when it is alone.
    fn alone(&self) -> [Vec<u8>; 2] {
        let folder = tempfile::tempdir().unwrap();
        let (child, stdin) = self.start(folder.path());
        drop(stdin);
        wait(child).assert_exit(3);
        self.written(folder.path())
    }

    fn written(&self, folder: &Path) -> [Vec<u8>; 2] {
        ["-o", "--errors"].map(|flag| fs::read(folder.join(&self.files[flag])).unwrap())
    }

    /// It came to its end, and did all of it.
    fn assert_whole(&self, folder: &Path, ended: &Ended, alone: &[Vec<u8>; 2], what: &str) {
        assert_eq!(ended.status.code(), Some(3), "{what}: {}", ended.stderr);
        assert!(self.written(folder) == *alone, "{what}: other bytes");
        let stats = json(&folder.join(&self.files["--stats"]));
        assert_eq!((&stats["rows"]["total"], &stats["complete"]), (&12.into(), &true.into()));
        let name = |flag| self.files[flag].trim_start_matches("./").to_owned();
        let mut wanted = ["-o", "--errors", "--stats"].map(name).to_vec();
        wanted.push(format!("{}.meta.json", name("-o")));
        wanted.sort();
        assert_eq!(names(folder), wanted, "{what}: nothing else is left");
    }
}

/// Which of two processes ends by itself.
fn first_to_end(children: &mut [(Child, ChildStdin); 2], what: &str) -> usize {
    let deadline = Instant::now() + HANG;
    loop {
        let is_over = |(child, _): &mut (Child, ChildStdin)| child.try_wait().unwrap().is_some();
        if let Some(index) = children.iter_mut().position(is_over) {
            return index;
        }
        assert!(Instant::now() < deadline, "{what}: both write");
        sleep(Duration::from_millis(2));
    }
}

/// Runs both at once: one is refused, the other is as if it had been alone.
fn assert_one_of_two(sides: &[Side; 2], what: &str) {
    let alone = [sides[0].alone(), sides[1].alone()];
    for _ in 0..num_pairs() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut children = [sides[0].start(folder), sides[1].start(folder)];
        let refused = first_to_end(&mut children, what);
        let [one, other] = children;
        let (loser, winner) = if refused == 0 { (one, other) } else { (other, one) };
        let ended = wait(loser.0);
        assert_eq!(ended.status.code(), Some(6), "{what}: {}", ended.stderr);
        ended.assert_says("error[output_locked]: another run has ");
        // The end of its input.
        drop(winner.1);
        let index = 1 - refused;
        sides[index].assert_whole(folder, &wait(winner.0), &alone[index], what);
    }
}

#[expect(clippy::disallowed_methods, reason = "long runs are asked for in the environment")]
fn num_pairs() -> u64 {
    let asked = std::env::var("VLLM_BATCH_TEST_PAIRS").ok();
    asked.map_or(NUM_PAIRS, |text| text.parse().expect("a number"))
}

#[test]
fn of_two_processes_that_share_any_file_one_does_all_of_its_work() {
    for (index, flag) in FLAGS.iter().enumerate() {
        for other in &FLAGS[index..] {
            let sides = [
                Side::new("a", 81).naming(flag, "shared"),
                Side::new("b", 82).naming(other, "./shared"),
            ];
            assert_one_of_two(&sides, &format!("{flag} and {other}"));
        }
    }
}

#[test]
fn processes_that_want_each_others_files_do_not_wait_for_each_other() {
    let circles = [("-o", "--errors"), ("--errors", "--stats"), ("--journal", "-o")];
    for (one, other) in circles {
        let sides = [
            Side::new("a", 83).naming(one, "x").naming(other, "y"),
            Side::new("b", 84).naming(one, "y").naming(other, "x"),
        ];
        assert_one_of_two(&sides, &format!("a circle of {one} and {other}"));
    }
}
