//! `Baseline`: the rows of an earlier output beside those of this one. The tool has no noise: a row
//! that flipped did so because something was changed.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::paired::{Bootstrap, mcnemar};
use super::rows::{JudgedFile, JudgedRow};
use super::totals::Failure;
use crate::ledger::meta::Meta;
use crate::run::JUDGE;
use vllm_batch_dataset::terminal::error::CliError;

/// Rows of each kind that reports show.
const MAX_FLIPS: usize = 100;

/// Rows that flipped whose old answers are kept for the page.
const MAX_ANSWERS: usize = 10_000;

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
    newly_wrong: Vec<Flipped>,
    newly_right: Vec<String>,
    /// All rows that flipped: 1 of those that are right now, -1 of the others; and the answers that
    /// the first of them had.
    flips: HashMap<String, (i8, Option<String>)>,
    bootstrap: Bootstrap,
}

/// A row that is wrong and was right.
#[derive(Clone, Debug)]
pub struct Flipped {
    /// The row.
    pub now: Failure,
    /// The answer that it had.
    pub then: String,
}

/// A row that waits for its partner, its texts cut.
struct Waiting {
    worth: f64,
    passed: Option<bool>,
    row: JudgedRow,
}

/// Rows of both outputs that wait, by id, else by place.
type Lobby = HashMap<String, Waiting>;

impl Baseline {
    /// Pairs the rows of two outputs by their ids, and rows without one by their places. Outputs in
    /// the same order take no memory.
    ///
    /// # Errors
    /// A file cannot be read, a row has no verdict or one of another scorer, or no row is in both.
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
                let waiting = Waiting::of(&row);
                match of_then.remove(&key) {
                    Some(partner) => found.pair(key, waiting, partner)?,
                    None => drop(of_now.insert(key, waiting)),
                }
            }
            if let Some(row) = other {
                let key = key(&row);
                let waiting = Waiting::of(&row);
                match of_now.remove(&key) {
                    Some(partner) => found.pair(key, partner, waiting)?,
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

    fn pair(&mut self, key: String, now: Waiting, then: Waiting) -> Result<(), CliError> {
        let (row, old) = (now.row, then.row);
        let has_two = row.error.is_none() && old.error.is_none();
        if has_two && row.scorer != old.scorer {
            return Err(other_scorer(&old.scorer, &row.scorer));
        }
        self.num_pairs += 1;
        self.sums[0] += now.worth;
        self.sums[1] += then.worth;
        self.bootstrap.add(now.worth - then.worth);
        let answer = (self.flips.len() < MAX_ANSWERS).then(|| old.answer.clone());
        match (now.passed, then.passed) {
            (Some(false), Some(true)) => {
                self.num_flips[0] += 1;
                self.flips.insert(key, (-1, answer));
                if self.newly_wrong.len() < MAX_FLIPS {
                    self.newly_wrong.push(Flipped { now: Failure { row }, then: old.answer });
                }
            }
            (Some(true), Some(false)) => {
                self.num_flips[1] += 1;
                self.flips.insert(key, (1, answer));
                if self.newly_right.len() < MAX_FLIPS {
                    self.newly_right.push(Failure { row }.name());
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Rows that only one output has: this one, the earlier one.
    pub fn num_alone(&self) -> [u64; 2] {
        self.num_alone
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

    /// Whether a row flipped: 1 if it is right now, -1 if it was; and the answer that it had.
    pub fn flip(&self, row: &JudgedRow) -> (i8, Option<&str>) {
        let found = self.flips.get(&key(row));
        found.map_or((0, None), |(way, then)| (*way, then.as_deref()))
    }

    /// Rows that are wrong and were right.
    pub fn num_wrong(&self) -> u64 {
        self.num_flips[0]
    }

    /// The first of them.
    pub fn newly_wrong(&self) -> &[Flipped] {
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
        json["rows_newly_wrong"] = self.newly_wrong.iter().map(Flipped::json).collect();
        json["rows_newly_right"] = self.newly_right.clone().into();
        json
    }
}

impl Flipped {
    /// As reports have it.
    fn json(&self) -> Value {
        let mut json = self.now.json();
        json["then"] = self.then.clone().into();
        json
    }
}

impl Waiting {
    fn of(row: &JudgedRow) -> Self {
        let passed = if row.error.is_some() { Some(false) } else { row.passed };
        Self { worth: row.worth(), passed, row: row.shortened() }
    }
}

/// The refusal of a baseline that another scorer judged.
pub fn other_scorer(then: &str, now: &str) -> CliError {
    let message =
        format!("--baseline: its rows are judged by `{then}`, and those of this output by `{now}`");
    CliError::refused("eval", message)
        .help("judge the baseline again: eval --rescore BASELINE -o NEW with this run's --scorer")
}

/// The refusal of a baseline that was judged with other settings, if both say what theirs were.
pub fn refuse_other_settings(then: &Meta, now: &Map<String, Value>) -> Result<(), CliError> {
    let fields = &then.fingerprint.fields;
    let known = fields.get(JUDGE).and_then(|text| serde_json::from_str(text).ok());
    let Some(Value::Object(known)) = known else { return Ok(()) };
    let names: BTreeSet<&String> = known.keys().chain(now.keys()).collect();
    let of = |map: &Map<String, Value>, name: &str| match map.get(name) {
        Some(Value::String(text)) => format!("`{text}`"),
        Some(value) => value.to_string(),
        None => "none".to_owned(),
    };
    // Rows name their scorers.
    let is_other = |name: &&String| *name != "scorer" && known.get(*name) != now.get(*name);
    let other = names.into_iter().find(is_other);
    let Some(name) = other else { return Ok(()) };
    let (then, now) = (of(&known, name), of(now, name));
    let flag = name.replace('_', "-");
    let message = format!("--baseline: it was judged with --{flag} {then}, and this run has {now}");
    Err(CliError::refused("eval", message)
        .help("judge the baseline again: eval --rescore BASELINE -o NEW with this run's flags"))
}

/// By what a row is found in the other output.
fn key(row: &JudgedRow) -> String {
    match &row.id {
        Some(id) => format!("id {id}"),
        None => format!("row {}", row.number),
    }
}
