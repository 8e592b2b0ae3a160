//! Calls as JSON after a tag: Jamba, Hunyuan, InternLM, Phi-4-mini, Apertus, Command A, Granite
//! 20B, GigaChat 3.

use std::collections::HashMap;

use serde_json::value::RawValue;

use super::{Calls, Tool, ToolCall, json};

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

/// `<|tools_prefix|>[{"f": {..}}]<|tools_suffix|>`. The content is the text beside all lists.
pub(super) fn read_apertus(text: &str, _: &[Tool]) -> Option<Calls> {
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    let mut rest = text;
    while let Some((before, list)) = rest.split_once("<|tools_prefix|>") {
        let (list, after) = json::value_before(list, "<|tools_suffix|>")?;
        for object in json::elements(list)? {
            calls.push(only_member(object)?);
        }
        parts.push(before.trim());
        rest = after;
    }
    parts.push(rest.trim());
    parts.retain(|part| !part.is_empty());
    Calls::new(&parts.join("\n"), calls)
}

/// The call that an object with one member is.
fn only_member(object: &str) -> Option<ToolCall> {
    let members: HashMap<String, &RawValue> = serde_json::from_str(object).ok()?;
    let mut members = members.into_iter();
    let (name, arguments) = members.next().filter(|_| members.next().is_none())?;
    let arguments = arguments.get().to_owned();
    json::is_json(&arguments).then_some(ToolCall { name, arguments })
}

/// `<|START_ACTION|>[{"tool_call_id": .., "tool_name": .., "parameters": {..}}]<|END_ACTION|>`. The
/// content is what is before the first list.
pub(super) fn read_command(text: &str, _: &[Tool]) -> Option<Calls> {
    const TAGS: (&str, &str) = ("<|START_ACTION|>", "<|END_ACTION|>");
    let (content, mut rest) = text.split_at(text.find(TAGS.0)?);
    let mut calls = Vec::new();
    while let Some((_, list)) = rest.split_once(TAGS.0) {
        let (list, after) = json::value_before(list, TAGS.1)?;
        for object in json::elements(list)? {
            calls.push(json::call_named(object, "tool_name", &["parameters"])?);
        }
        rest = after;
    }
    Calls::new(content.trim(), calls)
}

/// `<function_call> {"name": .., "arguments": {..}}`, each. The content is what is before the
/// first.
pub(super) fn read_granite_20b(text: &str, _: &[Tool]) -> Option<Calls> {
    const TAG: &str = "<function_call>";
    let (content, mut rest) = text.split_at(text.find(TAG)?);
    let mut calls = Vec::new();
    while let Some((_, object)) = rest.split_once(TAG) {
        let (object, after) = json::first_value(object.trim_start())?;
        calls.push(json::call(object, &["arguments"])?);
        rest = after;
    }
    Calls::new(content, calls)
}

/// `<|function_call|>{"name": .., "arguments": {..}}`, one, at the end. The content is what is
/// before.
pub(super) fn read_gigachat(text: &str, _: &[Tool]) -> Option<Calls> {
    let text = text.trim_end();
    let (content, object) =
        text.strip_suffix("</s>").unwrap_or(text).split_once("<|function_call|>")?;
    let (object, after) = json::first_value(object.trim_start())?;
    let call = json::call(object, &["arguments"])?;
    let is_call = after.trim().is_empty() && json::is_object(&call.arguments);
    Calls::new(content, vec![call]).filter(|_| is_call)
}
