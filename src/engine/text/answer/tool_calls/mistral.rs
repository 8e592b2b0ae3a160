//! `[TOOL_CALLS] [{"name": .., "arguments": {..}}]`, and since version 11 of Mistral's tokenizer
//! `[TOOL_CALLS]name[CALL_ID]id[ARGS]{..}` for each call, where `[CALL_ID]id` and `[ARGS]` may
//! lack.

use super::super::tags;
use super::{Calls, Tool, ToolCall, json};

const START: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGUMENTS: &str = "[ARGS]";

/// Reads calls in the form that follows the first tag. The content is the text before it.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, rest) = text.split_once(START)?;
    let body = without_starts(rest);
    if body.starts_with(['[', '{']) {
        return Calls::new(content, listed(body)?);
    }
    match named_calls(body) {
        Some(calls) => Calls::new(content.trim(), calls),
        // Words before a list.
        None => Calls::new(content, listed(body)?),
    }
}

/// The text without start tags at its beginning.
fn without_starts(text: &str) -> &str {
    let mut rest = text.trim_start();
    while let Some(after) = rest.strip_prefix(START) {
        rest = after.trim_start();
    }
    rest
}

/// The calls of a list, or the one of an object, and those of further ones after tags.
fn listed(text: &str) -> Option<Vec<ToolCall>> {
    let first = if text.starts_with(['[', '{']) { json::first_value(text) } else { None };
    let (mut value, mut rest) = first.or_else(|| json::first_value(&text[text.find("[{")?..]))?;
    let mut calls = Vec::new();
    loop {
        match value.starts_with('{') {
            true => calls.push(listed_call(value)?),
            false => {
                for object in json::elements(value)? {
                    calls.push(listed_call(object)?);
                }
            }
        }
        let next = rest.trim_start();
        let body = without_starts(next);
        if body.len() == next.len() || !body.starts_with(['[', '{']) {
            return Some(calls);
        }
        (value, rest) = json::first_value(body)?;
    }
}

/// A call whose arguments may lack, or be a string that holds them.
fn listed_call(object: &str) -> Option<ToolCall> {
    json::unquoted(json::call_or_empty(object, &["arguments"])?)
}

/// `name[CALL_ID]id[ARGS]{..}` or `name{..}`, several with start tags between them.
fn named_calls(text: &str) -> Option<Vec<ToolCall>> {
    let (mut rest, mut calls) = (text, Vec::new());
    while !rest.is_empty() {
        let (call, after) = named(rest)?;
        calls.push(call);
        let after = after.trim_start();
        rest = without_starts(after);
        if !after.is_empty() && rest.len() == after.len() {
            return None;
        }
    }
    Some(calls)
}

/// The call that a text begins with, and what follows it.
fn named(text: &str) -> Option<(ToolCall, &str)> {
    let (name_end, tag) = tags::first(text, &[CALL_ID, ARGUMENTS, "{", START])?;
    let name = text[..name_end].trim();
    let rest = match tag {
        0 => {
            // The id is the model's; calls get ids of ours.
            let rest = &text[name_end + CALL_ID.len()..];
            let (id_end, tag) = tags::first(rest, &[ARGUMENTS, "{", START])?;
            if tag == 2 {
                return None;
            }
            &rest[id_end..]
        }
        3 => return None,
        _ => &text[name_end..],
    };
    let arguments = rest.strip_prefix(ARGUMENTS).unwrap_or(rest).trim_start();
    let (arguments, after) = json::first_value(arguments)?;
    let is_call = !name.is_empty() && json::is_object(arguments);
    is_call.then(|| (ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }, after))
}
