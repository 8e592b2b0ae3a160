//! A JSON list of calls, alone, in a fence or between tags: xLAM.

use super::{Calls, Tool, ToolCall, json};

/// What a list may be between, in the order in which it is looked for.
const FENCES: &[(&str, &str)] =
    &[("```", "```"), ("[TOOL_CALLS]", "\n"), ("<tool_call>", "</tool_call>")];

/// The first list that is JSON. The content is the text without fences.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (thinking, answer) = match text.find("</think>") {
        Some(at) => text.split_at(at + "</think>".len()),
        None => ("", text),
    };
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
        // A line's end is also the text's.
        let found = after.split_once(fence.1).or((fence.1 == "\n").then_some((after, "")));
        let Some((list, next)) = found else { break };
        content.push_str(before);
        lists.push(list.strip_prefix("json").unwrap_or(list));
        rest = next;
    }
    content.push_str(rest);
    (lists, content)
}

fn list(text: &str) -> Option<Vec<ToolCall>> {
    json::calls(text, &["arguments"]).filter(|calls| !calls.is_empty())
}
