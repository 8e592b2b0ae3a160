//! `<invoke name="f"><parameter name="a">1</parameter></invoke>`: MiniMax M2, dots, and DeepSeek
//! V3.2 and later, whose tags have a mark.

use super::super::tags;
use super::object::{Object, string};
use super::schema::Arguments;
use super::{Calls, Tool, ToolCall, json};

/// How a family writes the tags.
struct Dialect {
    /// Tags that begin calls.
    starts: &'static [&'static str],
    /// The tag that ends them.
    end: &'static str,
    invoke: Tags,
    parameter: Tags,
    /// Content has no white space around it.
    trims: bool,
    /// Functions that the row has not are no calls.
    knows_tools: bool,
    /// Values have no white space around them.
    trims_values: bool,
}

/// Beginning of a start tag, up to the name, and the end tag.
type Tags = (&'static str, &'static str);

const DEEPSEEK_V32: Dialect = Dialect {
    starts: &["<｜DSML｜function_calls>"],
    end: "</｜DSML｜function_calls>",
    invoke: ("<｜DSML｜invoke name=", "</｜DSML｜invoke>"),
    parameter: ("<｜DSML｜parameter name=", "</｜DSML｜parameter>"),
    trims: false,
    knows_tools: false,
    trims_values: false,
};

const DEEPSEEK_V4: Dialect = Dialect {
    starts: &["<｜DSML｜tool_calls>", "<｜DSML｜toolcalls>", "<｜DSML｜tool>"],
    end: "</｜DSML｜tool_calls>",
    ..DEEPSEEK_V32
};

const DEEPSEEK_V41: Dialect = Dialect {
    starts: &["<｜DSML｜ calls>"],
    end: "</｜DSML｜ calls>",
    invoke: ("<｜DSML｜ invoke name=", "</｜DSML｜ invoke>"),
    parameter: ("<｜DSML｜ parameter name=", "</｜DSML｜ parameter>"),
    ..DEEPSEEK_V32
};

const MINIMAX_M2: Dialect = Dialect {
    starts: &["<minimax:tool_call>"],
    end: "</minimax:tool_call>",
    invoke: ("<invoke name=", "</invoke>"),
    parameter: ("<parameter name=", "</parameter>"),
    trims: true,
    knows_tools: true,
    trims_values: false,
};

const DOTS: Dialect = Dialect {
    starts: &["<dots_function_call>"],
    end: "</dots_function_call>",
    trims_values: true,
    ..MINIMAX_M2
};

/// DeepSeek V3.2's calls.
pub(super) fn read_v32(text: &str, tools: &[Tool]) -> Option<Calls> {
    DEEPSEEK_V32.read(text, tools)
}

/// DeepSeek V4's.
pub(super) fn read_v4(text: &str, tools: &[Tool]) -> Option<Calls> {
    DEEPSEEK_V4.read(text, tools)
}

/// DeepSeek V4.1's, whose tags have a space.
pub(super) fn read_v41(text: &str, tools: &[Tool]) -> Option<Calls> {
    DEEPSEEK_V41.read(text, tools)
}

/// MiniMax M2's.
pub(super) fn read_minimax(text: &str, tools: &[Tool]) -> Option<Calls> {
    MINIMAX_M2.read(text, tools)
}

/// Those of dots.llm.
pub(super) fn read_dots(text: &str, tools: &[Tool]) -> Option<Calls> {
    DOTS.read(text, tools)
}

impl Dialect {
    /// Every call of every section. The content is what is before the first.
    fn read(&self, text: &str, tools: &[Tool]) -> Option<Calls> {
        let (content, mut rest) = text.split_at(tags::first(text, self.starts)?.0);
        let mut calls = Vec::new();
        while let Some((at, tag)) = tags::first(rest, self.starts) {
            rest = &rest[at + self.starts[tag].len()..];
            loop {
                let (at, tag) = tags::first(rest, &[self.end, self.invoke.0])?;
                if tag == 0 {
                    rest = &rest[at + self.end.len()..];
                    break;
                }
                let (call, after) = self.call(&rest[at + self.invoke.0.len()..], tools)?;
                calls.push(call);
                rest = after;
            }
        }
        Calls::new(if self.trims { content.trim() } else { content }, calls)
    }

    /// The call whose name a text begins with, and what follows its end tag.
    fn call<'a>(&self, text: &'a str, tools: &[Tool]) -> Option<(ToolCall, &'a str)> {
        let tag = StartTag::new(text)?;
        let name = tag.name.trim();
        let is_known = tools.is_empty() || tools.iter().any(|tool| tool.name == name);
        if name.is_empty() || (self.knows_tools && !is_known) {
            return None;
        }
        let schema = Arguments::of(tools, name);
        let mut arguments = Object::default();
        let mut rest = tag.after;
        loop {
            let (at, next) = tags::first(rest, &[self.invoke.1, self.parameter.0])?;
            if next == 0 {
                let call = ToolCall { name: name.to_owned(), arguments: arguments.into_json() };
                return Some((call, &rest[at + self.invoke.1.len()..]));
            }
            let tag = StartTag::new(&rest[at + self.parameter.0.len()..])?;
            let (value, after) = self.value(tag.after)?;
            let value = if self.trims_values { value.trim() } else { value };
            let argument = if self.trims { tag.name.trim() } else { tag.name };
            arguments.insert(argument, tag.json(value, schema));
            rest = after;
        }
    }

    /// The value that a text begins with, and what follows its end tag: the first that has what
    /// may follow a value behind it, for a value may have tags in it.
    fn value<'a>(&self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let end = self.parameter.1;
        let follows =
            |after: &str| after.starts_with(self.parameter.0) || after.starts_with(self.invoke.1);
        let mut ends =
            text.match_indices(end).map(|(at, _)| (&text[..at], &text[at + end.len()..]));
        ends.find(|(_, after)| follows(after.trim_start()))
    }
}

/// A start tag behind `name=`.
struct StartTag<'a> {
    name: &'a str,
    /// DeepSeek's `string`: whether the value is a string as it stands.
    is_string: Option<bool>,
    after: &'a str,
}

impl<'a> StartTag<'a> {
    fn new(text: &'a str) -> Option<Self> {
        let quote = text.chars().next().filter(|first| ['"', '\''].contains(first));
        let (name, rest) = match quote {
            Some(quote) => text[1..].split_once(quote)?,
            None => text.split_at(text.find(['>', ' ', '\n'])?),
        };
        let (attributes, after) = rest.split_once('>')?;
        let is_string = match attributes.trim() {
            "" => None,
            given => Some(given.strip_prefix("string=")?.trim_matches('"') == "true"),
        };
        Some(Self { name, is_string, after })
    }

    /// The JSON text of the value, typed by the schema, else by the attribute.
    fn json(&self, value: &str, schema: Arguments<'_>) -> String {
        match self.is_string {
            Some(false) if !schema.has(self.name) && json::is_json(value) => {
                value.trim().to_owned()
            }
            Some(true) if !schema.has(self.name) => string(value),
            _ => schema.value(self.name.trim(), value),
        }
    }
}
