//! Lists of calls after a tag: Jamba, InternLM, Phi-4-mini.

use super::{Calls, Tool, json};

/// `<tool_calls>[{"name": .., "arguments": {..}}]</tool_calls>`; the content is what is before it.
pub(super) fn read_jamba(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, rest) = text.split_once("<tool_calls>")?;
    let (list, _) = json::value_before(rest, "</tool_calls>")?;
    Calls::new(content, json::calls(list, &["arguments"])?)
}

/// One call, `<|action_start|><|plugin|>{"name": .., "parameters": {..}}<|action_end|>`. The
/// content is what is before it.
pub(super) fn read_internlm(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, rest) = text.split_once("<|action_start|><|plugin|>")?;
    let (object, after) = json::first_value(&rest[rest.find('{')?..])?;
    let after = after.trim_start();
    if !after.is_empty() && !after.starts_with("<|action_end|>") {
        return None;
    }
    let call = json::call_or_empty(object, &["parameters", "arguments"])?;
    Calls::new(content, vec![call])
}

/// `functools[{"name": .., "arguments": {..}}]`. There is no content beside calls.
pub(super) fn read_phi4(text: &str, _: &[Tool]) -> Option<Calls> {
    const START: &str = "functools[";
    let list = &text[text.find(START)? + START.len() - 1..];
    let (list, _) = json::first_value(list)?;
    Calls::new("", json::calls(list, &["arguments", "parameters"])?)
}
