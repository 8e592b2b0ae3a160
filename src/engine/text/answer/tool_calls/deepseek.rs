//! DeepSeek V3 and R1, which fence their arguments, and V3.1, which does not.

use super::{Calls, Tool, ToolCall, json};

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const START: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const FENCE: (&str, &str) = ("\n```json\n", "```");

/// `function<｜tool▁sep｜>name`, then the arguments in a fence. The content is what is before the
/// section.
pub(super) fn read_v3(text: &str, _: &[Tool]) -> Option<Calls> {
    read(text, |call| {
        let (kind, function) = call.split_once(SEPARATOR)?;
        let (name, rest) = function.split_once(FENCE.0)?;
        let (arguments, after) = json::value_before(rest, FENCE.1)?;
        Some(([kind, name], arguments, after.strip_prefix(END)?))
    })
}

/// `name<｜tool▁sep｜>{..}`.
pub(super) fn read_v31(text: &str, _: &[Tool]) -> Option<Calls> {
    read(text, |call| {
        let (name, rest) = call.split_once(SEPARATOR)?;
        let (arguments, after) = json::value_before(rest, END)?;
        Some((["", name], arguments, after))
    })
}

/// The words before the arguments, of which the last is the name; the arguments; what follows.
type Parts<'a> = ([&'a str; 2], &'a str, &'a str);

fn read(text: &str, parts: fn(&str) -> Option<Parts<'_>>) -> Option<Calls> {
    let (content, mut rest) = text.split_once(SECTION)?;
    let mut calls = Vec::new();
    while let Some((_, call)) = rest.split_once(START) {
        let (words, arguments, after) = parts(call)?;
        let name = words[1];
        // The call before them has no arguments.
        let is_cut = words.iter().any(|word| word.contains(END) || word.contains(START));
        if name.is_empty() || is_cut {
            return None;
        }
        calls.push(ToolCall { name: name.to_owned(), arguments: arguments.to_owned() });
        rest = after;
    }
    Calls::new(content, calls)
}
