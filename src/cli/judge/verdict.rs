//! `Verdict`: what a row is worth, and how the row shows it.

use serde_json::{Map, Value, json};

use super::criterion::Scored;
use super::rubric::Rubric;

/// What one completion of a row is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    score: f64,
    passed: Option<bool>,
    extracted: Option<Option<String>>,
    /// By the criteria's names, and by those of their parts.
    scores: Vec<(String, f64)>,
    reason: Option<String>,
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
        let passes: Option<Vec<bool>> =
            judging.clone().map(|(criterion, scored)| criterion.passes(scored)).collect();
        let failed = judging.find(|(one, scored)| one.passes(scored) == Some(false));
        let named =
            failed.filter(|_| scored.len() > 1).map(|(one, _)| format!("{} failed", one.name));
        let extracted = scored.iter().find_map(|scored| scored.extracted.clone());
        Self {
            score: if total > 0.0 { sum / total } else { 1.0 },
            passed: passes.map(|passes| passes.into_iter().all(|passes| passes)),
            vote: extracted.clone().flatten().or(vote).unwrap_or_default(),
            extracted,
            scores: named_scores(rubric, scored),
            reason: scored.iter().find_map(|scored| scored.reason.clone()).or(named),
        }
    }
}

/// Scores by name. Of criteria with the same name the mean; a criterion with parts is its parts.
fn named_scores(rubric: &Rubric, scored: &[Scored]) -> Vec<(String, f64)> {
    let mut named: Vec<(String, f64, usize)> = Vec::new();
    for (criterion, scored) in rubric.criteria.iter().zip(scored) {
        let own = [(criterion.name.as_str(), criterion.counted(scored))];
        let parts = if scored.parts.is_empty() { &own[..] } else { &scored.parts };
        for (name, score) in parts {
            match named.iter_mut().find(|(known, ..)| known == name) {
                Some((_, sum, count)) => (*sum, *count) = (*sum + score, *count + 1),
                None => named.push(((*name).to_owned(), *score, 1)),
            }
        }
    }
    named.into_iter().map(|(name, sum, count)| (name, sum / count as f64)).collect()
}

/// What a row is worth.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    scorer: String,
    /// At least one.
    samples: Vec<Sample>,
    /// The one whose answer most samples give; of several the first.
    chosen: usize,
}

impl Verdict {
    /// The verdict over all completions of a row.
    pub(super) fn new(rubric: &Rubric, samples: Vec<Sample>) -> Self {
        let mut names: Vec<&str> = Vec::new();
        for criterion in &rubric.criteria {
            if !names.contains(&criterion.name.as_str()) {
                names.push(&criterion.name);
            }
        }
        let votes = |sample: &Sample| samples.iter().filter(|one| one.vote == sample.vote).count();
        let better = |best: usize, at: usize| {
            if votes(&samples[at]) > votes(&samples[best]) { at } else { best }
        };
        let chosen = (0..samples.len()).reduce(better).unwrap_or(0);
        Self { scorer: names.join(","), samples, chosen }
    }

    /// Of a row that lacks what was there when it was read.
    pub(super) fn refused(reason: String) -> Self {
        let sample = Sample {
            score: 0.0,
            passed: Some(false),
            extracted: None,
            scores: Vec::new(),
            reason: Some(reason),
            vote: String::new(),
        };
        Self { scorer: String::new(), samples: vec![sample], chosen: 0 }
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
