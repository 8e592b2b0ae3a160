//! `JudgedRow`: what a row says of itself, before it is answered and after.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::FIELDS;
use super::scorers::number::Decimal;
use super::scorers::perplexity::Loglikelihood;
use crate::input::fields::JsonFields;
use crate::input::path::{self, Missing};
use crate::input::row::{ListedChoices, listed_choices};

/// Names of the field with what is expected, the first that is there: those that are usual, and
/// those of published data sets.
pub const EXPECTED: [&str; 11] = [
    "expected",
    "answer",
    "target",
    "ideal",
    "label",
    "answerKey",
    "answers",
    "correct_answer",
    "correct_answers",
    "best_answer",
    "solution",
];

/// A row: its own fields, and what an output row adds to them.
#[derive(Clone, Copy)]
pub struct JudgedRow<'a> {
    fields: &'a JsonFields,
    /// Of an output row: the field with the answer.
    out_field: Option<&'a str>,
}

/// The completions of a row that shows more than one.
#[derive(Deserialize)]
struct Output {
    text: String,
    /// What is left of the text beside thinking and calls.
    #[serde(default, deserialize_with = "given")]
    content: Option<Option<String>>,
}

/// A field that is there, be it null.
fn given<'de, D: serde::Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Deserialize::deserialize(field).map(Some)
}

/// The likelihood of one choice. A probability of nothing has no logarithm, and is null.
#[derive(Deserialize)]
struct ChoiceLogprob {
    logprob: Option<f64>,
}

impl<'a> JudgedRow<'a> {
    /// A row of the input.
    pub fn of_input(fields: &'a JsonFields) -> Self {
        Self { fields, out_field: None }
    }

    /// A row of an output.
    pub fn of_output(fields: &'a JsonFields, out_field: &'a str) -> Self {
        Self { fields, out_field: Some(out_field) }
    }

    /// The JSON text of a field that the row had when it was read, or of a part of it: one whose
    /// name is ours is kept as `input_NAME`.
    pub fn own_json(&self, name: &str) -> Option<&'a str> {
        self.find(name).ok().filter(|text| *text != "null")
    }

    /// The same, or why there is none.
    ///
    /// # Errors
    /// The row has no such field, or part of one.
    pub fn find(&self, name: &str) -> Result<&'a str, Missing> {
        path::find_by(name, |name| {
            let is_ours = |field: &str| field == name || FIELDS.contains(&name);
            match self.out_field.is_some_and(is_ours) {
                true => self.fields.get(&format!("input_{name}")),
                false => self.fields.get(name),
            }
        })
    }

    /// The same as a value. A number that machines would round, alone or in a list, is its text.
    pub fn own(&self, name: &str) -> Option<Value> {
        let json = self.own_json(name)?;
        let value = serde_json::from_str(json).ok()?;
        Some(match &value {
            Value::Number(_) => unrounded(json, value),
            Value::Array(values) if values.iter().any(Value::is_number) => {
                let texts: Vec<&RawValue> = serde_json::from_str(json).ok()?;
                let values = texts.iter().zip(values);
                values.map(|(text, value)| unrounded(text.get(), value.clone())).collect()
            }
            _ => value,
        })
    }

    /// The name of the field with what is expected of the answer: that of the flag, or one of the
    /// usual ones.
    pub fn expected_name(&self, column: Option<&'a str>) -> Option<&'a str> {
        match column {
            Some(name) => self.own_json(name).map(|_| name),
            None => EXPECTED.into_iter().find(|name| self.own_json(name).is_some()),
        }
    }

    /// The texts that the answer is one of.
    ///
    /// # Errors
    /// They are no list of texts.
    pub fn choices(&self) -> Result<Option<ListedChoices>, String> {
        listed_choices(&|name| self.own(name))
    }

    /// The texts of the answer, one per completion.
    pub fn answers(&self) -> Vec<String> {
        let value = |name: &str| self.fields.get(name);
        let outputs: Option<Vec<Output>> =
            value("outputs").and_then(|outputs| serde_json::from_str(outputs).ok());
        if let Some(outputs) = outputs.filter(|outputs| outputs.len() > 1) {
            let shown = |output: Output| match output.content {
                Some(content) => content.unwrap_or_default(),
                None => output.text,
            };
            return outputs.into_iter().map(shown).collect();
        }
        let answer = self.out_field.and_then(value).unwrap_or_default();
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        vec![text_of(&answer)]
    }

    /// Whether the row could not be answered.
    pub fn is_error(&self) -> bool {
        self.fields.get("finish_reason") == Some("\"error\"")
    }

    /// The log-likelihoods of the choices.
    ///
    /// # Errors
    /// There are none, or not one for each.
    pub fn choice_logprobs(&self, num_choices: usize) -> Result<Vec<f64>, String> {
        let field = self.fields.get("choice_logprobs");
        let list: Option<Vec<ChoiceLogprob>> =
            field.and_then(|list| serde_json::from_str(list).ok());
        let list = list.ok_or("the row has no `choice_logprobs`")?;
        if list.len() != num_choices {
            return Err(format!("{num_choices} choices, and {} `choice_logprobs`", list.len()));
        }
        let logprob = |choice: &ChoiceLogprob| choice.logprob.unwrap_or(f64::NEG_INFINITY);
        Ok(list.iter().map(logprob).collect())
    }

    /// The log-likelihood of the row's text.
    ///
    /// # Errors
    /// There is none.
    pub fn loglikelihood(&self) -> Result<Loglikelihood, String> {
        let field = self.fields.get("loglikelihood");
        let found = field.and_then(|value| serde_json::from_str(value).ok());
        found.ok_or_else(|| "the row has no `loglikelihood`".to_owned())
    }
}

/// The value of a number's text, or that text if the value is another number.
fn unrounded(json: &str, value: Value) -> Value {
    let is_same = |shown: &str| Decimal::of_json(shown) == Decimal::of_json(json);
    match value.is_number() && !is_same(&value.to_string()) {
        true => json.into(),
        false => value,
    }
}

/// A value as the text that an answer is compared with.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
