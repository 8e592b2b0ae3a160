//! Items of a request's `input` as messages of a chat: calls of tools, what they gave back, and
//! thinking have items of their own.

use serde_json::{Value, json};

use crate::input::row_error::{RowError, code};

/// A code, and what is wrong with an item.
type Fault = (&'static str, String);

/// The messages of items. What is wrong with their texts, whoever checks the messages says.
pub(super) fn told(name: &str, items: Vec<Value>, line: u64) -> Result<Vec<Value>, RowError> {
    let mut told = Told::default();
    for (number, item) in items.into_iter().enumerate() {
        told.add(item).map_err(|(code, what)| {
            RowError::new(code, line, format!("{name}: item {number} {what}"))
        })?;
    }
    Ok(told.messages)
}

#[derive(Default)]
struct Told {
    messages: Vec<Value>,
    /// Thinking that comes before a message of the assistant.
    reasoning: String,
}

impl Told {
    fn add(&mut self, item: Value) -> Result<(), Fault> {
        match item["type"].as_str() {
            None if item["role"].is_string() => self.message(item),
            None => Err(invalid("has neither a `type` nor a `role`")),
            Some("message") => self.message(item),
            Some("function_call") => self.call(&item),
            Some("function_call_output") => {
                let Some(id) = item["call_id"].as_str() else {
                    return Err(invalid("of type 'function_call_output' has no `call_id`"));
                };
                let content = content(&item, "output")?;
                let result = json!({"role": "tool", "tool_call_id": id, "content": content});
                self.messages.push(result);
                Ok(())
            }
            Some("reasoning") => {
                // Its summary is for readers, and what is encrypted only its author can read.
                for part in item["content"].as_array().into_iter().flatten() {
                    self.reasoning += part["text"].as_str().unwrap_or_default();
                }
                Ok(())
            }
            Some(kind) => {
                let what = format!("is of type '{kind}', which is not supported");
                Err((code::UNSUPPORTED_FIELD, what))
            }
        }
    }

    fn message(&mut self, item: Value) -> Result<(), Fault> {
        let Some(role) = item["role"].as_str() else {
            return Err(invalid("has no `role` that is a string"));
        };
        let content = match (role, item.get("content")) {
            ("assistant", Some(Value::Null)) => Value::Null,
            _ => content(&item, "content")?,
        };
        let mut message = json!({"role": role, "content": content});
        if role == "assistant" {
            self.with_reasoning(&mut message);
        }
        self.messages.push(message);
        Ok(())
    }

    /// Calls that follow each other, or a text of the assistant, are of one message.
    fn call(&mut self, item: &Value) -> Result<(), Fault> {
        let (Some(id), Some(name), Some(arguments)) =
            (item["call_id"].as_str(), item["name"].as_str(), item["arguments"].as_str())
        else {
            let what = "of type 'function_call' has no `call_id`, `name` or `arguments`";
            return Err(invalid(what));
        };
        if !arguments.is_empty()
            && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(arguments)
        {
            let reason = crate::input::row::prompt::reason(&error);
            let what =
                format!("of type 'function_call' has `arguments` that are no JSON: {reason}");
            return Err(invalid(&what));
        }
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"id": id, "type": "function", "function": function});
        let is_open = |last: &Value| last["role"] == "assistant";
        if !self.messages.last().is_some_and(is_open) || !self.reasoning.is_empty() {
            let mut message = json!({"role": "assistant", "content": ""});
            self.with_reasoning(&mut message);
            self.messages.push(message);
        }
        let message = self.messages.last_mut().expect("pushed above");
        match message["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        }
        Ok(())
    }

    fn with_reasoning(&mut self, message: &mut Value) {
        if !self.reasoning.is_empty() {
            message["reasoning"] = std::mem::take(&mut self.reasoning).into();
        }
    }
}

/// A text, or the parts of a field.
fn content(item: &Value, name: &str) -> Result<Value, Fault> {
    match item.get(name) {
        Some(text @ Value::String(_)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            Ok(Value::Array(parts.iter().map(part).collect::<Result<_, _>>()?))
        }
        None => Err(invalid(&format!("has no `{name}`"))),
        Some(_) => Err(invalid(&format!("has `{name}` that is neither text nor a list of parts"))),
    }
}

fn part(part: &Value) -> Result<Value, Fault> {
    if matches!(part["type"].as_str(), Some("input_image" | "input_audio" | "input_file")) {
        return Ok(part.clone());
    }
    let text = match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => &part["text"],
        Some("refusal") => &part["refusal"],
        Some(kind) => {
            let what = format!(
                "has a part of type '{kind}': only text, images, recordings and PDFs are supported"
            );
            return Err((code::UNSUPPORTED_FIELD, what));
        }
        None => return Err(invalid("has a part without `type`")),
    };
    match text.as_str() {
        Some(text) => Ok(json!({"type": "text", "text": text})),
        None => Err(invalid("has a part without text")),
    }
}

fn invalid(what: &str) -> Fault {
    (code::INVALID_PROMPT, what.to_owned())
}
