//! `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen2.5, Qwen3.

use super::json;
use super::{Calls, Tool};

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";

/// Every call between tags; the last may lack its end tag. The content is what is before the first.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let (content, mut rest) = text.split_once(START)?;
    let mut calls = Vec::new();
    loop {
        let (object, after) = rest.split_once(END).unwrap_or((rest, ""));
        calls.push(json::call(object, &["arguments"])?);
        match after.split_once(START) {
            Some((_, next)) => rest = next,
            None => return Calls::new(content, calls),
        }
    }
}
