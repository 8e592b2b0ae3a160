//! `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen3-Coder, and
//! Seed-OSS with tags of its own.

use super::super::tags;
use super::object::Object;
use super::schema::Arguments;
use super::{Calls, Tool, ToolCall};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const NAME: &str = "parameter";

/// Calls between Qwen's tags.
pub(super) fn read_qwen(text: &str, tools: &[Tool]) -> Option<Calls> {
    read(text, tools, ("<tool_call>", "</tool_call>"))
}

/// Calls between Seed-OSS's tags.
pub(super) fn read_seed(text: &str, tools: &[Tool]) -> Option<Calls> {
    read(text, tools, ("<seed:tool_call>", "</seed:tool_call>"))
}

/// Every call, also of functions without the outer tags. The content is what is before the first.
fn read(text: &str, tools: &[Tool], (start, end): (&str, &str)) -> Option<Calls> {
    let (content, mut rest) = text.split_at(tags::first(text, &[start, FUNCTION])?.0);
    let mut reading = Reading { tools, end, calls: Vec::new(), is_ragged: false };
    while let Some((at, tag)) = tags::first(rest, &[start, FUNCTION]) {
        let block = &rest[at + if tag == 0 { start.len() } else { 0 }..];
        let before = reading.calls.len();
        rest = reading.block(block)?;
        if reading.calls.len() == before {
            return None;
        }
    }
    Calls::new(content.trim(), reading.calls)
}

/// What is read of a text, from its beginning on.
struct Reading<'a> {
    tools: &'a [Tool],
    /// The outer end tag.
    end: &'a str,
    calls: Vec<ToolCall>,
    /// No tag of the rest surely ends a value.
    is_ragged: bool,
}

impl Reading<'_> {
    /// Functions up to the outer end tag; returns what follows it. What is between them is dropped.
    fn block<'t>(&mut self, block: &'t str) -> Option<&'t str> {
        let mut rest = block;
        loop {
            match tags::first(rest, &[self.end, FUNCTION]) {
                None => return Some(""),
                Some((at, 0)) => return Some(&rest[at + self.end.len()..]),
                Some((at, _)) => {
                    let (call, after) = self.function(&rest[at + FUNCTION.len()..])?;
                    self.calls.push(call);
                    rest = after;
                }
            }
        }
    }

    /// A function: `f>` and its parameters, up to its end tag, or to the outer one where that
    /// lacks. A function that is cut may lack parameters: it is no call.
    fn function<'t>(&mut self, text: &'t str) -> Option<(ToolCall, &'t str)> {
        let (name_end, tag) = tags::first(text, &[FUNCTION_END, ">"])?;
        let name = text[..name_end].trim();
        if name.is_empty() {
            return None;
        }
        let schema = Arguments::of(self.tools, name);
        let mut arguments = Object::default();
        let mut at = name_end + usize::from(tag == 1);
        let after = loop {
            let next = next_tag(text, at, &[Tag::Start, Tag::FunctionEnd, Tag::Outer(self.end)])?;
            match next.tag {
                Tag::FunctionEnd => break next.end,
                Tag::Start => {}
                _ => break next.begin,
            }
            let argument_end = next.end + text[next.end..].find('>')?;
            let argument = &text[next.end..argument_end];
            let begin = argument_end + 1;
            let close = self.value_end(text, begin)?;
            let value = without_line_ends(&text[begin..close.begin]);
            arguments.insert(argument, schema.value(argument, value));
            at = if matches!(close.tag, Tag::End) { close.end } else { close.begin };
        };
        let call = ToolCall { name: name.to_owned(), arguments: arguments.into_json() };
        Some((call, &text[after..]))
    }

    /// The tag that ends the value which begins at `from`: its end tag, or the next parameter or
    /// the function's end where that lacks. A value may have tags in it, so the first tag counts
    /// that has behind it what follows a value; only if none has, the first.
    fn value_end(&mut self, text: &str, from: usize) -> Option<Found<'static>> {
        const TAGS: [Tag<'static>; 3] = [Tag::End, Tag::Start, Tag::FunctionEnd];
        let first = next_tag(text, from, &TAGS)?;
        let mut found = first;
        while !self.is_ragged {
            if self.surely_ends(text, &found) {
                return Some(found);
            }
            match next_tag(text, found.end, &TAGS) {
                Some(next) => found = next,
                None => self.is_ragged = true,
            }
        }
        Some(first)
    }

    /// Whether a tag has before and behind it what the end of a value has.
    fn surely_ends(&self, text: &str, found: &Found<'_>) -> bool {
        let after = text[found.end..].trim_start();
        let is_over = after.is_empty() || after.starts_with(self.end);
        match found.tag {
            Tag::End => {
                let follows = [Tag::Start, Tag::FunctionEnd].map(|tag| after_tag(after, tag));
                is_over || follows.iter().any(Option::is_some)
            }
            Tag::FunctionEnd => is_over || after.starts_with(FUNCTION),
            // The template writes it on a line of its own.
            _ => text[..found.begin].ends_with('\n'),
        }
    }
}

/// A tag. Those of parameters may have spaces between their parts.
#[derive(Clone, Copy, Debug)]
enum Tag<'a> {
    /// `<parameter=`.
    Start,
    /// `</parameter>`.
    End,
    /// `</function>`.
    FunctionEnd,
    /// The tag that ends a block.
    Outer(&'a str),
}

/// A tag's place.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    tag: Tag<'a>,
    begin: usize,
    end: usize,
}

/// The next of some tags.
fn next_tag<'a>(text: &str, from: usize, tags: &[Tag<'a>]) -> Option<Found<'a>> {
    let mut begin = from;
    loop {
        begin += text[begin..].find('<')?;
        let here = &text[begin..];
        let found = tags.iter().find_map(|tag| Some((*tag, after_tag(here, *tag)?)));
        if let Some((tag, rest)) = found {
            return Some(Found { tag, begin, end: text.len() - rest.len() });
        }
        begin += 1;
    }
}

/// Text behind a tag.
fn after_tag<'a>(text: &'a str, tag: Tag<'_>) -> Option<&'a str> {
    let inside = || text.strip_prefix('<').map(str::trim_start);
    let named = |rest: &'a str| rest.strip_prefix(NAME).map(str::trim_start);
    match tag {
        Tag::Start => named(inside()?)?.strip_prefix('=').map(str::trim_start),
        Tag::End => named(inside()?.strip_prefix('/')?.trim_start())?.strip_prefix('>'),
        Tag::FunctionEnd => text.strip_prefix(FUNCTION_END),
        Tag::Outer(outer) => text.strip_prefix(outer),
    }
}

/// The template writes a line end before and after a value.
fn without_line_ends(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
