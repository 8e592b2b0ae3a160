//! `<tool_call>name<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`: GLM 4.5 and later,
//! Ling 3, Laguna, Hunyuan 3.

use super::super::tags;
use super::object::Object;
use super::schema::Arguments;
use super::{Calls, Tool, ToolCall, json};

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");

/// How a family's values become JSON.
type ToJson = fn(Arguments<'_>, &str, &str) -> String;

/// Every call, of functions that the row has. The content is what is before the first.
pub(super) fn read(text: &str, tools: &[Tool]) -> Option<Calls> {
    let (content, calls) = text.split_at(text.find(START)?);
    let is_known = |name: &str| tools.is_empty() || tools.iter().any(|tool| tool.name == name);
    let calls = all_calls(calls, tools, |schema, key, text| schema.value(key, text))?;
    let are_known = calls.iter().all(|call| is_known(&call.name));
    Calls::new(content.trim(), calls).filter(|_| are_known)
}

/// Laguna's: any function, and values as they look where the schema does not say string.
pub(super) fn read_laguna(text: &str, tools: &[Tool]) -> Option<Calls> {
    let (content, calls) = text.split_at(text.find(START)?);
    Calls::new(content, all_calls(calls, tools, |schema, key, text| schema.literal(key, text))?)
}

/// Hunyuan 3's: any function, with a tag behind its name, and a tag around all calls.
pub(super) fn read_hunyuan(text: &str, tools: &[Tool]) -> Option<Calls> {
    let (content, calls) = text.split_once("<tool_calls>")?;
    let (calls, _) = calls.rsplit_once("</tool_calls>").unwrap_or((calls, ""));
    Calls::new(content, all_calls(calls, tools, |schema, key, text| schema.value(key, text))?)
}

fn all_calls(text: &str, tools: &[Tool], to_json: ToJson) -> Option<Vec<ToolCall>> {
    let mut rest = text;
    let mut calls = Vec::new();
    while let Some((_, next)) = rest.split_once(START) {
        let (call, after) = call(next, tools, to_json)?;
        calls.push(call);
        rest = after;
    }
    Some(calls)
}

/// The call that a text begins with, and what follows its end tag.
fn call<'a>(text: &'a str, tools: &[Tool], to_json: ToJson) -> Option<(ToolCall, &'a str)> {
    let (end, _) = tags::first(text, &[KEY.0, END])?;
    let name = text[..end].trim();
    let name = name.strip_suffix("<tool_sep>").unwrap_or(name).trim();
    if name.is_empty() || name.contains(START) {
        return None;
    }
    let schema = Arguments::of(tools, name);
    let mut arguments = Object::default();
    let mut rest = &text[end..];
    loop {
        let (at, tag) = tags::first(rest, &[KEY.0, END])?;
        rest = &rest[at..];
        if tag == 1 {
            let call = ToolCall { name: name.to_owned(), arguments: arguments.into_json() };
            return Some((call, &rest[END.len()..]));
        }
        let (key, after) = rest[KEY.0.len()..].split_once(KEY.1)?;
        let (value, next) = value(after.trim_start().strip_prefix(VALUE.0)?)?;
        arguments.insert(key.trim(), to_json(schema, key.trim(), value));
        rest = next;
    }
}

/// The value that a text begins with, and what follows its end tag. JSON ends where it ends; a text
/// at the end tag that has a key or the call's end behind it, for it may have tags in it.
fn value(text: &str) -> Option<(&str, &str)> {
    let of_json = || json::value_before(text, VALUE.1);
    if let Some(found) = text.trim_start().starts_with(['{', '[']).then(of_json).flatten() {
        return Some(found);
    }
    let ends =
        text.match_indices(VALUE.1).map(|(at, _)| (&text[..at], &text[at + VALUE.1.len()..]));
    let is_end = |after: &str| after.starts_with(KEY.0) || after.starts_with(END);
    ends.into_iter().find(|(_, after)| is_end(after.trim_start()))
}
