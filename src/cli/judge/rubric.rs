//! `Rubric`: everything that is asked of one row's answer, by the scorers that were named and by
//! what the row has.

use std::sync::Arc;

use serde_json::Value;

use super::asserts;
use super::criterion::{Criterion, HowMany, Test};
use super::row::{EXPECTED, JudgedRow, text_of};
use super::scorers::letter;
use super::scorers::number::Decimal;
use super::scorers::schema::Schema;
use super::scorers::words::{Patterns, rouge};
use super::settings::{PassIf, Scorer, Settings, pattern};

/// What is asked of a row.
#[derive(Debug)]
pub struct Rubric {
    /// At least one.
    pub criteria: Vec<Criterion>,
}

impl Rubric {
    /// What is asked of this row.
    ///
    /// # Errors
    /// The row lacks what a scorer needs, or has what it cannot read.
    pub fn of(
        row: &JudgedRow<'_>,
        settings: &Settings,
        patterns: &Arc<Patterns>,
    ) -> Result<Self, String> {
        let asserts = row.own("assert");
        let choices = row.choices()?;
        let scorers = match (&settings.scorers[..], &asserts) {
            ([], Some(_)) => &[],
            ([], None) => &[Scorer::Exact][..],
            (scorers, _) => scorers,
        };
        let expected = row.expected(settings);
        let makes =
            Makes { expected: expected.as_ref(), choices: choices.as_deref(), settings, patterns };
        let mut criteria = Vec::new();
        for scorer in scorers {
            criteria.push(makes.criterion(*scorer)?);
        }
        if let Some(asserts) = &asserts {
            criteria.extend(asserts::criteria(asserts, patterns)?);
        }
        let num_of_text = criteria.iter().filter(|one| one.test.is_of_text()).count();
        if num_of_text != 0 && num_of_text != criteria.len() {
            let message = "`choice` and `perplexity` judge texts that are given, and the other \
                           scorers an answer: not both in one row";
            return Err(message.to_owned());
        }
        match criteria.is_empty() {
            true => Err("the row's `assert` is empty".to_owned()),
            false => Ok(Self { criteria }),
        }
    }
}

/// What criteria of one row are made from.
struct Makes<'a> {
    expected: Option<&'a Value>,
    choices: Option<&'a [String]>,
    settings: &'a Settings,
    patterns: &'a Arc<Patterns>,
}

impl Makes<'_> {
    fn criterion(&self, scorer: Scorer) -> Result<Criterion, String> {
        let name = scorer.name().to_owned();
        let test = self.test(scorer)?;
        let right = test.is_binary().then(|| PassIf::at_least(1.0));
        let pass_if = self.settings.pass_if.or(right);
        Ok(Criterion { name, weight: 1.0, is_negated: false, pass_if, test })
    }

    fn test(&self, scorer: Scorer) -> Result<Test, String> {
        let contains = |texts: Vec<String>, ignores_case| Test::Contains {
            texts,
            ignores_case,
            how_many: HowMany::Any,
        };
        Ok(match scorer {
            Scorer::Exact => Test::Equals(self.normalized()?),
            Scorer::Contains => contains(self.normalized()?, false),
            Scorer::IContains => {
                contains(self.normalized()?.iter().map(|t| t.to_lowercase()).collect(), true)
            }
            Scorer::StartsWith => Test::StartsWith(self.normalized()?),
            Scorer::Regex => Test::Matches(self.each(pattern)?),
            Scorer::Number => Test::Number(self.each(|text| {
                Decimal::parse(text).ok_or_else(|| format!("`{text}` is no number"))
            })?),
            Scorer::Letter => Test::Letter(self.letters()?),
            Scorer::Json => Test::Json { is_whole: false, expected: self.json() },
            Scorer::JsonSchema => {
                self.values()?;
                let schema = self.json().unwrap_or_default();
                Test::JsonSchema {
                    is_whole: false,
                    schema: Schema::new(schema, &self.patterns.stack)?,
                }
            }
            Scorer::F1 => Test::F1(self.each(|text| Ok(self.patterns.squad(text)))?),
            Scorer::Levenshtein => Test::Likeness(self.normalized()?),
            Scorer::RougeL => Test::RougeL(self.each(|text| Ok(rouge(text)))?),
            Scorer::Bleu => Test::Bleu(self.texts()?),
            Scorer::Chrf => Test::Chrf(self.texts()?),
            Scorer::Choice => {
                let choices = self.choices.ok_or("the row has no `choices`")?.to_vec();
                Test::Choice { choices, right: self.places()? }
            }
            Scorer::Perplexity => Test::Perplexity,
            Scorer::Command => Test::Command,
        })
    }

    /// What is expected, as one value or several of which any is right.
    fn values(&self) -> Result<Vec<&Value>, String> {
        match self.expected {
            Some(Value::Array(values)) if values.is_empty() => {
                Err("the row expects one of an empty list".to_owned())
            }
            Some(Value::Array(values)) => Ok(values.iter().collect()),
            Some(value) => Ok(vec![value]),
            None => Err(match &self.settings.expected_column {
                Some(name) => format!("the row has no `{name}`"),
                None => {
                    let others = EXPECTED[1..].join("`, `");
                    format!("the row has no `expected` (nor `{others}`)")
                }
            }),
        }
    }

    fn texts(&self) -> Result<Vec<String>, String> {
        Ok(self.values()?.into_iter().map(text_of).collect())
    }

    fn each<T>(&self, make: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        self.texts()?.iter().map(|text| make(text)).collect()
    }

    fn normalized(&self) -> Result<Vec<String>, String> {
        let normalize = self.settings.normalize;
        self.each(|text| Ok(self.patterns.normalized(text, normalize)))
    }

    /// JSON within a text is what the text says.
    fn json(&self) -> Option<Value> {
        self.expected.map(|expected| match expected {
            Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| expected.clone()),
            other => other.clone(),
        })
    }

    /// The place of a choice: by its number from 0, its text or its letter.
    fn place(&self, value: &Value) -> Option<usize> {
        let num_choices = self.choices.map_or(letter::NUM_LETTERS, <[String]>::len);
        let text = text_of(value);
        let by_text = |choices: &[String]| choices.iter().position(|choice| *choice == text);
        let place = match value.as_u64() {
            Some(place) => usize::try_from(place).ok(),
            None => self.choices.and_then(by_text).or_else(|| {
                let of_letter = |place: &usize| {
                    letter::of_place(*place)
                        .is_some_and(|c| text.trim().eq_ignore_ascii_case(&c.to_string()))
                };
                (0..letter::NUM_LETTERS).find(of_letter)
            }),
        };
        place.filter(|place| *place < num_choices)
    }

    fn places(&self) -> Result<Vec<usize>, String> {
        let place = |value: &Value| {
            let place = self.place(value);
            place.ok_or_else(|| format!("{value} is none of the choices, nor its number or letter"))
        };
        self.values()?.into_iter().map(place).collect()
    }

    fn letters(&self) -> Result<Vec<char>, String> {
        let letter = |place: usize| {
            letter::of_place(place)
                .ok_or_else(|| format!("choice {place} has no letter: A to J do"))
        };
        self.places()?.into_iter().map(letter).collect()
    }
}
