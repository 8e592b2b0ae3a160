//! JSON in an answer, and whether two values are equal: numbers by every digit.

use std::fmt::{self, Display, Write};

use serde_json::Value;

use super::number::Decimal;
use crate::input::fields::json_string;
use crate::judge::work::{TooMuch, Work};

/// A value whose numbers are as they are written.
#[derive(Clone, Debug)]
pub struct Exact {
    /// Numbers are texts with `#` before them, and texts have `$` before them.
    marked: Value,
    plain: Value,
}

impl Exact {
    /// Reads a text that is JSON.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = serde_json::from_str(text).ok()?;
        let marked = serde_json::from_str(&marked(text)).ok()?;
        Some(Self { marked, plain })
    }

    /// The value with numbers as machines have them.
    pub fn plain(&self) -> &Value {
        &self.plain
    }

    /// Equal values: fields in any order, numbers by their value.
    pub fn equals(&self, other: &Self) -> bool {
        equal_marked(&self.marked, &other.marked)
    }
}

/// The text of the value in one line, numbers as they were written.
impl Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_marked(&self.marked, f)
    }
}

fn write_marked(value: &Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut before = "";
    match value {
        Value::String(text) => match text.strip_prefix('#') {
            Some(number) => f.write_str(number),
            None => f.write_str(&json_string(&text[1..])),
        },
        Value::Array(values) => {
            f.write_char('[')?;
            for value in values {
                f.write_str(std::mem::replace(&mut before, ","))?;
                write_marked(value, f)?;
            }
            f.write_char(']')
        }
        Value::Object(fields) => {
            f.write_char('{')?;
            for (name, value) in fields {
                let before = std::mem::replace(&mut before, ",");
                write!(f, "{before}{}:", json_string(&name[1..]))?;
                write_marked(value, f)?;
            }
            f.write_char('}')
        }
        other => write!(f, "{other}"),
    }
}

/// JSON that is valid, with every number as a text of its digits.
fn marked(json: &str) -> String {
    let mut marked = String::with_capacity(json.len() + json.len() / 4);
    let mut rest = json;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        marked.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.strip_prefix('"') {
            Some(inside) => {
                let mut is_escaped = false;
                let end = inside.bytes().position(|byte| {
                    let ends = byte == b'"' && !is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                    ends
                });
                let end = end.map_or(inside.len(), |end| end + 1);
                marked.push_str("\"$");
                marked.push_str(&inside[..end]);
                1 + end
            }
            None => {
                let is_in =
                    |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
                let end = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
                let _ = write!(marked, "\"#{}\"", &rest[..end]);
                end
            }
        };
        rest = &rest[length..];
    }
    marked.push_str(rest);
    marked
}

fn equal_marked(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => match (a.strip_prefix('#'), b.strip_prefix('#')) {
            (Some(a), Some(b)) => a == b || Decimal::of_json(a) == Decimal::of_json(b),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal_marked(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_there = |(name, value): (&String, &Value)| {
                b.get(name).is_some_and(|other| equal_marked(value, other))
            };
            a.len() == b.len() && a.iter().all(is_there)
        }
        _ => a == b,
    }
}

/// The answer as JSON; else the first object or list in it that is whole.
///
/// # Errors
/// There are too many beginnings of JSON that is not whole.
pub fn found(answer: &str, work: &Work) -> Result<Option<Exact>, TooMuch> {
    work.read(8, [answer.len(), 0])?;
    match Exact::parse(answer.trim()) {
        Some(whole) => Ok(Some(whole)),
        None => within(answer, &['{', '['], work).next().transpose(),
    }
}

/// The objects of a text that are whole and in no other, as promptfoo looks for them.
///
/// # Errors
/// As `found`.
pub fn objects_in<'a>(
    text: &'a str,
    work: &'a Work,
) -> impl Iterator<Item = Result<Exact, TooMuch>> + 'a {
    within(text, &['{'], work)
}

/// Values within a text, one after the other. They nest no deeper than `serde_json` reads.
fn within<'a>(
    text: &'a str,
    begins: &'a [char],
    work: &'a Work,
) -> impl Iterator<Item = Result<Exact, TooMuch>> + 'a {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            at += text[at..].find(begins)?;
            let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
            let read = match values.next()? {
                Ok(_) => {
                    let end = at + values.byte_offset();
                    let value = Exact::parse(&text[at..end]);
                    at = end;
                    return value.map(Ok);
                }
                Err(error) => length_before(&text[at..], error.line(), error.column()),
            };
            at += 1;
            if let Err(error) = work.take(read as u64) {
                return Some(Err(error));
            }
        }
    })
}

/// Bytes before a place of a text.
fn length_before(text: &str, line: usize, column: usize) -> usize {
    let lines = text.split_inclusive('\n').take(line.saturating_sub(1));
    lines.map(str::len).sum::<usize>() + column
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn first(text: &str) -> Option<Value> {
        found(text, &Work::default()).unwrap().map(|found| found.plain().clone())
    }

    #[test]
    fn json_is_found_in_what_models_write() {
        let cases = [
            ("{\"a\":1}", Some(json!({"a": 1}))),
            (" 5\n", Some(json!(5))),
            ("Here: ```json\n{\"a\": [1, 2]}\n``` and {\"b\":2}", Some(json!({"a": [1, 2]}))),
            ("an {open {\"a\":1} one", Some(json!({"a": 1}))),
            ("[1, 2", None),
            ("{'a': 1}", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(first(text), expected, "{text}");
        }
    }

    #[test]
    fn values_are_equal_by_their_meaning() {
        let exact = |text: &str| Exact::parse(text).expect(text);
        let equal = [
            ("{\"a\": 1, \"b\": [2]}", "{\"b\": [2.0], \"a\": 1.0}"),
            ("\"#1\"", "\"\\u00231\""),
            ("{\"a\\\\\": \"x\\\"1\"}", " {\"a\\\\\":\"x\\\"1\"} "),
            ("123456789012345678901234567890", "1.2345678901234567890123456789e29"),
        ];
        for (a, b) in equal {
            assert!(exact(a).equals(&exact(b)), "{a} {b}");
        }
        let different = [
            ("{\"a\": 1}", "{\"a\": 1, \"b\": 2}"),
            ("[1, 2]", "[2, 1]"),
            ("\"1\"", "1"),
            ("\"#1\"", "1"),
            ("null", "false"),
            ("9007199254740993", "9007199254740992"),
            ("115792089237316195423570985008687907853", "115792089237316195423570985008687907854"),
            ("0.1", "0.10000000000000000001"),
        ];
        for (a, b) in different {
            assert!(!exact(a).equals(&exact(b)), "{a} {b}");
        }
        let text = "{\"b\":[1.50,-2e3,\"x\\\"3\"],\"a\":null}";
        assert_eq!(exact(text).to_string(), text);
    }

    #[test]
    fn a_text_of_brackets_takes_no_longer_than_it_is() {
        for text in ["[", "{\"a\":", "{", "[[[],"] {
            assert_eq!(first(&text.repeat(1 << 14)).is_some(), text == "[[[],", "{text}");
        }
    }

    #[test]
    fn beginnings_that_are_never_whole_are_too_much_work() {
        let flat = format!("[{}", "1,".repeat(1 << 13));
        assert!(found(&flat.repeat(1 << 10), &Work::default()).is_err());
    }
}
