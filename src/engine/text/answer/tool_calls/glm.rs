//! `<tool_call>name<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>`: GLM 4.5 and later.

use super::object::Object;
use super::schema::Arguments;
use super::{Calls, Tool, ToolCall};

const START: &str = "<tool_call>";
const END: &str = "</tool_call>";
const KEY: (&str, &str) = ("<arg_key>", "</arg_key>");
const VALUE: (&str, &str) = ("<arg_value>", "</arg_value>");

/// Every call, of functions that the row has. The content is what is before the first.
pub(super) fn read(text: &str, tools: &[Tool]) -> Option<Calls> {
    let (content, _) = text.split_once(START)?;
    let read_one = |text: &str| call(text.split_once(END)?.0, tools);
    let calls: Option<_> = text.split(START).skip(1).map(read_one).collect();
    Calls::new(content.trim(), calls?)
}

fn call(body: &str, tools: &[Tool]) -> Option<ToolCall> {
    let end = body.find(KEY.0).unwrap_or(body.len());
    let name = body[..end].trim();
    let is_known = tools.is_empty() || tools.iter().any(|tool| tool.name == name);
    if name.is_empty() || !is_known {
        return None;
    }
    let schema = Arguments::of(tools, name);
    let mut arguments = Object::default();
    let mut rest = &body[end..];
    while let Some((_, after)) = rest.split_once(KEY.0) {
        let (key, after) = after.split_once(KEY.1)?;
        let (value, next) = after.trim_start().strip_prefix(VALUE.0)?.split_once(VALUE.1)?;
        arguments.insert(key.trim(), schema.value(key.trim(), value));
        rest = next;
    }
    Some(ToolCall { name: name.to_owned(), arguments: arguments.into_json() })
}
