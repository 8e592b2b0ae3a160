//! `<|tool_call>call:f{a:<|"|>x<|"|>,b:1}<tool_call|>`: Gemma 4, and FunctionGemma with other tags.

use super::json::is_json;
use super::object::{Object, string};
use super::schema::Arguments;
use super::{Calls, Tool, ToolCall};

/// Values that are nested deeper are no call.
const MAX_DEPTH: usize = 120;

/// How a model writes its calls.
struct Dialect {
    start: &'static str,
    end: &'static str,
    /// Stands before and after a string.
    quote: &'static str,
}

const GEMMA_4: Dialect = Dialect { start: "<|tool_call>", end: "<tool_call|>", quote: "<|\"|>" };

const FUNCTION_GEMMA: Dialect =
    Dialect { start: "<start_function_call>", end: "<end_function_call>", quote: "<escape>" };

/// Gemma 4's calls.
pub(super) fn read(text: &str, tools: &[Tool]) -> Option<Calls> {
    GEMMA_4.read(text, tools)
}

/// FunctionGemma's.
pub(super) fn read_function(text: &str, tools: &[Tool]) -> Option<Calls> {
    FUNCTION_GEMMA.read(text, tools)
}

impl Dialect {
    /// Every call. The content is what is before the first.
    fn read(&self, text: &str, tools: &[Tool]) -> Option<Calls> {
        let (content, mut rest) = text.split_at(text.find(self.start)?);
        let mut calls = Vec::new();
        while let Some((_, call)) = rest.split_once(self.start) {
            let (call, after) = self.call(call, tools)?;
            calls.push(call);
            rest = after;
        }
        Calls::new(content.trim(), calls)
    }

    /// The call that a text begins with, and what follows its end tag.
    fn call<'a>(&self, text: &'a str, tools: &[Tool]) -> Option<(ToolCall, &'a str)> {
        let text = text.trim_start();
        let text = text.strip_prefix("call").unwrap_or(text).strip_prefix(':')?;
        let (name, rest) = text.split_at(text.find(['{', '('])?);
        let name = name.trim();
        if name.is_empty() || name.contains(self.end) {
            return None;
        }
        let mut reader = Reader { quote: self.quote, rest };
        let closing = if rest.starts_with('(') { ')' } else { '}' };
        reader.skip(1);
        let arguments = reader.members(closing, Some(Arguments::of(tools, name)), 0)?;
        let after = reader.rest.trim_start().strip_prefix(self.end)?;
        Some((ToolCall { name: name.to_owned(), arguments }, after))
    }
}

/// A text of values, from left to right.
struct Reader<'a> {
    quote: &'static str,
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn skip(&mut self, num_bytes: usize) {
        self.rest = self.rest[num_bytes..].trim_start();
    }

    /// Members up to the closing bracket, as a JSON object. Values without quotes are typed by the
    /// schema where there is one.
    fn members(
        &mut self,
        closing: char,
        schema: Option<Arguments<'_>>,
        depth: usize,
    ) -> Option<String> {
        let mut object = Object::default();
        loop {
            if self.closes(closing) {
                return Some(object.into_json());
            }
            let key = match self.quoted() {
                Some(key) => key,
                None => {
                    let at = self.rest.find([':', '}', ']', '{', '['])?;
                    let (key, rest) = self.rest.split_at(at);
                    self.rest = rest;
                    key.trim()
                }
            };
            self.rest = self.rest.trim_start().strip_prefix(':')?.trim_start();
            let typed = schema.map(|schema| (schema, key));
            let value = self.value(typed, depth)?;
            object.insert(key, value);
        }
    }

    /// Elements up to the bracket, as a JSON list.
    fn elements(&mut self, depth: usize) -> Option<String> {
        let mut elements = Vec::new();
        while !self.closes(']') {
            elements.push(self.value(None, depth)?);
        }
        Some(format!("[{}]", elements.join(", ")))
    }

    /// Passes commas, and the closing bracket if it is next.
    fn closes(&mut self, closing: char) -> bool {
        let is_between = |symbol: char| symbol == ',' || symbol.is_whitespace();
        self.rest = self.rest.trim_start_matches(is_between);
        let closes = self.rest.starts_with(closing);
        if closes {
            self.skip(1);
        }
        closes
    }

    /// A string between quotes, if one is next and ends.
    fn quoted(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.strip_prefix(self.quote)?.split_once(self.quote)?;
        self.rest = rest.trim_start();
        Some(text)
    }

    fn value(&mut self, schema: Option<(Arguments<'_>, &str)>, depth: usize) -> Option<String> {
        let by_schema = |text: &str| schema.map(|(schema, key)| schema.value(key, text));
        if depth > MAX_DEPTH {
            return None;
        }
        if self.rest.starts_with(self.quote) {
            let text = self.quoted()?;
            return Some(by_schema(text).unwrap_or_else(|| string(text)));
        }
        match self.rest.chars().next()? {
            '{' => {
                self.skip(1);
                self.members('}', None, depth + 1)
            }
            '[' => {
                self.skip(1);
                self.elements(depth + 1)
            }
            _ => {
                let (text, rest) = self.rest.split_at(self.rest.find([',', '}', ']', ')'])?);
                self.rest = rest;
                let text = text.trim();
                let bare = || if is_json(text) { text.to_owned() } else { string(text) };
                Some(by_schema(text).unwrap_or_else(bare)).filter(|_| !text.is_empty())
            }
        }
    }
}
