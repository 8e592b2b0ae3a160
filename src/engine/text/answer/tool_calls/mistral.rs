//! `[TOOL_CALLS] [{"name": .., "arguments": {..}}]`, and since version 11 of Mistral's tokenizer
//! `[TOOL_CALLS]name[ARGS]{..}` for each call, where `[ARGS]` may lack.

use super::{Calls, Tool, ToolCall, json};

const START: &str = "[TOOL_CALLS]";
const ARGUMENTS: &str = "[ARGS]";

/// What follows the first tag says which form it is. The content is what is before it.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, rest) = text.split_once(START)?;
    let segments = || rest.split(START).map(str::trim).filter(|segment| !segment.is_empty());
    let first = segments().next()?;
    if first.starts_with(['[', '{']) {
        return Calls::new(content, listed(first)?);
    }
    match segments().map(named).collect() {
        Some(calls) => Calls::new(content.trim(), calls),
        // Words before a list.
        None => Calls::new(content, listed(first)?),
    }
}

/// The calls of a list, or the one of an object, whatever follows it.
fn listed(text: &str) -> Option<Vec<ToolCall>> {
    let value =
        json::first_value(text).map(|(value, _)| value).filter(|_| text.starts_with(['[', '{']));
    let value = value.or_else(|| {
        let (start, end) = (text.find("[{")?, text.rfind("}]")? + "}]".len());
        text.get(start..end)
    })?;
    if value.starts_with('{') {
        return Some(vec![listed_call(value)?]);
    }
    json::elements(value)?.into_iter().map(listed_call).collect()
}

/// A call whose arguments may lack, or be a string that holds them.
fn listed_call(object: &str) -> Option<ToolCall> {
    json::unquoted(json::call_or_empty(object, &["arguments"])?)
}

/// `name[ARGS]{..}` or `name{..}`.
fn named(text: &str) -> Option<ToolCall> {
    let brace = text.find('{')?;
    let name = text[..brace].trim_end();
    let name = name.strip_suffix(ARGUMENTS).unwrap_or(name).trim();
    let arguments = &text[brace..];
    let is_call = !name.is_empty() && json::is_object(arguments);
    is_call.then(|| ToolCall { name: name.to_owned(), arguments: arguments.to_owned() })
}
