//! `Criterion`: one thing that is asked of an answer, with everything that it needs.

use regex::Regex;

use super::scorers::errors::{Errors, Unit};
use super::scorers::json::Exact;
use super::scorers::number::Decimal;
use super::scorers::schema::Schema;
use super::settings::PassIf;

/// Score of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// More is better; mostly between 0 and 1.
    pub score: f64,
    /// Text that was taken out of the answer, if the scorer looks for one: perhaps nothing.
    pub extracted: Option<Option<String>>,
    /// Measures beside the score, by their names.
    pub parts: Vec<(String, f64)>,
    /// What was counted of a transcript.
    pub errors: Option<Errors>,
    /// Whether it passes, where the scorer says it.
    pub passed: Option<bool>,
    /// Why, where the scorer says it.
    pub reason: Option<String>,
}

impl Scored {
    pub(super) fn of(is_right: bool) -> Self {
        Self::graded(f64::from(u8::from(is_right)))
    }

    pub(super) fn graded(score: f64) -> Self {
        Self { score, ..Self::default() }
    }

    pub(super) fn with(self, extracted: Option<String>) -> Self {
        Self { extracted: Some(extracted), ..self }
    }
}

/// One thing that is asked.
#[derive(Debug)]
pub(super) struct Criterion {
    /// As reports call it.
    pub name: String,
    /// In the score of the row.
    pub weight: f64,
    /// It must not hold.
    pub is_negated: bool,
    /// Scores that pass; None: the score says no more than itself.
    pub pass_if: Option<PassIf>,
    /// Test of the answer.
    pub test: Test,
    /// The name was given to it.
    pub has_metric: bool,
    /// Whether it is of an `assert` list, which takes answers as they are.
    pub is_assert: bool,
}

/// Texts that the answer must have in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowMany {
    /// At least one.
    Any,
    /// Every one.
    All,
}

/// Test of an answer. Texts are normalized.
#[derive(Debug)]
pub(super) enum Test {
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
    /// It ends with this.
    EndsWith(String),
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
        /// Expected value; `None`: any JSON.
        expected: Option<Exact>,
    },
    /// It is JSON, as a whole or with text around it, as the schema says.
    JsonSchema {
        /// Nothing may stand around it.
        is_whole: bool,
        /// What it must be.
        schema: Schema,
    },
    /// It has an object in it, as the schema says if there is one.
    JsonWithin(Option<Schema>),
    /// It has so many words.
    WordCount {
        /// At least.
        min: f64,
        /// At most.
        max: f64,
    },
    /// All of these hold, or their score reaches the threshold.
    Set {
        /// Perhaps none.
        criteria: Vec<Criterion>,
        /// Threshold; `None`: all have to hold.
        threshold: Option<f64>,
    },
    /// SQuAD's F1 over words.
    F1(Vec<Vec<String>>),
    /// Likeness by characters.
    Likeness(Vec<String>),
    /// Likeness by characters as DocVQA counts it.
    Anls(Vec<String>),
    /// Errors of a transcript.
    Errors(Unit, Vec<String>),
    /// VQA accuracy among normal answers.
    Vqa(Vec<String>),
    /// At most this many characters are other.
    Distance(String, f64),
    /// promptfoo's ROUGE-1 over tokens.
    RougeN(Vec<String>),
    /// promptfoo's BLEU over words.
    PlainBleu(Vec<Vec<String>>),
    /// promptfoo's GLEU over words.
    Gleu(Vec<Vec<String>>),
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
    pub(super) fn is_binary(&self) -> bool {
        !matches!(
            self,
            Test::F1(_)
                | Test::Likeness(_)
                | Test::Anls(_)
                | Test::Errors(..)
                | Test::Vqa(_)
                | Test::RougeN(_)
                | Test::PlainBleu(_)
                | Test::Gleu(_)
                | Test::Set { .. }
                | Test::RougeL(_)
                | Test::Bleu(_)
                | Test::Chrf(_)
                | Test::Perplexity
                | Test::Command
        )
    }

    /// Whether it is asked of an answer's text. The others are asked of what the engine says of
    /// texts that are given.
    pub(super) fn is_of_text(&self) -> bool {
        !matches!(self, Test::Choice { .. } | Test::Perplexity)
    }
}

impl Criterion {
    /// Whether a score passes, with `not-` as its opposite; None: nothing says which do.
    pub(super) fn passes(&self, scored: &Scored) -> Option<bool> {
        let passes = match self.pass_if {
            Some(pass_if) => pass_if.holds(scored.score),
            None => scored.passed?,
        };
        Some(passes != self.is_negated)
    }

    /// The score in the row's score: of `not-` what is left of 1.
    pub(super) fn counted(&self, scored: &Scored) -> f64 {
        match self.is_negated {
            true => 1.0 - scored.score,
            false => scored.score,
        }
    }
}
