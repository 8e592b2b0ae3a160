//! Messages of content blocks as messages of OpenAI's: calls of tools, what tools gave back, and
//! thinking have fields or messages of their own there.

use serde_json::{Map, Value, json};

use crate::input::row_error::{RowError, code};

/// Messages in OpenAI's form. What is wrong with their text, whoever checks the messages says.
pub(super) fn told(name: &str, messages: Vec<Value>, line: u64) -> Result<Vec<Value>, RowError> {
    let mut told = Vec::with_capacity(messages.len());
    for (number, message) in messages.into_iter().enumerate() {
        let wrong = |(code, what): Fault| {
            RowError::new(code, line, format!("{name}: message {number} {what}"))
        };
        match message["content"].as_array() {
            Some(blocks) if blocks.iter().any(|block| block["type"] != "text") => {
                Told::new(&message, blocks).map_err(wrong)?.push_to(&mut told);
            }
            _ => told.push(message),
        }
    }
    Ok(told)
}

/// A code, and what is wrong with a message.
type Fault = (&'static str, String);

/// Result of a message.
struct Told {
    /// Messages of tools, which come before the message.
    results: Vec<Value>,
    message: Map<String, Value>,
}

impl Told {
    fn new(message: &Value, blocks: &[Value]) -> Result<Self, Fault> {
        let role = message["role"].as_str().unwrap_or_default();
        let (mut results, mut calls, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let mut thinking = String::new();
        for block in blocks {
            match (block["type"].as_str(), role) {
                (Some("tool_use"), "assistant") => calls.push(call(block)?),
                (Some("tool_result"), "user") => results.push(result(block)?),
                (Some("thinking"), "assistant") => {
                    thinking += block["thinking"].as_str().ok_or_else(|| {
                        invalid("has a block of type 'thinking' without `thinking`")
                    })?;
                }
                // Nobody but its author can read it.
                (Some("redacted_thinking"), "assistant") => {}
                (Some(kind @ ("tool_use" | "tool_result" | "thinking")), role) => {
                    let what = format!("has a block of type '{kind}', which {role} cannot send");
                    return Err(invalid(&what));
                }
                _ => parts.push(block.clone()),
            }
        }
        let mut message = message.as_object().cloned().unwrap_or_default();
        if parts.is_empty() && role == "user" && !results.is_empty() {
            return Ok(Self { results, message: Map::new() });
        }
        let content = if parts.is_empty() { "".into() } else { Value::Array(parts) };
        message.insert("content".to_owned(), content);
        if !thinking.is_empty() {
            message.insert("reasoning".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        Ok(Self { results, message })
    }

    fn push_to(self, messages: &mut Vec<Value>) {
        messages.extend(self.results);
        if !self.message.is_empty() {
            messages.push(Value::Object(self.message));
        }
    }
}

fn call(block: &Value) -> Result<Value, Fault> {
    match (&block["id"], &block["name"], &block["input"]) {
        (Value::String(id), Value::String(name), input @ Value::Object(_)) => Ok(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": input},
        })),
        _ => Err(invalid(
            "has a block of type 'tool_use' without `id`, `name` or an `input` that is an object",
        )),
    }
}

/// Text of a result: its text parts with newlines between them, as in vLLM.
fn result(block: &Value) -> Result<Value, Fault> {
    let Some(id) = block["tool_use_id"].as_str() else {
        return Err(invalid("has a block of type 'tool_result' without `tool_use_id`"));
    };
    let content = match &block["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Result<Vec<&str>, Fault> = parts.iter().map(text_of).collect();
            texts?.join("\n")
        }
        _ => return Err(invalid("has a tool result that is neither text nor blocks")),
    };
    Ok(json!({"role": "tool", "tool_call_id": id, "content": content}))
}

fn text_of(part: &Value) -> Result<&str, Fault> {
    match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text") | None, _) => Err(invalid("has a tool result with a part without text")),
        (Some(kind), _) => {
            let what = format!("has a tool result of type '{kind}': only text is supported");
            Err((code::UNSUPPORTED_FIELD, what))
        }
    }
}

fn invalid(what: &str) -> Fault {
    (code::INVALID_PROMPT, what.to_owned())
}
