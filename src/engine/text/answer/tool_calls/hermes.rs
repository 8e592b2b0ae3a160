//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen2.5, Qwen3, Granite 4,
//! ERNIE 4.5, LongCat.

use super::json;
use super::{Calls, Tool};

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// Every call between tags; the last may lack its end tag. The content is what is before the first.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    read_between(text, (START, END))
}

/// LongCat's, with tags of its own.
pub(super) fn read_longcat(text: &str, _: &[Tool]) -> Option<Calls> {
    read_between(text, ("<longcat_tool_call>", "</longcat_tool_call>"))
}

/// ERNIE's, with line ends before the first tag.
pub(super) fn read_ernie(text: &str, _: &[Tool]) -> Option<Calls> {
    let calls = read_between(text, (START, END))?;
    Some(Calls { content: calls.content.trim_end_matches('\n').to_owned(), ..calls })
}

fn read_between(text: &str, (start, end): (&str, &str)) -> Option<Calls> {
    let (content, mut rest) = text.split_once(start)?;
    let mut calls = Vec::new();
    loop {
        // A string of the object may have tags in it.
        let (object, after) = json::first_value(rest.trim_start())?;
        calls.push(json::call(object, &["arguments"])?);
        let after = match after.trim_start() {
            "" => "",
            after => after.strip_prefix(end)?,
        };
        match after.split_once(start) {
            Some((_, next)) => rest = next,
            None => return Calls::new(content, calls),
        }
    }
}

/// The same by Granite 4's rules: every call has its end tag, and the content is all text beside
/// them.
pub(super) fn read_granite(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, mut rest) = text.split_once(START)?;
    let (mut content, mut calls) = (content.to_owned(), Vec::new());
    loop {
        let (object, after) = json::value_before(rest, END)?;
        let call = json::unquoted(json::call(object, &["arguments"])?)?;
        calls.push(Some(call).filter(|call| call.arguments != "null")?);
        let (between, next) = after.split_once(START).unwrap_or((after, ""));
        content.push_str(between);
        if between.len() == after.len() {
            return Calls::new(&content, calls);
        }
        rest = next;
    }
}
