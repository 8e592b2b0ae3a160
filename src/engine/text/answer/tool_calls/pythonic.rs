//! `[f(a=1), g(b="x")]`: Llama 3.2, Llama 4, ToolACE.

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
