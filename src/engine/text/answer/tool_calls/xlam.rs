//! A JSON list of calls, alone, in a fence or between tags: xLAM.

use super::{Calls, Tool, ToolCall, json};

/// Fences around a list, in the order in which they are searched.
const FENCES: &[(&str, &str)] =
    &[("```", "```"), ("[TOOL_CALLS]", "\n"), ("<tool_call>", "</tool_call>")];

/// The first list that is JSON, after the thinking if there is some. The content is the text
/// without fences.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    const END: &str = "</think>";
    let thought = text.find(END).map(|at| text.split_at(at + END.len()));
    // The tag may also be in an argument.
    thought.and_then(read_after).or_else(|| read_after(("", text)))
}

fn read_after((thinking, answer): (&str, &str)) -> Option<Calls> {
    if let Some(calls) = list(answer) {
        return Calls::new(thinking.trim(), calls);
    }
    FENCES.iter().find_map(|fence| {
        let (lists, content) = fenced(answer, *fence);
        let calls = lists.into_iter().find_map(list)?;
        Calls::new(format!("{thinking}{content}").trim(), calls)
    })
}

/// The texts between fences, and the text without them.
fn fenced<'a>(text: &'a str, fence: (&str, &str)) -> (Vec<&'a str>, String) {
    let (mut lists, mut content) = (Vec::new(), String::new());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(fence.0) {
        let after = after.strip_prefix("json").unwrap_or(after);
        let Some((list, next)) = up_to(after, fence.1) else { break };
        content.push_str(before);
        lists.push(list);
        rest = next;
    }
    content.push_str(rest);
    (lists, content)
}

/// The text up to a fence's end, and what follows it. A list ends where its JSON ends: its strings
/// may have fences in them.
fn up_to<'a>(text: &'a str, end: &str) -> Option<(&'a str, &'a str)> {
    let value = text.trim_start().starts_with('[').then(|| json::first_value(text.trim_start()));
    if let Some((list, after)) = value.flatten() {
        // A line's end is also the text's.
        let after = if end == "\n" { Some(after) } else { after.trim_start().strip_prefix(end) };
        if let Some(after) = after {
            return Some((list, after));
        }
    }
    text.split_once(end).or((end == "\n").then_some((text, "")))
}

fn list(text: &str) -> Option<Vec<ToolCall>> {
    json::calls(text, &["arguments"]).filter(|calls| !calls.is_empty())
}
