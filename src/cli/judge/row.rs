//! `JudgedRow`: what a row says of itself, before it is answered and after.

use serde::Deserialize;
use serde_json::Value;

use super::FIELDS;
use super::scorers::perplexity::Loglikelihood;
use super::settings::Settings;
use crate::cli::input::fields::JsonFields;

/// Names of the field with what is expected, the first that is there.
pub const EXPECTED: [&str; 5] = ["expected", "answer", "target", "ideal", "label"];

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

    /// A field that the row had when it was read: one whose name is ours is kept as `input_NAME`.
    pub fn own(&self, name: &str) -> Option<Value> {
        let is_ours = |field: &str| field == name || FIELDS.contains(&name);
        let text = match self.out_field.is_some_and(is_ours) {
            true => self.fields.get(&format!("input_{name}")),
            false => self.fields.get(name),
        };
        serde_json::from_str(text?).ok().filter(|value: &Value| !value.is_null())
    }

    /// What is expected of the answer, under the name that the flag gives or one of the usual ones.
    pub fn expected(&self, settings: &Settings) -> Option<Value> {
        match &settings.expected_column {
            Some(name) => self.own(name),
            None => EXPECTED.iter().find_map(|name| self.own(name)),
        }
    }

    /// The texts of `choices`. A cell of a CSV holds them as JSON.
    ///
    /// # Errors
    /// They are no list of texts.
    pub fn choices(&self) -> Result<Option<Vec<String>>, String> {
        let Some(mut value) = self.own("choices") else { return Ok(None) };
        if let Value::String(cell) = &value {
            value = serde_json::from_str(cell).unwrap_or_default();
        }
        let choices: Option<Vec<String>> = serde_json::from_value(value).ok();
        match choices.filter(|choices| !choices.is_empty()) {
            Some(choices) => Ok(Some(choices)),
            None => Err("`choices` is no list of texts".to_owned()),
        }
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

/// A value as the text that an answer is compared with.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
