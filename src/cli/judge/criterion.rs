//! `Criterion`: one thing that is asked of an answer, with everything that it needs.

use std::sync::Arc;

use regex::Regex;
use serde_json::Value;

use super::scorers::number::{self, Decimal};
use super::scorers::schema::Schema;
use super::scorers::words::{Patterns, rouge};
use super::scorers::{choice, edits, json, letter, ngrams, overlap};
use super::settings::{Normalize, PassIf};

/// What an answer is worth.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// More is better; mostly between 0 and 1.
    pub score: f64,
    /// What was taken out of the answer, where the scorer looks for something: perhaps nothing.
    pub extracted: Option<Option<String>>,
    /// Measures beside the score, by their names.
    pub parts: Vec<(&'static str, f64)>,
    /// Whether it passes, where the scorer says it.
    pub passed: Option<bool>,
    /// Why, where the scorer says it.
    pub reason: Option<String>,
}

impl Scored {
    fn of(is_right: bool) -> Self {
        Self::graded(f64::from(u8::from(is_right)))
    }

    fn graded(score: f64) -> Self {
        Self { score, ..Self::default() }
    }

    fn with(self, extracted: Option<String>) -> Self {
        Self { extracted: Some(extracted), ..self }
    }
}

/// One thing that is asked.
#[derive(Debug)]
pub struct Criterion {
    /// As reports call it.
    pub name: String,
    /// In the score of the row.
    pub weight: f64,
    /// It must not hold.
    pub is_negated: bool,
    /// Scores that pass; None: the score says no more than itself.
    pub pass_if: Option<PassIf>,
    /// What is asked.
    pub test: Test,
}

/// Texts that the answer must have in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HowMany {
    /// At least one.
    Any,
    /// Every one.
    All,
}

/// What is asked of an answer. Texts are normalized.
#[derive(Debug)]
pub enum Test {
    /// It is one of these.
    Equals(Vec<String>),
    /// It has these in it.
    Contains {
        /// In lower case if case does not count.
        texts: Vec<String>,
        /// Upper and lower case are alike.
        ignores_case: bool,
        /// Of the texts.
        how_many: HowMany,
    },
    /// It begins with one of these.
    StartsWith(Vec<String>),
    /// One of these matches somewhere.
    Matches(Vec<Regex>),
    /// Its last number is one of these.
    Number(Vec<Decimal>),
    /// It gives one of these letters.
    Letter(Vec<char>),
    /// It is JSON, as a whole or with text around it, and equal to this.
    Json {
        /// Nothing may stand around it.
        is_whole: bool,
        /// None: any JSON.
        expected: Option<Value>,
    },
    /// It is JSON, as a whole or with text around it, as the schema says.
    JsonSchema {
        /// Nothing may stand around it.
        is_whole: bool,
        /// What it must be.
        schema: Schema,
    },
    /// SQuAD's F1 over words.
    F1(Vec<Vec<String>>),
    /// Likeness by characters.
    Likeness(Vec<String>),
    /// At most this many characters are other.
    Distance(Vec<String>, usize),
    /// ROUGE-1 over words.
    Rouge1(Vec<Vec<String>>),
    /// ROUGE-L over words.
    RougeL(Vec<Vec<String>>),
    /// BLEU of a sentence.
    Bleu(Vec<String>),
    /// chrF of a sentence.
    Chrf(Vec<String>),
    /// One of these places of the choices is the likeliest.
    Choice {
        /// The texts.
        choices: Vec<String>,
        /// Places that are right.
        right: Vec<usize>,
    },
    /// The log-likelihood of the text, in bits per byte.
    Perplexity,
    /// What a program of the user's says.
    Command,
}

impl Test {
    /// Whether there is nothing between right and wrong.
    pub fn is_binary(&self) -> bool {
        !matches!(
            self,
            Test::F1(_)
                | Test::Likeness(_)
                | Test::Rouge1(_)
                | Test::RougeL(_)
                | Test::Bleu(_)
                | Test::Chrf(_)
                | Test::Perplexity
                | Test::Command
        )
    }

    /// Whether it is asked of an answer's text. The others are asked of what the engine says of
    /// texts that are given.
    pub fn is_of_text(&self) -> bool {
        !matches!(self, Test::Choice { .. } | Test::Perplexity)
    }

    /// What a text is worth.
    pub fn score(&self, answer: &str, normalize: Normalize, patterns: &Arc<Patterns>) -> Scored {
        let normal = || patterns.normalized(answer, normalize);
        let best =
            |scores: &mut dyn Iterator<Item = f64>| Scored::graded(scores.fold(0.0, f64::max));
        match self {
            Test::Equals(texts) => Scored::of(texts.contains(&normal())),
            Test::Contains { texts, ignores_case, how_many } => {
                let answer = if *ignores_case { normal().to_lowercase() } else { normal() };
                let is_there = |text: &String| answer.contains(text);
                Scored::of(match how_many {
                    HowMany::Any => texts.iter().any(is_there),
                    HowMany::All => texts.iter().all(is_there),
                })
            }
            Test::StartsWith(texts) => {
                let answer = normal();
                Scored::of(texts.iter().any(|text| answer.starts_with(text)))
            }
            Test::Matches(regexes) => {
                Scored::of(regexes.iter().any(|regex| regex.is_match(answer)))
            }
            Test::Number(numbers) => {
                let found = number::last_of(answer);
                let is_right = found.as_ref().is_some_and(|(_, found)| numbers.contains(found));
                Scored::of(is_right).with(found.map(|(text, _)| text.to_owned()))
            }
            Test::Letter(letters) => {
                let found = letter::given(answer, patterns);
                let is_right = found.is_some_and(|found| letters.contains(&found));
                Scored::of(is_right).with(found.map(String::from))
            }
            Test::Json { is_whole, expected } => {
                let found = json_in(answer, *is_whole);
                let is_right = found.as_ref().is_some_and(|found| {
                    expected.as_ref().is_none_or(|expected| json::equal(found, expected))
                });
                Scored::of(is_right).with(found.map(|found| found.to_string()))
            }
            Test::JsonSchema { is_whole, schema } => {
                let found = json_in(answer, *is_whole);
                let is_right = found.as_ref().is_some_and(|found| schema.holds(found));
                Scored::of(is_right).with(found.map(|found| found.to_string()))
            }
            Test::F1(texts) => {
                let words = patterns.squad(answer);
                best(&mut texts.iter().map(|text| overlap::f1(&words, text)))
            }
            Test::Likeness(texts) => {
                let answer = normal();
                best(&mut texts.iter().map(|text| edits::likeness(&answer, text)))
            }
            Test::Distance(texts, most) => {
                Scored::of(texts.iter().any(|text| edits::distance(answer, text) <= *most))
            }
            Test::Rouge1(texts) => {
                let words = rouge(answer);
                best(&mut texts.iter().map(|text| overlap::rouge_1(&words, text)))
            }
            Test::RougeL(texts) => {
                let words = rouge(answer);
                best(&mut texts.iter().map(|text| overlap::rouge_l(&words, text)))
            }
            Test::Bleu(texts) => Scored::graded(ngrams::bleu(answer, texts, patterns)),
            Test::Chrf(texts) => Scored::graded(ngrams::chrf(answer, texts)),
            Test::Choice { .. } | Test::Perplexity => unreachable!("they are asked of no text"),
            Test::Command => unreachable!("its program is asked"),
        }
    }

    /// What the log-likelihoods of a row are worth.
    ///
    /// # Errors
    /// The row does not have them.
    pub fn score_row(&self, row: &super::row::JudgedRow<'_>) -> Result<Scored, String> {
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

/// The JSON of an answer.
fn json_in(answer: &str, is_whole: bool) -> Option<Value> {
    match is_whole {
        true => serde_json::from_str(answer.trim()).ok(),
        false => json::found(answer),
    }
}

impl Criterion {
    /// Whether a score passes, with `not-` as its opposite; None: nothing says which do.
    pub fn passes(&self, scored: &Scored) -> Option<bool> {
        let passes = match self.pass_if {
            Some(pass_if) => pass_if.holds(scored.score),
            None => scored.passed?,
        };
        Some(passes != self.is_negated)
    }

    /// The score in the row's score: of `not-` what is left of 1.
    pub fn counted(&self, scored: &Scored) -> f64 {
        match self.is_negated {
            true => 1.0 - scored.score,
            false => scored.score,
        }
    }
}
