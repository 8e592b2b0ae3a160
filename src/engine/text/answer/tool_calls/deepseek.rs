//! DeepSeek V3 and R1, which fence their arguments, and V3.1, which does not.

use super::{Calls, Tool, ToolCall, json};

const SECTION: &str = "<｜tool▁calls▁begin｜>";
const START: &str = "<｜tool▁call▁begin｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";
const END: &str = "<｜tool▁call▁end｜>";
const FENCE: (&str, &str) = ("\n```json\n", "\n```");

/// `function<｜tool▁sep｜>name`, then the arguments in a fence. The content is what is before the
/// section.
pub(super) fn read_v3(text: &str, _: &[Tool]) -> Option<Calls> {
    read(text, |call| {
        let (_, function) = call.split_once(SEPARATOR)?;
        let (name, arguments) = function.split_once(FENCE.0)?;
        Some((name, arguments.strip_suffix(FENCE.1)?))
    })
}

/// `name<｜tool▁sep｜>{..}`.
pub(super) fn read_v31(text: &str, _: &[Tool]) -> Option<Calls> {
    read(text, |call| call.split_once(SEPARATOR))
}

fn read(text: &str, parts: fn(&str) -> Option<(&str, &str)>) -> Option<Calls> {
    let (content, section) = text.split_once(SECTION)?;
    let read_one = |call: &str| {
        let (call, _) = call.split_once(END)?;
        let (name, arguments) = parts(call)?;
        let is_call = !name.is_empty() && json::is_json(arguments);
        is_call.then(|| ToolCall { name: name.to_owned(), arguments: arguments.trim().to_owned() })
    };
    Calls::new(content, section.split(START).skip(1).map(read_one).collect::<Option<_>>()?)
}
