//! Python's literals, as JSON texts: what arguments of pythonic calls are.

use super::json::is_json;
use super::object::{Object, string};

/// Lists in lists that are read; JSON of this depth can be read back.
const MAX_DEPTH: usize = 100;

/// Reads a text from its beginning. Spaces and line ends are passed, as between Python's brackets.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    /// At the beginning of a text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, depth: 0 }
    }

    /// The text that is left.
    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    /// Whether only white space is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.trim_start().is_empty()
    }

    /// Whether a text is next.
    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.rest.trim_start().starts_with(text)
    }

    /// Passes a character, if it is next.
    pub(super) fn pass(&mut self, character: char) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(character)?;
        Some(())
    }

    /// A name, with `more` allowed after its first letter.
    pub(super) fn name(&mut self, more: &[char]) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let is_in = |c: char| c.is_alphanumeric() || c == '_' || more.contains(&c);
        let end = text.find(|c| !is_in(c)).unwrap_or(text.len());
        let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let name = &text[..end];
        self.rest = &text[end..];
        (starts && !name.is_empty()).then_some(name)
    }

    /// Items between brackets, with commas between them and perhaps after the last. The opening
    /// bracket is passed already.
    pub(super) fn items(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<usize> {
        let mut num_items = 0;
        while self.pass(close).is_none() {
            if num_items > 0 {
                self.pass(',')?;
                if self.pass(close).is_some() {
                    break;
                }
            }
            item(self)?;
            num_items += 1;
        }
        Some(num_items)
    }

    /// A literal's JSON text: strings, numbers, True, False, None (and JSON's words for them),
    /// lists, tuples, sets and dicts.
    pub(super) fn value(&mut self) -> Option<String> {
        self.depth += 1;
        let value = if self.depth > MAX_DEPTH { None } else { self.nested_value() };
        self.depth -= 1;
        value
    }

    fn nested_value(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        match text.chars().next()? {
            '[' => self.list(),
            '(' => self.tuple(),
            '{' => self.dict_or_set(),
            '-' | '+' => self.signed_number(),
            '0'..='9' | '.' => self.number(),
            _ if is_string(text) => self.strings().map(|text| string(&text)),
            _ => self.constant().map(str::to_owned),
        }
    }

    fn constant(&mut self) -> Option<&'static str> {
        match self.name(&[])? {
            "None" | "null" => Some("null"),
            "True" | "true" => Some("true"),
            "False" | "false" => Some("false"),
            _ => None,
        }
    }

    fn list(&mut self) -> Option<String> {
        self.pass('[')?;
        let mut values = Vec::new();
        self.items(']', |reader| {
            values.push(reader.value()?);
            Some(())
        })?;
        Some(format!("[{}]", values.join(", ")))
    }

    /// A tuple is a list; one value without a comma is that value.
    fn tuple(&mut self) -> Option<String> {
        self.pass('(')?;
        let (mut values, mut has_comma) = (Vec::new(), true);
        while self.pass(')').is_none() {
            values.push(self.value()?);
            has_comma = self.pass(',').is_some();
            if !has_comma {
                self.pass(')')?;
                break;
            }
        }
        if values.len() == 1 && !has_comma {
            return values.pop();
        }
        Some(format!("[{}]", values.join(", ")))
    }

    fn dict_or_set(&mut self) -> Option<String> {
        self.pass('{')?;
        let (mut object, mut values) = (Object::default(), Vec::new());
        let num_items = self.items('}', |reader| {
            let is_text = is_string(reader.rest.trim_start());
            let key = if is_text { reader.strings()? } else { reader.value()? };
            if reader.pass(':').is_none() {
                values.push(if is_text { string(&key) } else { key });
                return Some(());
            }
            // A float's key is Python's own text of it; a list cannot be one.
            let is_key = is_text || !key.contains(['[', '{', '.', 'e', 'E']) || is_word(&key);
            let value = reader.value()?;
            object.insert(&key, value);
            is_key.then_some(())
        })?;
        match values.len() {
            0 => Some(object.into_json()),
            num_values if num_values == num_items => Some(format!("[{}]", values.join(", "))),
            _ => None,
        }
    }

    fn signed_number(&mut self) -> Option<String> {
        let is_negative = self.pass('-').is_some();
        if !is_negative {
            self.pass('+')?;
        }
        let number = self.number()?;
        Some(if is_negative { format!("-{number}") } else { number })
    }

    /// A number in the model's own digits, where JSON has them too.
    fn number(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let bytes = text.as_bytes();
        let is_based = bytes.len() > 1 && bytes[0] == b'0' && bytes[1].is_ascii_alphabetic();
        let is_in = |at: usize| {
            let after_exponent = at > 0 && !is_based && matches!(bytes[at - 1], b'e' | b'E');
            let is_sign = matches!(bytes[at], b'+' | b'-') && after_exponent;
            is_sign || bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'.' | b'_')
        };
        let end = (0..bytes.len()).find(|at| !is_in(*at)).unwrap_or(bytes.len());
        self.rest = &text[end..];
        let digits = text[..end].replace('_', "");
        if is_based {
            return based_integer(&digits);
        }
        let leading = if digits.starts_with('.') { "0" } else { "" };
        let number = format!("{leading}{digits}").replacen(".e", ".0e", 1).replacen(".E", ".0E", 1);
        let number = if number.ends_with('.') { number + "0" } else { number };
        let is_number =
            number.starts_with(|digit: char| digit.is_ascii_digit()) && is_json(&number);
        is_number.then_some(number)
    }

    /// Strings beside each other, which are one.
    fn strings(&mut self) -> Option<String> {
        let mut text = String::new();
        while is_string(self.rest.trim_start()) {
            self.rest = self.rest.trim_start();
            self.string_into(&mut text)?;
        }
        Some(text)
    }

    fn string_into(&mut self, out: &mut String) -> Option<()> {
        let quote = self.rest.find(['\'', '"'])?;
        let prefix = self.rest[..quote].to_lowercase();
        let (is_raw, is_format) = (prefix.contains('r'), prefix.contains('f'));
        let mark = &self.rest[quote..=quote];
        let triple = mark.repeat(3);
        let close = if self.rest[quote..].starts_with(&triple) { triple.as_str() } else { mark };
        let mut rest = &self.rest[quote + close.len()..];
        loop {
            if let Some(after) = rest.strip_prefix(close) {
                self.rest = after;
                return Some(());
            }
            let character = rest.chars().next()?;
            rest = &rest[character.len_utf8()..];
            match character {
                '\n' if close.len() == 1 => return None,
                '{' | '}' if is_format => return None,
                '\\' if is_raw => {
                    let next = rest.chars().next()?;
                    out.extend(['\\', next]);
                    rest = &rest[next.len_utf8()..];
                }
                '\\' => rest = escaped(rest, out)?,
                other => out.push(other),
            }
        }
    }
}

/// Whether a JSON text is one of the constants.
fn is_word(text: &str) -> bool {
    matches!(text, "null" | "true" | "false")
}

/// Whether a text begins with a string, perhaps with a prefix. Bytes are none.
fn is_string(text: &str) -> bool {
    let prefix = text.bytes().take_while(|byte| b"rRuUfF".contains(byte)).count();
    prefix <= 2 && text[prefix..].starts_with(['\'', '"'])
}

/// `0x1F`, `0o17`, `0b11` in decimal.
fn based_integer(digits: &str) -> Option<String> {
    let base = match digits.as_bytes()[1].to_ascii_lowercase() {
        b'x' => 16,
        b'o' => 8,
        b'b' => 2,
        _ => return None,
    };
    u128::from_str_radix(&digits[2..], base).ok().map(|value| value.to_string())
}

/// Reads the escape behind a backslash; returns the text after it. Unknown escapes stay, as in
/// Python.
fn escaped<'a>(text: &'a str, out: &mut String) -> Option<&'a str> {
    let character = text.chars().next()?;
    let rest = &text[character.len_utf8()..];
    let code = |text: &'a str, len: usize, base: u32| {
        let digits = text.get(..len)?;
        let is_code = digits.chars().all(|digit| digit.is_digit(base));
        let value = u32::from_str_radix(digits, base).ok().filter(|_| is_code)?;
        Some((char::from_u32(value)?, &text[len..]))
    };
    let (character, rest) = match character {
        '\n' => return Some(rest),
        'n' => ('\n', rest),
        't' => ('\t', rest),
        'r' => ('\r', rest),
        'a' => ('\u{7}', rest),
        'b' => ('\u{8}', rest),
        'f' => ('\u{c}', rest),
        'v' => ('\u{b}', rest),
        '\\' | '\'' | '"' => (character, rest),
        'x' => code(rest, 2, 16)?,
        'u' => code(rest, 4, 16)?,
        'U' => code(rest, 8, 16)?,
        'N' => return None,
        '0'..='7' => {
            let len = text.bytes().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            code(text, len, 8)?
        }
        other => {
            out.push('\\');
            (other, rest)
        }
    };
    out.push(character);
    Some(rest)
}
