//! Python in chat templates, which are written against it: how it writes values, its operators,
//! formats and numbers.

pub(super) mod arguments;
pub(super) mod classes;
pub(super) mod format;
pub(super) mod html;
pub(super) mod json;
pub(super) mod literal;
pub(super) mod number;
pub(super) mod operators;
pub(super) mod percent;
mod spec;

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::chat_template::budget::{BoundedText, check_text};
use super::chat_template::sequences::{Kind, Sequence};
use super::filters::lists::Group;
use arguments::refused;
use html::escaped;

/// Python's `str.isspace` characters: Unicode white space and the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `repr` of a float: shortest digits, exponent below 1e-4 and from 1e16.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_string();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let text = value.to_string();
        return if text.contains('.') { text } else { format!("{text}.0") };
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn as_float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer())
        .then(|| f64::try_from(value.clone()).ok())
        .flatten()
}

/// Name of a value's type in Python.
pub(super) fn type_name(value: &Value) -> &'static str {
    if let Some(sequence) = value.downcast_object_ref::<Sequence>() {
        return sequence.type_name();
    }
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        _ if number::is_integer(value) => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Seq if is_tuple(value) => "tuple",
        ValueKind::Seq => "list",
        ValueKind::Map => "dict",
        _ => "object",
    }
}

/// Whether a value is a tuple; so are the groups of `groupby`.
pub(super) fn is_tuple(value: &Value) -> bool {
    value.is_tuple() || value.downcast_object_ref::<Group>().is_some()
}

/// Python's `str`, for what a template prints.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_string()),
        _ => repr_of(value),
    }
}

/// Python's `repr`.
pub(super) fn repr_of(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    repr(value, &mut out)?;
    Ok(out)
}

/// A text of pieces, which grows up to the largest that a template may make.
#[derive(Default)]
pub(super) struct Pieces(String);

impl Pieces {
    pub(crate) fn write(&mut self, piece: &str) -> Result<(), Error> {
        check_text(self.0.len() + piece.len())?;
        self.0.push_str(piece);
        Ok(())
    }

    pub(crate) fn write_char(&mut self, c: char) -> Result<(), Error> {
        check_text(self.0.len() + c.len_utf8())?;
        self.0.push(c);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn text(self) -> String {
        self.0
    }
}

/// Texts that one format may make of its values, those included of which it shows a part only.
const MAX_FORMATTED: usize = 64 << 20;

/// Length of a format's text so far.
#[derive(Default)]
struct Formatted(usize);

impl Formatted {
    /// Counts a text that was made.
    fn count(&mut self, text: &str) -> Result<(), Error> {
        self.0 += text.len();
        match self.0 > MAX_FORMATTED {
            true => Err(refused("the chat template formats more than 64 MiB of texts")),
            false => Ok(()),
        }
    }
}

/// Text of a value by `write!`, if it is not too much.
fn written(what: std::fmt::Arguments<'_>) -> Result<String, Error> {
    let mut text = BoundedText::default();
    let result = text.write_fmt(what);
    text.written(result)
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    // Lists may hold one long text many times.
    check_text(out.len())?;
    if let Some(float) = as_float(value) {
        out.push_str(&float_repr(float));
        return Ok(());
    }
    if let Some(sequence) = value.downcast_object_ref::<Sequence>() {
        return match sequence.kind() {
            Kind::Iterator(name) => Err(refused(format!(
                "the chat template prints an iterator, which {name} makes; `| list` makes it a list"
            ))),
            Kind::View(name) => {
                out.push_str(name);
                out.push('(');
                repr(sequence.list(), out)?;
                out.push(')');
                Ok(())
            }
            Kind::Range(text) => {
                out.push_str(text);
                Ok(())
            }
        };
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String if value.is_safe() => {
            out.push_str("Markup(");
            string_repr(value.as_str().unwrap_or_default(), out);
            out.push(')');
        }
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => map_repr(value, out)?,
        ValueKind::Seq => {
            let is_tuple = is_tuple(value);
            let (open, close) = if is_tuple { ('(', ')') } else { ('[', ']') };
            out.push(open);
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push_str(if is_tuple && value.len() == Some(1) { "," } else { "" });
            out.push(close);
        }
        _ => {
            out.push_str(&written(format_args!("{value}"))?);
        }
    }
    Ok(())
}

/// A dict, a namespace or a loop.
fn map_repr(value: &Value, out: &mut String) -> Result<(), Error> {
    if value.as_object().is_some_and(|object| object.type_name().ends_with("::Macro")) {
        out.push_str("<Macro ");
        repr(&value.get_attr("name")?, out)?;
        out.push('>');
        return Ok(());
    }
    let is_namespace =
        value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"));
    if !is_namespace && !is_plain(value) {
        let [index, length] = ["index", "length"].map(|name| value.get_attr(name));
        out.push_str(&format!("<LoopContext {}/{}>", index?, length?));
        return Ok(());
    }
    out.push_str(if is_namespace { "<Namespace {" } else { "{" });
    for (index, key) in value.try_iter()?.enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        repr(&key, out)?;
        out.push_str(": ");
        repr(&value.get_item(&key)?, out)?;
    }
    out.push_str(if is_namespace { "}>" } else { "}" });
    Ok(())
}

/// Whether a map is a dict, and not a loop.
fn is_plain(value: &Value) -> bool {
    let mut first = First(None);
    // It writes no more than is needed, which it says by an error.
    let _ = write!(first, "{value:?}");
    matches!(first.0, Some('[' | '{'))
}

/// The first character of what is written.
struct First(Option<char>);

impl Write for First {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0 = text.chars().next();
        if self.0.is_some() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

fn string_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if classes::is_printable(c) => out.push(c),
            c => escape_char(c, out),
        }
    }
    out.push(quote);
}

/// A character by its number.
fn escape_char(c: char, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = match c as u32 {
        code @ ..=0xFF => write!(out, "\\x{code:02x}"),
        code @ ..=0xFFFF => write!(out, "\\u{code:04x}"),
        code => write!(out, "\\U{code:08x}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_pythons() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (123_456_789_012_345.0, "123456789012345.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-0.0, "-0.0"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(float_repr(value), text);
        }
    }

    #[test]
    fn lists_and_dicts_are_pythons() {
        let value: Value = Value::from(minijinja::value::Serde(
            serde_json::json!({"a": [1, 1e20, null, true], "b": "it's \"x\"\n\u{200b}\u{7f}é"}),
        ));
        let expected = r#"{'a': [1, 1e+20, None, True], 'b': 'it\'s "x"\n\u200b\x7fé'}"#;
        assert_eq!(to_str(&value).expect("prints"), expected);
    }
}
