//! `<|tool_call|>[{"name": .., "arguments": {..}}]`: Granite 3.

use super::super::tags;
use super::{Calls, Tool, json};

/// Granite 3.0 has a special token, later ones write text.
const STARTS: &[&str] = &["<|tool_call|>", "<tool_call>"];

/// Every list after a tag. The content is what is before the first.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, mut rest) = text.split_at(tags::first(text, STARTS)?.0);
    let mut calls = Vec::new();
    while let Some((at, tag)) = tags::first(rest, STARTS) {
        let body = rest[at + STARTS[tag].len()..].trim_start();
        let (list, after) = json::first_value(body).filter(|_| body.starts_with('['))?;
        for object in json::elements(list)? {
            calls.push(json::call_or_empty(object, &["arguments"])?);
        }
        rest = after;
    }
    Calls::new(content.trim(), calls)
}
