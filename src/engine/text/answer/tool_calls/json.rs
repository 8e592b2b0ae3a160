//! JSON in an answer, kept as the model wrote it: numbers and the order of keys stay.

use std::collections::HashMap;

use serde_json::value::RawValue;
use serde_json::{Deserializer, Value};

use super::ToolCall;

/// Whether a text is one JSON value that can be read back: not too deep, no number beyond f64.
pub(in super::super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

/// Whether a text is a JSON object.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && is_json(text)
}

/// The object, list or string that a text begins with, and what follows it (Python's `raw_decode`).
pub(in super::super) fn first_value(text: &str) -> Option<(&str, &str)> {
    let mut values = Deserializer::from_str(text).into_iter::<&RawValue>();
    let value = values.next()?.ok()?.get();
    Some((value, &text[values.byte_offset()..]))
}

/// The JSON value that a text begins with, whatever tags are in its strings, and what follows the
/// `end` behind it. Spaces may stand around the value.
pub(super) fn value_before<'a>(text: &'a str, end: &str) -> Option<(&'a str, &'a str)> {
    let text = text.trim_start();
    let (value, after) = match text.starts_with(['{', '[', '"']) {
        true => first_value(text)?,
        false => text.split_at(text.find(end)?),
    };
    let after = after.trim_start().strip_prefix(end)?;
    is_json(value).then_some((value.trim_end(), after))
}

/// The call that an object is: its `name`, and the first of `keys` that it has as arguments. As in
/// Python, the last of two members with one key counts.
pub(super) fn call(object: &str, keys: &[&str]) -> Option<ToolCall> {
    call_named(object, "name", keys)
}

/// The same with another key of the name.
pub(super) fn call_named(object: &str, name: &str, keys: &[&str]) -> Option<ToolCall> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let name = serde_json::from_str(members.get(name)?.get()).ok()?;
    let arguments = keys.iter().find_map(|key| members.get(*key))?.get();
    is_json(arguments).then(|| ToolCall { name, arguments: arguments.to_owned() })
}

/// The same where a call without arguments has no such member.
pub(super) fn call_or_empty(object: &str, keys: &[&str]) -> Option<ToolCall> {
    call(object, keys).or_else(|| {
        let members: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
        let has_arguments = keys.iter().any(|key| members.contains_key(*key));
        let name = serde_json::from_str(members.get("name")?.get()).ok()?;
        (!has_arguments).then(|| ToolCall { name, arguments: "{}".to_owned() })
    })
}

/// A call whose arguments may be a string that holds them.
pub(super) fn unquoted(mut call: ToolCall) -> Option<ToolCall> {
    if let Ok(text) = serde_json::from_str::<String>(&call.arguments) {
        call.arguments = text;
    }
    is_json(&call.arguments).then_some(call)
}

/// The elements of a JSON list, raw.
pub(super) fn elements(list: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(list).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// The calls that a list of objects is.
pub(super) fn calls(list: &str, keys: &[&str]) -> Option<Vec<ToolCall>> {
    elements(list)?.into_iter().map(|object| call(object, keys)).collect()
}

/// The calls of an answer whose form is a list of calls (`tool_choice: required`).
pub(in super::super) fn named_calls(text: &str) -> Option<Vec<ToolCall>> {
    calls(text, &["parameters"]).filter(|calls| !calls.is_empty())
}
