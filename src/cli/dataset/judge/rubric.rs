//! `Rubric`: everything that is asked of one row's answer, by the scorers that were named and by
//! what the row has.

use std::collections::HashSet;
use std::sync::Arc;

use regex::Regex;
use serde_json::{Map, Value};

use super::asserts;
use super::criterion::{Criterion, HowMany, Test};
use super::row::{EXPECTED, JudgedRow, text_of};
use super::scorers::errors::Unit;
use super::scorers::json::Exact;
use super::scorers::number::Decimal;
use super::scorers::schema::Schema;
use super::scorers::words::{Patterns, rouge};
use super::scorers::{letter, vqa};
use super::settings::{PassIf, Scorer, Settings, first_match, pattern};
use crate::input::path::Missing;
use crate::input::row::ListedChoices;

/// Characters of what is expected that messages show.
const MAX_SHOWN: usize = 60;

/// Criteria of a row.
#[derive(Debug)]
pub(super) struct Rubric {
    /// At least one.
    pub criteria: Vec<Criterion>,
}

impl Rubric {
    /// Criteria of this row.
    ///
    /// # Errors
    /// The row lacks what a scorer needs, or has what it cannot read.
    pub(super) fn of(
        row: &JudgedRow<'_>,
        settings: &Settings,
        patterns: &Arc<Patterns>,
    ) -> Result<Self, String> {
        let asserts = row.own_json("assert");
        let scorers = match (&settings.scorers[..], &asserts) {
            ([], Some(_)) => &[],
            ([], None) => &[Scorer::Exact][..],
            (scorers, _) => scorers,
        };
        let choices = row.choices();
        let name = row.expected_name(settings.expected_column.as_deref());
        let expected = name.and_then(|name| row.own(name));
        let json = name.and_then(|name| row.own_json(name));
        let lacks = settings.expected_column.as_deref().and_then(|name| row.find(name).err());
        let makes = Makes {
            expected: expected.as_ref(),
            json,
            lacks: lacks.as_ref(),
            choices: &choices,
            settings,
            patterns,
        };
        let mut criteria = Vec::new();
        for scorer in scorers {
            criteria.push(makes.criterion(*scorer)?);
        }
        if let Some(asserts) = asserts {
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

    /// Names of the criteria, each once, with commas between them.
    pub(super) fn names(&self) -> String {
        let mut known = HashSet::new();
        let names = self.criteria.iter().map(|criterion| criterion.name.as_str());
        names.filter(|name| known.insert(*name)).collect::<Vec<_>>().join(",")
    }
}

/// What criteria of one row are made from.
struct Makes<'a> {
    expected: Option<&'a Value>,
    /// The same as it is written.
    json: Option<&'a str>,
    /// Why there is nothing under the name that was given.
    lacks: Option<&'a Missing>,
    choices: &'a Result<Option<ListedChoices>, String>,
    settings: &'a Settings,
    patterns: &'a Arc<Patterns>,
}

impl Makes<'_> {
    fn criterion(&self, scorer: Scorer) -> Result<Criterion, String> {
        let name = scorer.name().to_owned();
        let test = self.test(scorer)?;
        let right = test.is_binary().then(|| PassIf::at_least(1.0));
        let pass_if = self.settings.pass_if.or(right);
        let (weight, is_negated) = (1.0, false);
        let (has_metric, is_assert) = (false, false);
        Ok(Criterion { name, weight, is_negated, pass_if, test, has_metric, is_assert })
    }

    fn test(&self, scorer: Scorer) -> Result<Test, String> {
        let contains = |texts: Vec<String>, ignores_case| Test::Contains {
            texts,
            ignores_case,
            how_many: HowMany::Any,
        };
        Ok(match scorer {
            Scorer::Exact => Test::Equals(self.equal()?),
            Scorer::Contains => contains(self.normalized()?, false),
            Scorer::IContains => {
                contains(self.normalized()?.iter().map(|t| t.to_lowercase()).collect(), true)
            }
            Scorer::StartsWith => Test::StartsWith(self.normalized()?),
            Scorer::Regex => Test::Matches(self.each(pattern)?),
            Scorer::Number => Test::Number(self.each(|text| {
                Decimal::parse(text).ok_or_else(|| {
                    let text: String = text.chars().take(MAX_SHOWN).collect();
                    format!("`{text}` is no number; --expected-extract REGEX finds one in a text")
                })
            })?),
            Scorer::Letter => Test::Letter(self.letters()?),
            Scorer::Json => Test::Json { is_whole: false, expected: self.exact()? },
            Scorer::JsonSchema => {
                self.values()?;
                let schema = self.exact()?.map(|schema| schema.plain().clone());
                Test::JsonSchema {
                    is_whole: false,
                    schema: Schema::new(schema.unwrap_or_default(), &self.patterns.stack)?,
                }
            }
            Scorer::F1 => Test::F1(self.each(|text| Ok(self.patterns.squad(text)))?),
            Scorer::Levenshtein => Test::Likeness(self.normalized()?),
            Scorer::Anls => Test::Anls(self.texts()?),
            Scorer::Wer => Test::Errors(Unit::Word, self.normalized()?),
            Scorer::Cer => Test::Errors(Unit::Character, self.normalized()?),
            Scorer::Vqa => Test::Vqa(self.of_people()?),
            Scorer::RougeL => Test::RougeL(self.each(|text| Ok(rouge(text)))?),
            Scorer::Bleu => Test::Bleu(self.texts()?),
            Scorer::Chrf => Test::Chrf(self.texts()?),
            Scorer::Choice => {
                let choices = self.choices.clone()?;
                let choices = choices.ok_or("the row has no `choices`")?.texts;
                Test::Choice { choices, right: self.places()? }
            }
            Scorer::Perplexity => Test::Perplexity,
            Scorer::Command => Test::Command,
        })
    }

    /// Expected values: one, or several of which any is right.
    fn values(&self) -> Result<Vec<Value>, String> {
        let values = match self.expected {
            Some(Value::Object(fields)) => match of_object(fields) {
                Some(values) => values,
                None => vec![Value::Object(fields.clone())],
            },
            Some(Value::Array(values)) => values.clone(),
            Some(value) => vec![value.clone()],
            None => return Err(self.nothing()),
        };
        if values.is_empty() {
            return Err("the row expects one of an empty list".to_owned());
        }
        match &self.settings.expected_extract {
            None => Ok(values),
            Some(pattern) => values.iter().map(|value| extracted(pattern, value)).collect(),
        }
    }

    /// What is said of a row that expects nothing.
    fn nothing(&self) -> String {
        match &self.settings.expected_column {
            Some(name) => match self.lacks {
                Some(Missing::Part(text)) => format!("the row has no `{name}`: {text}"),
                Some(Missing::Field) | None => format!("the row has no `{name}`"),
            },
            None => {
                let others = EXPECTED[1..].join("`, `");
                format!(
                    "the row has no `expected` (nor `{others}`); --expected-column NAME names \
                         another field, and --scorer command needs none"
                )
            }
        }
    }

    fn texts(&self) -> Result<Vec<String>, String> {
        Ok(self.values()?.iter().map(text_of).collect())
    }

    /// Answers of people: texts, or objects that have one as `answer` (VQAv2).
    fn of_people(&self) -> Result<Vec<String>, String> {
        let values = self.values()?;
        let answers = values.iter().map(|value| text_of(value.get("answer").unwrap_or(value)));
        Ok(answers.map(|answer| vqa::normal(&answer)).collect())
    }

    fn each<T>(&self, make: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
        self.texts()?.iter().map(|text| make(text)).collect()
    }

    fn normalized(&self) -> Result<Vec<String>, String> {
        let normalize = self.settings.normalize.unwrap_or_default();
        self.each(|text| Ok(self.patterns.normalized(text, normalize)))
    }

    /// Texts that an answer may equal. true is also yes, as models say it.
    fn equal(&self) -> Result<Vec<String>, String> {
        let mut texts = self.normalized()?;
        for value in self.values()? {
            let words: &[&str] = match value {
                Value::Bool(true) => &["True", "yes", "Yes"],
                Value::Bool(false) => &["False", "no", "No"],
                _ => &[],
            };
            let normalize = self.settings.normalize.unwrap_or_default();
            texts.extend(words.iter().map(|word| self.patterns.normalized(word, normalize)));
        }
        Ok(texts)
    }

    /// JSON within a text is what the text says.
    fn exact(&self) -> Result<Option<Exact>, String> {
        if self.settings.expected_extract.is_some() {
            let texts = self.texts()?;
            let found = texts.first().and_then(|text| Exact::parse(text));
            return found.map(Some).ok_or_else(|| "what is extracted is no JSON".to_owned());
        }
        let Some(json) = self.json else { return Ok(None) };
        let inner: Option<String> = serde_json::from_str(json).ok();
        Ok(inner.and_then(|inner| Exact::parse(&inner)).or_else(|| Exact::parse(json)))
    }

    /// The place of a choice: by its label, its text, its letter, or its number from 0.
    fn place(&self, value: &Value, choices: Option<&ListedChoices>) -> Option<usize> {
        let num_choices = choices.map_or(letter::NUM_LETTERS, |choices| choices.texts.len());
        let text = text_of(value);
        let text = text.trim();
        let in_list = |list: &[String]| list.iter().position(|one| one.trim() == text);
        let by_label = choices.and_then(|choices| in_list(&choices.labels));
        let by_text = || choices.filter(|_| value.is_string()).and_then(|one| in_list(&one.texts));
        let is_letter = |place: &usize| {
            letter::of_place(*place).is_some_and(|c| text.eq_ignore_ascii_case(&c.to_string()))
        };
        let by_letter = || (0..letter::NUM_LETTERS).find(is_letter);
        let place = by_label.or_else(by_text).or_else(by_letter).or_else(|| text.parse().ok());
        place.filter(|place| *place < num_choices)
    }

    fn places(&self) -> Result<Vec<usize>, String> {
        let choices = self.choices.as_ref().ok().and_then(Option::as_ref);
        if let Some(choices) = choices.filter(|choices| !choices.right.is_empty())
            && self.settings.expected_column.is_none()
        {
            return Ok(choices.right.clone());
        }
        let place = |value: &Value| {
            let place = self.place(value, choices);
            let wrong = || {
                format!("{value} is none of the choices, nor the label, letter or number of one")
            };
            place.ok_or_else(wrong)
        };
        self.values()?.iter().map(place).collect()
    }

    fn letters(&self) -> Result<Vec<char>, String> {
        let letter = |place: usize| {
            letter::of_place(place)
                .ok_or_else(|| format!("choice {place} has no letter: A to J do"))
        };
        self.places()?.into_iter().map(letter).collect()
    }
}

/// Texts of an object that data sets have as what is expected: SQuAD's `text`, and TriviaQA's
/// `value` with `aliases`.
fn of_object(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    if let Some(Value::Array(texts)) = fields.get("text") {
        return Some(texts.clone());
    }
    let Value::Array(aliases) = fields.get("aliases")? else { return None };
    Some([&[fields.get("value")?.clone()], &aliases[..]].concat())
}

/// Match of `--expected-extract` in the expected value.
fn extracted(pattern: &Regex, value: &Value) -> Result<Value, String> {
    let text = text_of(value);
    let found = first_match(pattern, &text).map_err(|error| error.0)?;
    found.map(Value::from).ok_or_else(|| {
        let text: String = text.chars().take(MAX_SHOWN).collect();
        format!("--expected-extract finds nothing in `{text}`")
    })
}
