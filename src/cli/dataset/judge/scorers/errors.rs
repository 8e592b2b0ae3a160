//! Errors of transcripts: words or characters to change, beside how many were expected, as jiwer
//! counts them.

use serde::{Deserialize, Serialize};

use super::edits;
use crate::judge::criterion::Scored;
use crate::judge::work::{TooMuch, Work};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// What white space parts.
    Word,
    /// A character, spaces too.
    Character,
}

/// The errors of answers (`errors` of a row).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Errors {
    /// Words to insert, leave out or replace.
    #[serde(skip_serializing_if = "is_zero")]
    pub word_errors: u64,
    /// Words that were expected.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_words: u64,
    /// The same of characters.
    #[serde(skip_serializing_if = "is_zero")]
    pub char_errors: u64,
    /// Characters that were expected.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_chars: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Errors {
    fn new(unit: Unit, errors: usize, expected: usize) -> Self {
        let (errors, expected) = (errors as u64, expected as u64);
        match unit {
            Unit::Word => Self { word_errors: errors, num_words: expected, ..Self::default() },
            Unit::Character => Self { char_errors: errors, num_chars: expected, ..Self::default() },
        }
    }

    /// The same of both texts.
    pub fn add(&mut self, other: &Self) {
        self.word_errors += other.word_errors;
        self.num_words += other.num_words;
        self.char_errors += other.char_errors;
        self.num_chars += other.num_chars;
    }

    /// The rates of all texts together, by their names; without those of which nothing is counted.
    pub fn measures(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let rates =
            [("wer", self.word_errors, self.num_words), ("cer", self.char_errors, self.num_chars)];
        let counted = rates.into_iter().filter(|(_, _, expected)| *expected > 0);
        counted.map(|(name, errors, expected)| (name, errors as f64 / expected as f64))
    }
}

impl Unit {
    /// The measure of rows: one less the rate, 1 of no error.
    fn accuracy(self) -> &'static str {
        match self {
            Unit::Word => "word_accuracy",
            Unit::Character => "char_accuracy",
        }
    }

    fn count(self, text: &str) -> usize {
        match self {
            Unit::Word => text.split_whitespace().count(),
            Unit::Character => text.chars().count(),
        }
    }

    fn errors(self, answer: &str, expected: &str, work: &Work) -> Result<usize, TooMuch> {
        match self {
            Unit::Word => edits::distance_of_words(answer, expected, work),
            Unit::Character => edits::distance(answer, expected, work),
        }
    }
}

/// The errors beside the nearest of several texts.
///
/// # Errors
/// The texts are too long.
pub(in crate::judge) fn score(
    unit: Unit,
    answer: &str,
    expected: &[String],
    work: &Work,
) -> Result<Scored, TooMuch> {
    let mut best = Scored { score: f64::NEG_INFINITY, ..Scored::default() };
    for text in expected {
        let (errors, count) = (unit.errors(answer, text, work)?, unit.count(text));
        // Of nothing that is expected each error is a whole one.
        let score = 1.0 - errors as f64 / count.max(1) as f64;
        if score > best.score {
            let errors = Some(Errors::new(unit, errors, count));
            best = Scored { score, errors, ..Scored::default() };
        }
    }
    let parts = vec![(unit.accuracy().to_owned(), best.score)];
    Ok(Scored { parts, ..best })
}
