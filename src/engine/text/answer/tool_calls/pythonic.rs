//! `[f(a=1), g(b="x")]`: Llama 3.2, Llama 4, ToolACE, LFM2; and Olmo 3, without brackets.

use super::object::Object;
use super::python_literal::Reader;
use super::{Calls, Tool, ToolCall};

/// A text that is one list of calls, of which every argument has a name and is a literal. There is
/// no content beside calls.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let mut reader = Reader::new(text);
    let mut calls = Vec::new();
    reader.pass('[')?;
    reader.items(']', |reader| {
        calls.push(call(reader)?);
        Some(())
    })?;
    if reader.is_at_end() { Calls::new("", calls) } else { None }
}

/// The same, perhaps between Llama 4's special tokens.
pub(super) fn read_llama4(text: &str, tools: &[Tool]) -> Option<Calls> {
    match text.strip_prefix("<|python_start|>") {
        Some(list) => {
            let list = list.trim_end();
            read(list.strip_suffix("<|python_end|>").unwrap_or(list), tools)
        }
        None => read(text, tools),
    }
}

/// The same between LFM2's special tokens. The content is the text beside them; models repeat their
/// calls behind the end token with another one, and that is dropped.
pub(super) fn read_lfm2(text: &str, _: &[Tool]) -> Option<Calls> {
    const END: &str = "<|tool_call_end|>";
    let (before, list) = text.split_once("<|tool_call_start|>")?;
    let mut reader = Reader::new(list);
    reader.pass('[')?;
    let mut calls = Vec::new();
    reader.items(']', |reader| {
        calls.push(call(reader)?);
        Some(())
    })?;
    let after = reader.rest().trim_start();
    let after = if after.is_empty() { "" } else { after.strip_prefix(END)? };
    let after = after.rsplit_once(END).map_or(after, |(_, after)| after);
    let parts = [before.trim(), after.trim()];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Calls::new(&parts.join("\n"), calls)
}

/// Calls on lines of their own, perhaps between tags. The content is what is before the tags.
pub(super) fn read_olmo(text: &str, _: &[Tool]) -> Option<Calls> {
    const TAGS: (&str, &str) = ("<function_calls>", "</function_calls>");
    let tagged = text.split_once(TAGS.0);
    let (content, lines) = tagged.unwrap_or(("", text));
    let mut reader = Reader::new(lines);
    let mut calls = Vec::new();
    let is_over = |reader: &Reader<'_>| match tagged {
        Some(_) => reader.begins_with(TAGS.1),
        None => reader.is_at_end(),
    };
    while !is_over(&reader) {
        // Calls on one line have a comma between them.
        if !calls.is_empty() {
            reader.pass(',');
        }
        calls.push(call(&mut reader)?);
    }
    Calls::new(content, calls)
}

fn call(reader: &mut Reader<'_>) -> Option<ToolCall> {
    let name = reader.name(&['.'])?;
    let mut arguments = Object::default();
    reader.pass('(')?;
    reader.items(')', |reader| {
        let argument = reader.name(&[])?;
        reader.pass('=')?;
        let value = reader.value()?;
        arguments.insert(argument, value);
        Some(())
    })?;
    Some(ToolCall { name: name.to_owned(), arguments: arguments.into_json() })
}
