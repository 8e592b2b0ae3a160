//! `Totals`: what the rows of an output come to, in memory that does not grow with them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::measure::{Measure, pass_at};
use super::rows::JudgedRow;
use crate::args::EvalFlags;
use vllm_batch_dataset::judge::scorers::errors::Errors;
use vllm_batch_dataset::judge::scorers::perplexity::Loglikelihood;
use vllm_batch_dataset::judge::settings::Scorer;
use vllm_batch_dataset::terminal::error::CliError;

/// Failed rows that reports show.
const MAX_FAILURES: usize = 100;

/// Groups that are told apart.
const MAX_GROUPS: usize = 10_000;

/// Characters of a text that reports show.
const MAX_SHOWN: usize = 400;

/// The rows of a group, or all.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// All.
    pub num_rows: u64,
    /// Error rows.
    pub num_errors: u64,
    /// Rows that passed.
    pub num_passed: u64,
    /// Rows that failed. The others say nothing of it.
    pub num_failed: u64,
    /// Rows with an answer that was cut.
    pub num_cut: u64,
    /// Of prompts, and of answers.
    pub tokens: [u64; 2],
    /// By name, without error rows.
    measures: BTreeMap<String, Measure>,
    likelihood: Option<Loglikelihood>,
    errors: Errors,
}

/// A row that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The row, its texts cut.
    pub row: JudgedRow,
}

/// What all rows come to.
#[derive(Debug)]
pub struct Totals {
    /// All rows.
    pub all: Group,
    /// Rows by their field `group`.
    pub groups: BTreeMap<String, Group>,
    /// The first rows that failed.
    pub failures: Vec<Failure>,
    /// Error rows are in every measure, as 0.
    errors_are_wrong: bool,
    /// The only scorer, where it says what is right and nothing else: `acc` is its measure.
    verdicts_of: Option<&'static str>,
}

impl Totals {
    /// Of no rows yet. `flags` say who judges them.
    pub fn new(errors_are_wrong: bool, flags: &EvalFlags) -> Self {
        let verdicts_of = match (&flags.scorer[..], flags.pass_if) {
            ([], None) => Some(Scorer::Exact),
            // Their rows have other names.
            ([Scorer::Choice | Scorer::Command], _) => None,
            ([only], None) if !only.is_graded() => Some(*only),
            _ => None,
        };
        Self {
            all: Group::default(),
            groups: BTreeMap::new(),
            failures: Vec::new(),
            errors_are_wrong,
            verdicts_of: verdicts_of.map(Scorer::name),
        }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// There are too many groups.
    pub fn add(&mut self, row: &JudgedRow) -> Result<(), CliError> {
        self.all.add(row);
        // A row's own asserts say more.
        let is_only = |only: &&str| row.scores.iter().all(|(name, _)| name == only);
        self.verdicts_of = self.verdicts_of.filter(is_only);
        if let Some(name) = &row.group {
            if !self.groups.contains_key(name) && self.groups.len() == MAX_GROUPS {
                let message = format!("the field `group` has more than {MAX_GROUPS} values");
                return Err(CliError::refused("eval", message));
            }
            self.groups.entry(name.clone()).or_default().add(row);
        }
        let has_failed = row.error.is_some() || row.passed == Some(false);
        if has_failed && self.failures.len() < MAX_FAILURES {
            self.failures.push(Failure { row: row.shortened() });
        }
        Ok(())
    }

    /// Error rows.
    pub fn num_errors(&self) -> u64 {
        self.all.num_errors
    }

    /// The measures of a group by their names.
    pub fn measures(&self, group: &Group) -> BTreeMap<String, Measure> {
        let zeros = if self.errors_are_wrong { group.num_errors } else { 0 };
        let with_zeros =
            |(name, measure): (&String, &Measure)| (name.clone(), measure.with_zeros(zeros));
        let mut measures: BTreeMap<_, _> = group.measures.iter().map(with_zeros).collect();
        if measures.is_empty() && zeros > 0 {
            measures.insert("acc".to_owned(), Measure::default().with_zeros(zeros));
        }
        measures
    }

    /// The same as people read them: a scorer that knows right and wrong only is `acc` itself,
    /// whatever the values are.
    pub fn shown(&self, group: &Group) -> Vec<(String, Measure)> {
        let measures = self.measures(group).into_iter();
        let Some(only) = self.verdicts_of else { return measures.collect() };
        let shown = measures.filter(|(name, _)| name != only);
        let named = |name: String| if name == "acc" { format!("acc ({only})") } else { name };
        shown.map(|(name, measure)| (named(name), measure)).collect()
    }

    /// The scorer whose measure `acc` is, for reports.
    pub fn verdicts_of(&self) -> Option<&'static str> {
        self.verdicts_of
    }

    /// A group as reports have it.
    pub fn json(&self, group: &Group) -> Value {
        let measures = self.measures(group).into_iter().map(|(name, one)| (name, one.json()));
        let mut measures: Map<String, Value> = measures.collect();
        for (name, value) in group.of_texts() {
            measures.insert(name.to_owned(), json!({"value": value}));
        }
        json!({
            "rows": {
                "total": group.num_rows,
                "passed": group.num_passed,
                "failed": group.num_failed,
                "errors": group.num_errors,
                "cut": group.num_cut,
            },
            "tokens": {"prompt": group.tokens[0], "completion": group.tokens[1]},
            "metrics": measures,
        })
    }

    /// The value of a measure by its name.
    pub fn value(&self, group: &Group, name: &str) -> Option<f64> {
        let of_texts = group.of_texts().into_iter().find(|(known, _)| *known == name);
        of_texts
            .map(|(_, value)| value)
            .or_else(|| self.measures(group).get(name).map(Measure::mean))
    }
}

impl Group {
    fn add(&mut self, row: &JudgedRow) {
        self.num_rows += 1;
        self.num_cut += u64::from(row.is_cut);
        for (sum, tokens) in self.tokens.iter_mut().zip(row.tokens) {
            *sum += tokens;
        }
        if row.error.is_some() {
            self.num_errors += 1;
            return;
        }
        match row.passed {
            Some(true) => self.num_passed += 1,
            Some(false) => self.num_failed += 1,
            None => {}
        }
        let mut add = |name: &str, value: f64| match self.measures.get_mut(name) {
            Some(measure) => measure.add(value),
            None => self.measures.entry(name.to_owned()).or_default().add(value),
        };
        let share = |is_right: bool| f64::from(u8::from(is_right));
        let n = row.samples.len() as u64;
        let right = row.samples.iter().filter(|passed| **passed).count() as u64;
        match row.passed {
            Some(passed) if n == 0 => add("acc", share(passed)),
            Some(passed) => {
                add("acc", right as f64 / n as f64);
                add("majority", share(passed));
                for k in (1..).map(|power| 1 << power).take_while(|k| *k <= n) {
                    add(&format!("pass@{k}"), pass_at(k, n, right));
                }
            }
            None => {}
        }
        for (name, score) in &row.scores {
            if name != "acc" || row.passed.is_none() {
                add(name, *score);
            }
        }
        if row.scores.len() > 1 {
            add("score", row.score);
        }
        if let Some(found) = &row.loglikelihood {
            self.likelihood.get_or_insert_default().add(found);
        }
        if let Some(found) = &row.errors {
            self.errors.add(found);
        }
    }

    /// Measures that are no means over rows, but of all texts.
    pub fn of_texts(&self) -> Vec<(&'static str, f64)> {
        let measures = self.likelihood.iter().flat_map(Loglikelihood::measures);
        let measures = measures.chain(self.errors.measures());
        measures.filter(|(_, value)| value.is_finite()).collect()
    }
}

impl JudgedRow {
    /// The same with its texts cut for reports.
    pub fn shortened(&self) -> Self {
        let cut = |text: &String| match text.char_indices().nth(MAX_SHOWN) {
            Some((at, _)) => format!("{}...", &text[..at]),
            None => text.clone(),
        };
        Self {
            error: self.error.as_ref().map(cut),
            answer: cut(&self.answer),
            expected: cut(&self.expected),
            extracted: self.extracted.as_ref().map(cut),
            reason: self.reason.as_ref().map(cut),
            question: cut(&self.question),
            ..self.clone()
        }
    }
}
