//! Score of an answer by each `Test`, with the work counted.

use std::sync::Arc;

use super::criterion::{Criterion, HowMany, Scored, Test};
use super::row::JudgedRow;
use super::scorers::json::Exact;
use super::scorers::words::{Patterns, rouge};
use super::scorers::{
    choice, edits, errors, json, letter, ngrams, number, overlap, promptfoo, vqa,
};
use super::settings::{Normalize, affordable};
use super::work::{TooMuch, Work};

/// Steps for a byte of texts that are split into words, and into runs of them.
const OF_WORDS: u64 = 32;
const OF_RUNS: u64 = 128;

/// An answer, and what its tests share.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    /// The answer.
    pub text: &'a str,
    /// Before it is compared.
    pub normalize: Normalize,
    /// Patterns of the run.
    pub patterns: &'a Arc<Patterns>,
    /// Remaining work.
    pub work: &'a Work,
}

impl Text<'_> {
    fn normal(&self) -> String {
        self.patterns.normalized(self.text, self.normalize)
    }

    /// The best score of several.
    fn best<T>(
        self,
        expected: &[T],
        score: impl Fn(&T) -> Result<f64, TooMuch>,
    ) -> Result<Scored, TooMuch> {
        let mut best = 0.0;
        for one in expected {
            best = f64::max(best, score(one)?);
        }
        Ok(Scored::graded(best))
    }

    /// Whether one of several texts is right, or all.
    fn matches<T: AsRef<str>>(
        self,
        texts: &[T],
        how_many: HowMany,
        is_right: impl Fn(&str) -> bool,
    ) -> Result<Scored, TooMuch> {
        for text in texts {
            self.work.read(1, [self.text.len(), text.as_ref().len()])?;
            if is_right(text.as_ref()) == (how_many == HowMany::Any) {
                return Ok(Scored::of(how_many == HowMany::Any));
            }
        }
        Ok(Scored::of(how_many == HowMany::All))
    }

    /// Takes the work of splitting the answer and what is expected.
    fn split(self, steps: u64, expected: &[Vec<String>]) -> Result<(), TooMuch> {
        let size: usize = expected.iter().flatten().map(|word| word.len() + 1).sum();
        self.work.read(steps, [self.text.len().saturating_mul(expected.len().max(1)), size])
    }
}

impl Test {
    /// Score of a text.
    ///
    /// # Errors
    /// It is too much work.
    pub(super) fn score(&self, answer: Text<'_>) -> Result<Scored, TooMuch> {
        let Text { text, patterns, work, .. } = answer;
        match self {
            Test::Equals(texts) => {
                let normal = answer.normal();
                answer.matches(texts, HowMany::Any, |text| normal == text)
            }
            Test::Contains { texts, ignores_case, how_many } => {
                let normal = answer.normal();
                let normal = if *ignores_case { normal.to_lowercase() } else { normal };
                answer.matches(texts, *how_many, |text| normal.contains(text))
            }
            Test::StartsWith(texts) => {
                let normal = answer.normal();
                answer.matches(texts, HowMany::Any, |text| normal.starts_with(text))
            }
            Test::EndsWith(end) => Ok(Scored::of(text.ends_with(end))),
            Test::Matches(regexes) => {
                for regex in regexes {
                    affordable(regex, text)?;
                    work.read(64, [text.len(), 0])?;
                    if regex.is_match(text) {
                        return Ok(Scored::of(true));
                    }
                }
                Ok(Scored::of(false))
            }
            Test::Number(numbers) => {
                work.read(8, [text.len(), 0])?;
                let found = number::last_of(text);
                let value = found.as_ref().and_then(|(_, value)| value.as_ref());
                let is_right = value.is_some_and(|value| numbers.contains(value));
                Ok(Scored::of(is_right).with(found.map(|(text, _)| text)))
            }
            Test::Letter(letters) => {
                work.read(64, [text.len(), 0])?;
                let found = letter::given(text, patterns);
                let is_right = found.is_some_and(|found| letters.contains(&found));
                Ok(Scored::of(is_right).with(found.map(String::from)))
            }
            Test::Json { .. } | Test::JsonSchema { .. } | Test::JsonWithin(_) => self.json(answer),
            Test::WordCount { min, max } => {
                let count = text.split_whitespace().count() as f64;
                Ok(Scored::of(count >= *min && count <= *max))
            }
            Test::Set { criteria, threshold } => set(criteria, *threshold, answer),
            _ => self.graded(answer),
        }
    }

    fn json(&self, answer: Text<'_>) -> Result<Scored, TooMuch> {
        let Text { text, work, .. } = answer;
        let found = |is_whole: bool| match is_whole {
            true => work.read(8, [text.len(), 0]).map(|()| Exact::parse(text.trim())),
            false => json::found(text, work),
        };
        let (found, is_right) = match self {
            Test::Json { is_whole, expected } => {
                let found = found(*is_whole)?;
                let is_right =
                    |found: &Exact| expected.as_ref().is_none_or(|one| one.equals(found));
                let is_right = found.as_ref().is_some_and(is_right);
                (found, is_right)
            }
            Test::JsonSchema { is_whole, schema } => {
                let found = found(*is_whole)?;
                let is_right =
                    found.as_ref().map(|found| schema.holds(found.plain())).transpose()?;
                (found, is_right.unwrap_or(false))
            }
            Test::JsonWithin(schema) => {
                let mut first = None;
                for found in json::objects_in(text, work) {
                    let found = found?;
                    let holds = schema.as_ref().map(|schema| schema.holds(found.plain()));
                    if holds.transpose()?.unwrap_or(true) {
                        return Ok(Scored::of(true).with(Some(found.to_string())));
                    }
                    first.get_or_insert(found);
                }
                (first, false)
            }
            _ => unreachable!("it is asked of JSON"),
        };
        Ok(Scored::of(is_right).with(found.map(|found| found.to_string())))
    }

    /// A score between 0 and 1.
    fn graded(&self, answer: Text<'_>) -> Result<Scored, TooMuch> {
        let Text { text, patterns, work, .. } = answer;
        match self {
            Test::F1(texts) => {
                answer.split(OF_WORDS, texts)?;
                let words = patterns.squad(text);
                answer.best(texts, |text| Ok(overlap::f1(&words, text)))
            }
            Test::Likeness(texts) => {
                let normal = answer.normal();
                answer.best(texts, |text| edits::likeness(&normal, text, work))
            }
            Test::Anls(texts) => answer.best(texts, |expected| edits::anls(text, expected, work)),
            Test::Errors(unit, texts) => {
                let normal = answer.normal();
                errors::score(*unit, &normal, texts, work)
            }
            Test::Vqa(people) => {
                work.read(1, [text.len(), people.len()])?;
                Ok(Scored::graded(vqa::accuracy(&vqa::normal(text), people)))
            }
            Test::Distance(other, most) => {
                edits::is_within(text, other, *most, work).map(Scored::of)
            }
            Test::RougeN(expected) => {
                answer.split(OF_WORDS, std::slice::from_ref(expected))?;
                Ok(Scored::graded(overlap::rouge_1(&promptfoo::treebank(text), expected)))
            }
            Test::RougeL(texts) => {
                answer.split(OF_WORDS, texts)?;
                let words = rouge(text);
                answer.best(texts, |text| overlap::rouge_l(&words, text, work))
            }
            Test::PlainBleu(texts) => {
                answer.split(OF_RUNS, texts)?;
                Ok(Scored::graded(promptfoo::bleu(&promptfoo::words(text), texts)))
            }
            Test::Gleu(texts) => {
                answer.split(OF_RUNS, texts)?;
                Ok(Scored::graded(promptfoo::gleu(&promptfoo::words(text), texts)))
            }
            Test::Bleu(texts) | Test::Chrf(texts) => {
                for other in texts {
                    work.read(OF_RUNS, [text.len(), other.len()])?;
                }
                Ok(Scored::graded(match self {
                    Test::Bleu(_) => ngrams::bleu(text, texts, patterns),
                    _ => ngrams::chrf(text, texts),
                }))
            }
            Test::Choice { .. } | Test::Perplexity => unreachable!("they are asked of no text"),
            _ => unreachable!("its program is asked"),
        }
    }

    /// Score of the log-likelihoods of a row.
    ///
    /// # Errors
    /// The row does not have them.
    pub(super) fn score_row(&self, row: &JudgedRow<'_>) -> Result<Scored, String> {
        match self {
            Test::Choice { choices, right } => {
                let logprobs = row.choice_logprobs(choices.len())?;
                Ok(choice::score(choices, right, &logprobs))
            }
            _ => {
                let score = row.loglikelihood()?.bits_per_byte();
                Ok(Scored::graded(score.ok_or("the text is empty")?))
            }
        }
    }
}

/// What a set is worth: the mean of its scores by their weights, and whether all hold or the mean
/// reaches the threshold. Scores that have a name of their own are shown too.
fn set(
    criteria: &[Criterion],
    threshold: Option<f64>,
    answer: Text<'_>,
) -> Result<Scored, TooMuch> {
    let (mut sum, mut weights, mut holds) = (0.0, 0.0, true);
    let mut parts = Vec::new();
    for one in criteria {
        let scored = one.test.score(answer)?;
        let score = one.counted(&scored);
        (sum, weights) = (sum + one.weight * score, weights + one.weight);
        holds &= one.weight == 0.0 || one.passes(&scored) == Some(true);
        if one.has_metric {
            parts.push((one.name.clone(), score));
        }
    }
    let score = if weights > 0.0 { sum / weights } else { 0.0 };
    let passed = threshold.map_or(holds, |threshold| score >= threshold);
    Ok(Scored { score, passed: Some(passed), parts, ..Scored::default() })
}
