//! `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`: Kimi K2.

use super::{Calls, Tool, ToolCall, json};

const SECTION: &str = "<|tool_calls_section_begin|>";
const START: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";

/// All calls of the section. The content is what is before it.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, mut rest) = text.split_once(SECTION)?;
    let mut calls = Vec::new();
    while let Some((_, body)) = rest.split_once(START) {
        let (call, after) = call(body)?;
        calls.push(call);
        rest = after;
    }
    Calls::new(content, calls)
}

/// The call that a text begins with, and what follows it.
fn call(text: &str) -> Option<(ToolCall, &str)> {
    let (id, rest) = text.split_once(ARGUMENTS)?;
    let (name, number) = id.trim().split_once(':')?;
    let name = name.strip_prefix("functions.").unwrap_or(name);
    let has_number = number.starts_with(|digit: char| digit.is_ascii_digit());
    let is_call = !name.is_empty() && has_number && !id.contains(START) && !id.contains(END);
    let (arguments, after) = json::value_before(rest, END).filter(|_| is_call)?;
    Some((ToolCall { name: name.to_owned(), arguments: arguments.to_owned() }, after))
}
