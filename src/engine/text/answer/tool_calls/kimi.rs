//! `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{..}<|tool_call_end|>`: Kimi K2.

use super::{Calls, Tool, ToolCall, json};

const SECTION: &str = "<|tool_calls_section_begin|>";
const START: &str = "<|tool_call_begin|>";
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";
const END: &str = "<|tool_call_end|>";

/// All calls of the section. The content is what is before it.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, section) = text.split_once(SECTION)?;
    let calls: Option<_> = section.split(START).skip(1).map(call).collect();
    Calls::new(content, calls?)
}

fn call(text: &str) -> Option<ToolCall> {
    let (call, _) = text.split_once(END)?;
    let (id, arguments) = call.split_once(ARGUMENTS)?;
    let (name, number) = id.trim().split_once(':')?;
    let name = name.strip_prefix("functions.").unwrap_or(name);
    let has_number = number.starts_with(|digit: char| digit.is_ascii_digit());
    let is_call = !name.is_empty() && has_number && json::is_json(arguments);
    is_call.then(|| ToolCall { name: name.to_owned(), arguments: arguments.trim().to_owned() })
}
