//! Thinking in a request: whether, how much, and whether it is shown.

use serde_json::{Value, json};

use crate::input::fields::JsonFields;
use crate::input::row::chat::{invalid, value};
use crate::input::row_error::RowError;

const NAME: &str = "thinking";

/// `thinking`, and `output_config.effort`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// The switch of the template.
    is_on: Option<bool>,
    /// Most tokens of thinking.
    pub(super) budget: Option<u64>,
    is_hidden: bool,
    effort: Option<String>,
}

pub(super) fn read(params: &JsonFields, line: u64) -> Result<Said, RowError> {
    let said = match value(params, NAME, line)? {
        None => Said::default(),
        Some(thinking) => of_thinking(&thinking, line)?,
    };
    let config = value(params, "output_config", line)?.unwrap_or_default();
    let effort = match &config["effort"] {
        Value::Null => None,
        Value::String(effort) => Some(effort.clone()),
        _ => return Err(invalid("output_config", "expected an `effort` that is a string", line)),
    };
    Ok(Said { effort, ..said })
}

fn of_thinking(thinking: &Value, line: u64) -> Result<Said, RowError> {
    let is_on = match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => {
            let what = "expected a `type` that is \"enabled\", \"adaptive\" or \"disabled\"";
            return Err(invalid(NAME, what, line));
        }
    };
    let budget = match &thinking["budget_tokens"] {
        Value::Null => None,
        tokens => Some(tokens.as_u64().ok_or_else(|| {
            invalid(NAME, "expected `budget_tokens` that are a whole number", line)
        })?),
    };
    let is_hidden = match thinking["display"].as_str() {
        Some("omitted") => true,
        Some("summarized") | None => false,
        Some(_) => {
            let what = "expected a `display` that is \"omitted\" or \"summarized\"";
            return Err(invalid(NAME, what, line));
        }
    };
    let budget = budget.filter(|_| is_on);
    Ok(Said { is_on: Some(is_on), budget, is_hidden, effort: None })
}

impl Said {
    /// The same in OpenAI's words, over what is told already. Templates call the switch by two
    /// names; variables that the row gives itself win.
    pub(super) fn tell(&self, told: &mut Vec<(&'static str, String)>) {
        if let Some(is_on) = self.is_on {
            const KWARGS: &str = "chat_template_kwargs";
            let own = told.iter().position(|(name, _)| *name == KWARGS);
            let own = own.map(|place| told.swap_remove(place).1);
            let mut kwargs = json!({"enable_thinking": is_on, "thinking": is_on});
            let told_kwargs = match own.as_deref().map(serde_json::from_str) {
                Some(Ok(Value::Object(own))) => {
                    kwargs.as_object_mut().expect("made above").extend(own);
                    kwargs.to_string()
                }
                None | Some(Ok(Value::Null)) => kwargs.to_string(),
                // Whoever reads it says what is wrong with it.
                Some(_) => own.expect("it was parsed"),
            };
            told.push((KWARGS, told_kwargs));
        }
        if self.is_hidden {
            told.push(("include_reasoning", "false".to_owned()));
        }
        if let Some(effort) = &self.effort {
            told.push(("reasoning_effort", json!(effort).to_string()));
        }
    }
}
