//! `Baseline`: the rows of an earlier output beside those of this one. The tool has no noise: a row
//! that flipped did so because something was changed.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::paired::{Bootstrap, mcnemar};
use super::rows::{JudgedFile, JudgedRow};
use super::totals::Failure;
use crate::cli::terminal::error::CliError;

/// Rows of each kind that reports show.
const MAX_FLIPS: usize = 100;

/// How rows compare with those of an earlier output.
#[derive(Debug, Default)]
pub struct Baseline {
    /// Rows that both have.
    num_pairs: u64,
    /// Rows that only one has: this one, the earlier one.
    num_alone: [u64; 2],
    /// Sums over pairs: of this one, of the earlier one.
    sums: [f64; 2],
    /// Rows that failed and had passed, and the other way round.
    num_flips: [u64; 2],
    newly_wrong: Vec<Failure>,
    newly_right: Vec<String>,
    /// All rows that flipped: 1 of those that are right now, -1 of the others.
    flips: HashMap<String, i8>,
    bootstrap: Bootstrap,
}

/// A row that waits for its partner, without its texts.
struct Waiting {
    worth: f64,
    passed: Option<bool>,
    /// Of this output, as reports show it.
    row: Option<JudgedRow>,
}

/// Rows of both outputs that wait, by id, else by place.
type Lobby = HashMap<String, Waiting>;

impl Baseline {
    /// Pairs the rows of two outputs by their ids, and rows without one by their places. Outputs in
    /// the same order take no memory.
    ///
    /// # Errors
    /// A file cannot be read, a row has no verdict, or no row is in both.
    pub fn new(
        now: &mut JudgedFile,
        then: &Path,
        errors_are_wrong: bool,
    ) -> Result<Self, CliError> {
        let mut then = now.like(then)?;
        let mut found = Self::default();
        let (mut of_now, mut of_then) = (Lobby::new(), Lobby::new());
        loop {
            let (one, other) = (now.next_row()?, then.next_row()?);
            if one.is_none() && other.is_none() {
                break;
            }
            let counts = |row: &JudgedRow| errors_are_wrong || row.error.is_none();
            let (one, other) = (one.filter(counts), other.filter(counts));
            if let Some(row) = one {
                let key = key(&row);
                let waiting = Waiting::of(&row, Some(row.shortened()));
                match of_then.remove(&key) {
                    Some(partner) => found.pair(key, waiting, &partner),
                    None => drop(of_now.insert(key, waiting)),
                }
            }
            if let Some(row) = other {
                let key = key(&row);
                let waiting = Waiting::of(&row, None);
                match of_now.remove(&key) {
                    Some(partner) => found.pair(key, partner, &waiting),
                    None => drop(of_then.insert(key, waiting)),
                }
            }
        }
        found.num_alone = [of_now.len() as u64, of_then.len() as u64];
        match found.num_pairs {
            0 => Err(then.refused(1, "no row of the baseline is in the output")),
            _ => Ok(found),
        }
    }

    fn pair(&mut self, key: String, now: Waiting, then: &Waiting) {
        self.num_pairs += 1;
        self.sums[0] += now.worth;
        self.sums[1] += then.worth;
        self.bootstrap.add(now.worth - then.worth);
        let row = now.row.expect("it is of this output");
        match (now.passed, then.passed) {
            (Some(false), Some(true)) => {
                self.num_flips[0] += 1;
                self.flips.insert(key, -1);
                if self.newly_wrong.len() < MAX_FLIPS {
                    self.newly_wrong.push(Failure { row });
                }
            }
            (Some(true), Some(false)) => {
                self.num_flips[1] += 1;
                self.flips.insert(key, 1);
                if self.newly_right.len() < MAX_FLIPS {
                    self.newly_right.push(Failure { row }.name());
                }
            }
            _ => {}
        }
    }

    /// How much better this output is, over rows that both have.
    pub fn difference(&self) -> f64 {
        (self.sums[0] - self.sums[1]) / self.num_pairs as f64
    }

    /// Means over rows that both have: now, then.
    pub fn means(&self) -> [f64; 2] {
        self.sums.map(|sum| sum / self.num_pairs as f64)
    }

    /// What a person reads of it.
    pub fn said(&self) -> String {
        let Self { num_pairs, num_flips: [worse, better], .. } = self;
        let [now, then] = self.means();
        let p = mcnemar(*worse, *better);
        let interval = self.bootstrap.interval();
        let interval = interval.map(|(low, high)| format!(", 95% in {low:+.4} to {high:+.4}"));
        format!(
            "baseline: {then:.4} then, {now:.4} now over {num_pairs} rows ({:+.4}{}); {worse} newly \
             wrong, {better} newly right, McNemar's p {p:.4}",
            self.difference(),
            interval.unwrap_or_default(),
        )
    }

    /// Whether a row flipped: 1 if it is right now, -1 if it was.
    pub fn flip(&self, row: &JudgedRow) -> i8 {
        self.flips.get(&key(row)).copied().unwrap_or(0)
    }

    /// Rows that are wrong and were right.
    pub fn num_wrong(&self) -> u64 {
        self.num_flips[0]
    }

    /// The first of them.
    pub fn newly_wrong(&self) -> &[Failure] {
        &self.newly_wrong
    }

    /// As reports have it.
    pub fn json(&self) -> Value {
        let [now, then] = self.means();
        let [worse, better] = self.num_flips;
        let mut json = json!({
            "rows": self.num_pairs,
            "only_here": self.num_alone[0],
            "only_there": self.num_alone[1],
            "then": then,
            "now": now,
            "difference": self.difference(),
            "newly_wrong": worse,
            "newly_right": better,
            "mcnemar_p": mcnemar(worse, better),
        });
        if let Some((low, high)) = self.bootstrap.interval() {
            json["low"] = low.into();
            json["high"] = high.into();
        }
        json["rows_newly_wrong"] = self.newly_wrong.iter().map(Failure::json).collect();
        json["rows_newly_right"] = self.newly_right.clone().into();
        json
    }
}

impl Waiting {
    fn of(row: &JudgedRow, shown: Option<JudgedRow>) -> Self {
        let passed = if row.error.is_some() { Some(false) } else { row.passed };
        Self { worth: row.worth(), passed, row: shown }
    }
}

/// By what a row is found in the other output.
fn key(row: &JudgedRow) -> String {
    match &row.id {
        Some(id) => format!("id {id}"),
        None => format!("row {}", row.number),
    }
}
