//! `Verdict`: what a row is worth, and how the row shows it.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::criterion::{Scored, Test};
use super::rubric::Rubric;
use super::scorers::errors::Errors;

/// Start of the reason of a row without a verdict.
pub const NOT_JUDGED: &str = "not_judged";

/// Score of one completion of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    score: f64,
    passed: Option<bool>,
    extracted: Option<Option<String>>,
    /// By the criteria's names, and by those of their parts.
    scores: Vec<(String, f64)>,
    reason: Option<String>,
    errors: Option<Errors>,
    /// What it gives its vote to, where samples are counted.
    vote: String,
}

impl Sample {
    /// The worth of a completion: what each criterion says of it.
    pub(super) fn new(rubric: &Rubric, scored: &[Scored], vote: Option<String>) -> Self {
        let pairs = || rubric.criteria.iter().zip(scored);
        let total: f64 = pairs().map(|(criterion, _)| criterion.weight).sum();
        let sum: f64 = pairs().map(|(one, scored)| one.weight * one.counted(scored)).sum();
        // A criterion without weight only shows its score, as in promptfoo.
        let mut judging = pairs().filter(|(criterion, _)| criterion.weight > 0.0);
        // One that gives a score alone says nothing of right and wrong.
        let passes: Vec<bool> =
            judging.clone().filter_map(|(criterion, scored)| criterion.passes(scored)).collect();
        let is_judged = !passes.is_empty() || judging.clone().next().is_none();
        let failed = judging.find(|(one, scored)| one.passes(scored) == Some(false));
        let named =
            failed.filter(|_| scored.len() > 1).map(|(one, _)| format!("{} failed", one.name));
        let extracted = scored.iter().find_map(|scored| scored.extracted.clone());
        Self {
            score: if total > 0.0 { sum / total } else { 0.0 },
            passed: is_judged.then(|| passes.into_iter().all(|passes| passes)),
            vote: extracted.clone().flatten().or(vote).unwrap_or_default(),
            extracted,
            scores: named_scores(rubric, scored),
            errors: all_of(scored.iter().map(|scored| scored.errors)),
            reason: scored.iter().find_map(|scored| scored.reason.clone()).or(named),
        }
    }
}

/// The errors of all that counts some.
fn all_of(errors: impl Iterator<Item = Option<Errors>>) -> Option<Errors> {
    errors.flatten().reduce(|mut sum, errors| {
        sum.add(&errors);
        sum
    })
}

/// Scores by name. Of criteria with the same name the mean, by their weights if they have some; a
/// criterion with parts is its parts.
fn named_scores(rubric: &Rubric, scored: &[Scored]) -> Vec<(String, f64)> {
    // Sums of the scores, of those with their weights, of the weights; and how many they are.
    let mut named: Vec<(&str, [f64; 4])> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (criterion, scored) in rubric.criteria.iter().zip(scored) {
        let own = (criterion.name.as_str(), criterion.counted(scored));
        let is_shown = scored.parts.is_empty() || matches!(criterion.test, Test::Set { .. });
        let own = is_shown.then_some(own).into_iter();
        let parts = scored.parts.iter().map(|(name, score)| (name.as_str(), *score));
        for (name, score) in own.chain(parts) {
            let place = *places.entry(name).or_insert(named.len());
            if place == named.len() {
                named.push((name, [0.0; 4]));
            }
            let weight = criterion.weight;
            for (sum, more) in named[place].1.iter_mut().zip([score, score * weight, weight, 1.0]) {
                *sum += more;
            }
        }
    }
    let mean = |[plain, weighed, weights, count]: [f64; 4]| match weights > 0.0 {
        true => weighed / weights,
        false => plain / count,
    };
    named.into_iter().map(|(name, sums)| (name.to_owned(), mean(sums))).collect()
}

/// Verdict on a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    scorer: String,
    /// At least one, where there is a verdict.
    samples: Vec<Sample>,
    /// The one whose answer most samples give; of several the first.
    chosen: usize,
    /// Why there is no verdict.
    not_judged: Option<String>,
}

impl Verdict {
    /// The verdict over all completions of a row.
    pub(super) fn new(rubric: &Rubric, samples: Vec<Sample>) -> Self {
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for sample in &samples {
            *votes.entry(&sample.vote).or_default() += 1;
        }
        let votes = |at: usize| votes[samples[at].vote.as_str()];
        let better = |best: usize, at: usize| if votes(at) > votes(best) { at } else { best };
        let chosen = (0..samples.len()).reduce(better).unwrap_or(0);
        Self { scorer: rubric.names(), samples, chosen, not_judged: None }
    }

    /// Verdict on a row that no scorer can score: the reason.
    pub(super) fn none(scorer: String, reason: &str) -> Self {
        let not_judged = Some(format!("{NOT_JUDGED}: {reason}"));
        Self { scorer, samples: Vec::new(), chosen: 0, not_judged }
    }

    /// Appends the fields of a row, each with a comma before it.
    pub fn append(&self, line: &mut Vec<u8>) {
        for (name, value) in self.fields() {
            line.extend_from_slice(format!(",\"{name}\":").as_bytes());
            serde_json::to_writer(&mut *line, &value).expect("plain values into memory");
        }
    }

    /// `score` is the mean over completions; the rest is of the one with the most votes.
    fn fields(&self) -> Map<String, Value> {
        if let Some(reason) = &self.not_judged {
            let fields = json!({"score": Value::Null, "passed": Value::Null, "scorer": self.scorer,
                "reason": reason});
            return fields.as_object().cloned().unwrap_or_default();
        }
        let chosen = &self.samples[self.chosen];
        let mean = |of: &dyn Fn(&Sample) -> f64| {
            self.samples.iter().map(of).sum::<f64>() / self.samples.len() as f64
        };
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
        set("score", mean(&|sample| sample.score).into());
        set("passed", chosen.passed.into());
        set("scorer", self.scorer.clone().into());
        if let Some(extracted) = &chosen.extracted {
            set("extracted", extracted.clone().into());
        }
        let is_only_score = matches!(&chosen.scores[..], [(name, _)] if *name == self.scorer);
        if !is_only_score && !chosen.scores.is_empty() {
            let scores = chosen.scores.iter().enumerate();
            let scores = scores
                .map(|(at, (name, _))| (name.clone(), mean(&|sample| sample.scores[at].1).into()));
            set("scores", Value::Object(scores.collect()));
        }
        if let Some(errors) = all_of(self.samples.iter().map(|sample| sample.errors)) {
            set("errors", json!(errors));
        }
        if let Some(reason) = &chosen.reason {
            set("reason", reason.clone().into());
        }
        if self.samples.len() > 1 {
            let samples = self.samples.iter().map(|sample| {
                let mut shown = json!({"score": sample.score, "passed": sample.passed});
                if let Some(extracted) = &sample.extracted {
                    shown["extracted"] = extracted.clone().into();
                }
                shown
            });
            set("samples", samples.collect());
        }
        fields
    }
}
