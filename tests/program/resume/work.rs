//! A job: an input, flags and output files; what it gives undisturbed, and what may be there when
//! it was killed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::resume::journal;
use crate::resume::program::{Ended, TINY, finish, json, names, num_reused, run_of};

/// An input, and what is to be done with it.
pub struct Work {
    pub model: &'static str,
    pub input: &'static str,
    pub rows: Vec<String>,
    pub out: &'static str,
    pub errors: Option<&'static str>,
    pub flags: &'static [&'static str],
}

impl Work {
    /// JSON lines, sampled.
    pub fn sampled(rows: Vec<String>) -> Self {
        // Few at a time, so that rows finish from the beginning to the end.
        let flags =
            &["--temperature", "1", "--ignore-eos", "--max-tokens", "60", "--max-num-seqs", "8"];
        Self { model: TINY, input: "in.jsonl", rows, out: "out.jsonl", errors: None, flags }
    }

    /// A folder with the input.
    pub fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(self.input), self.rows.concat()).unwrap();
        folder
    }

    /// The command, over the input in a folder.
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = self.command_without_stats(folder);
        command.args(["--stats", "stats.json"]);
        command
    }

    /// The same, for two at a time: a file of statistics is one process's.
    pub fn command_without_stats(&self, folder: &Path) -> Command {
        let mut command = run_of(self.model, folder, self.flags);
        command.args(["-i", self.input]).args(self.outputs());
        command
    }

    /// The command, over rows on standard input.
    pub fn command_over_stdin(&self, folder: &Path) -> Command {
        let format = self.input.rsplit('.').next().unwrap();
        let mut command = run_of(self.model, folder, self.flags);
        command.args(["--format", format, "--stats", "stats.json"]).args(self.outputs());
        command
    }

    fn outputs(&self) -> impl Iterator<Item = &'static str> {
        let errors = self.errors.map(|name| ["--errors", name]);
        ["-o", self.out].into_iter().chain(errors.into_iter().flatten())
    }

    /// The output's journal.
    pub fn journal(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.journal", self.out))
    }

    /// What it gives when nothing disturbs it.
    pub fn undisturbed(&self) -> Expected {
        let folder = self.folder();
        let started = Instant::now();
        let ended = finish(&mut self.command(folder.path()));
        let elapsed = started.elapsed();
        let code = ended.status.code().expect("an exit code");
        assert!([0, 3].contains(&code), "{}", ended.stderr);
        let files = [Some(self.out), self.errors].into_iter().flatten();
        let files = files.map(|name| (name, fs::read(folder.path().join(name)).unwrap()));
        let expected = Expected { files: files.collect(), code, elapsed };
        expected.assert_complete(self, folder.path(), &ended);
        expected
    }

    fn num_rows(&self) -> usize {
        self.rows.len() - usize::from(self.input.ends_with("csv"))
    }

    /// Runs to the end, and compares.
    pub fn finish_after(&self, expected: &Expected, folder: &Path, left: &Left) {
        let ended = finish(&mut self.command(folder));
        expected.assert_complete(self, folder, &ended);
        self.assert_taken_over(folder, &ended, left);
    }

    /// A run that came to its end took over everything that was finished.
    pub fn assert_taken_over(&self, folder: &Path, ended: &Ended, left: &Left) {
        match ended.stderr.contains("Nothing to do") {
            true => assert!(left.has_name || left.journaled == self.num_rows()),
            false => assert_eq!(num_reused(folder) as usize, left.journaled, "{}", ended.stderr),
        }
    }
}

/// The outputs of a run that nothing disturbed.
pub struct Expected {
    /// Bytes by name.
    pub files: BTreeMap<&'static str, Vec<u8>>,
    pub code: i32,
    pub elapsed: Duration,
}

impl Expected {
    /// What a run that came to its end left.
    pub fn assert_complete(&self, work: &Work, folder: &Path, ended: &Ended) {
        ended.assert_exit(self.code);
        for (name, bytes) in &self.files {
            let found = fs::read(folder.join(name)).unwrap();
            assert!(found == *bytes, "{name} differs: {}", ended.stderr);
        }
        let meta = json(&folder.join(format!("{}.meta.json", work.out)));
        assert_eq!(meta["rows"]["total"], work.num_rows(), "{meta}");
        let mut wanted = vec![work.input.to_owned(), format!("{}.meta.json", work.out)];
        wanted.extend(self.files.keys().map(|name| (*name).to_owned()));
        // Nothing is written about a run that had nothing to do.
        let found = names(folder);
        wanted.extend(found.iter().find(|name| *name == "stats.json").cloned());
        wanted.sort();
        assert_eq!(found, wanted);
    }

    /// What a process that was killed left: an output has its name only when it is complete, and a
    /// part is a beginning of it.
    pub fn assert_left(&self, work: &Work, folder: &Path) -> Left {
        let mut left = Left { has_name: true, ..Left::default() };
        for (name, bytes) in &self.files {
            let part = fs::read(folder.join(format!("{name}.part")));
            match fs::read(folder.join(name)) {
                Ok(found) => assert!(found == *bytes, "{name} has its name and differs"),
                Err(_) => left.has_name = false,
            }
            if let Ok(part) = part {
                left.has_part = true;
                // Until the end the part of a Parquet file has its rows as JSON lines.
                let is_begun = name.ends_with("parquet") || bytes.starts_with(&part);
                assert!(is_begun, "{name}.part is no beginning");
                let is_text = is_text(name);
                let is_torn = is_text && !part.is_empty() && !part.ends_with(b"\n");
                // A kill may end a write between two pages of memory, and nowhere else.
                assert!(!is_torn || part.len().is_multiple_of(4096), "{name}.part is torn");
                left.is_torn |= is_torn;
            }
        }
        left.has_journal = work.journal(folder).exists();
        left.journaled = self.assert_journal(work, folder);
        left
    }

    /// Every whole record is a row of an output. Returns how many rows there are.
    fn assert_journal(&self, work: &Work, folder: &Path) -> usize {
        let rows = journal::rows(&work.journal(folder));
        for row in &rows {
            let name = work.errors.filter(|_| row.is_error).unwrap_or(work.out);
            let bytes = &self.files[name];
            let is_there = || bytes.windows(row.row.len()).any(|window| window == row.row);
            assert!(!is_text(name) || is_there(), "a record that is no row of {name}");
        }
        let positions = journal::positions(&rows);
        assert_eq!(positions.len(), rows.len(), "no row is computed twice");
        rows.len()
    }
}

/// Whether an output has its rows as they are.
fn is_text(name: &str) -> bool {
    !["zst", "gz", "parquet"].iter().any(|end| name.ends_with(end))
}

/// What a process that was killed left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    pub has_name: bool,
    pub has_part: bool,
    pub has_journal: bool,
    /// A part does not end with a whole line.
    pub is_torn: bool,
    /// Rows that are finished.
    pub journaled: usize,
}
