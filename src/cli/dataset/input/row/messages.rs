//! Chat messages: what a list of them must be before a chat template sees it.

use serde_json::{Value, json};

use super::{document_parts, image_parts, tool_history};
use crate::input::row_error::{RowError, code};
use vllm_batch_text::{json_with_integers, without_marks};

/// Chat roles of the speakers of ShareGPT.
const SHARE_GPT_ROLES: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("function_call", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
];

fn invalid(line: u64, message: String) -> RowError {
    RowError::new(code::INVALID_PROMPT, line, message)
}

/// Messages of a JSON text, with a system message before them if there is one, checked.
pub(super) fn parse(
    name: &str,
    json: &str,
    system: Option<String>,
    line: u64,
) -> Result<Vec<Value>, RowError> {
    finish(name, list(name, json, line)?, system, line)
}

/// The messages of a JSON text, as they are.
pub(super) fn list(name: &str, json: &str, line: u64) -> Result<Vec<Value>, RowError> {
    let wrong = |error| invalid(line, format!("{name}: {}", super::prompt::reason(&error)));
    let mut list = match json_with_integers(json).map_err(wrong)? {
        Value::Array(list) => list,
        // The error of what is no list.
        other => serde_json::from_value(other).map_err(wrong)?,
    };
    for message in list.iter_mut().filter_map(Value::as_object_mut) {
        // Only templates know what to do with large integers.
        for name in ["role", "content", "name", "tool_call_id"] {
            message.get_mut(name).into_iter().for_each(without_marks);
        }
    }
    Ok(list)
}

/// The messages of a ShareGPT conversation.
pub(super) fn parse_share_gpt(
    json: &str,
    system: Option<String>,
    line: u64,
) -> Result<Vec<Value>, RowError> {
    const NAME: &str = "conversations";
    let turns: Vec<Value> = serde_json::from_str(json)
        .map_err(|error| invalid(line, format!("{NAME}: {}", super::prompt::reason(&error))))?;
    let message = |(number, turn): (usize, &Value)| {
        let text = |key: &str| {
            turn.get(key).and_then(Value::as_str).ok_or_else(|| {
                invalid(line, format!("{NAME}: turn {number} has no `{key}` that is a string"))
            })
        };
        let (from, value) = (text("from")?, text("value")?);
        let role = SHARE_GPT_ROLES.iter().find(|(speaker, _)| *speaker == from);
        let (_, role) = role.ok_or_else(|| {
            invalid(line, format!("{NAME}: turn {number} is from '{from}', which is not known"))
        })?;
        Ok(json!({ "role": role, "content": value }))
    };
    let messages: Vec<Value> = turns.iter().enumerate().map(message).collect::<Result<_, _>>()?;
    finish(NAME, messages, system, line)
}

/// A text as a user turn.
pub(super) fn from_text(text: String, system: Option<String>) -> Vec<Value> {
    let user = json!({ "role": "user", "content": text });
    let system = system.map(|text| json!({ "role": "system", "content": text }));
    system.into_iter().chain([user]).collect()
}

/// Messages of which each is a message, with a system message before them if there is one.
pub(super) fn finish(
    name: &str,
    mut messages: Vec<Value>,
    system: Option<String>,
    line: u64,
) -> Result<Vec<Value>, RowError> {
    for (number, message) in messages.iter_mut().enumerate() {
        let place = || format!("{name}: message {number}");
        let checked = check(message, &place)
            .and_then(|()| tool_history::prepare(message).map_err(|what| Fault::invalid(&what)));
        checked.map_err(|fault| fault.at(&place(), line))?;
    }
    if messages.is_empty() {
        return Err(invalid(line, format!("{name}: there is no message to answer")));
    }
    if let Some(system) = system {
        if messages[0]["role"] == "system" {
            let message = format!("{name}: a system message, and a `system` field as well");
            return Err(invalid(line, message));
        }
        messages.insert(0, json!({ "role": "system", "content": system }));
    }
    Ok(messages)
}

/// Fault of a message, with its code.
struct Fault(&'static str, String);

impl Fault {
    fn invalid(what: &str) -> Self {
        Self(code::INVALID_PROMPT, what.to_owned())
    }

    fn at(self, place: &str, line: u64) -> RowError {
        RowError::new(self.0, line, format!("{place} {}", self.1))
    }
}

/// A message has a role and a content: text, or parts that are text or media. An assistant that
/// calls tools may have none, and so may what a tool gave back. Media become parts of our own.
fn check(message: &mut Value, place: &impl Fn() -> String) -> Result<(), Fault> {
    if message.get("role").and_then(Value::as_str).is_none() {
        return Err(Fault::invalid("has no `role` that is a string"));
    }
    if let Some(Value::Array(parts)) = message.get_mut("content") {
        return check_all(parts, place);
    }
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null)
            if message.get("tool_calls").is_some() || message.get("function_call").is_some() =>
        {
            Ok(())
        }
        Some(Value::Null) if message["role"] == "assistant" || message["role"] == "tool" => Ok(()),
        None => Err(Fault::invalid("has no `content`")),
        Some(_) => Err(Fault::invalid("has a `content` that is neither text nor a list of parts")),
    }
}

/// Checks the parts of a content that is no message's. `place` is what errors call it.
pub(super) fn check_parts(parts: &mut [Value], place: &str, line: u64) -> Result<(), RowError> {
    parts.iter_mut().for_each(without_marks);
    let place = || place.to_owned();
    if parts.iter().any(document_parts::is_document) {
        let what = "has a document: not supported here".to_owned();
        return Err(Fault(code::UNSUPPORTED_FIELD, what).at(&place(), line));
    }
    let checked = parts.iter_mut().try_for_each(|part| check_part(part, &place));
    checked.map_err(|fault| fault.at(&place(), line))
}

/// Checks the parts of a message. A document becomes parts of our own.
fn check_all(parts: &mut Vec<Value>, place: &impl Fn() -> String) -> Result<(), Fault> {
    let mut checked = Vec::with_capacity(parts.len());
    for mut part in std::mem::take(parts) {
        if document_parts::is_document(&part) {
            let read = document_parts::read(&part, &place());
            checked.extend(read.map_err(|(code, what)| Fault(code, what))?);
            continue;
        }
        check_part(&mut part, place)?;
        checked.push(part);
    }
    *parts = checked;
    Ok(())
}

fn check_part(part: &mut Value, place: &impl Fn() -> String) -> Result<(), Fault> {
    if let Some(kind) = image_parts::kind_of(part) {
        return image_parts::read(kind, part, &place()).map_err(|(code, what)| Fault(code, what));
    }
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(_)) => Ok(()),
        // As OpenAI's responses have texts; the template knows one name.
        (Some("input_text" | "output_text"), Some(_)) => {
            part["type"] = "text".into();
            Ok(())
        }
        (Some("text" | "input_text" | "output_text"), None) => {
            Err(Fault::invalid("has a text part without `text`"))
        }
        (Some(kind), _) => {
            let what = format!(
                "has a part of type '{kind}': only text, images, recordings and PDFs are supported"
            );
            Err(Fault(code::UNSUPPORTED_FIELD, what))
        }
        (None, _) => Err(Fault::invalid("has a part without `type`")),
    }
}
