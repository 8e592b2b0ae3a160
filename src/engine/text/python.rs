//! How Python writes values: `json.dumps`, `repr`, floats. Chat templates are written against
//! these.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::chat_template::budget::{BoundedText, MAX_TEXT};

/// Python's `str.isspace` characters: Unicode white space and the four separators of ASCII.
pub(in crate::engine) fn is_space(c: char) -> bool {
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

/// Python's `str`, for what a template prints.
pub(super) fn to_str(value: &Value) -> Result<String, Error> {
    if let Some(float) = as_float(value) {
        return Ok(float_repr(float));
    }
    let mut out = String::new();
    match value.kind() {
        ValueKind::Seq | ValueKind::Map => repr(value, &mut out)?,
        _ => out = written(format_args!("{value}"))?,
    }
    Ok(out)
}

/// What `write!` makes of a value, if it is not too much.
fn written(what: std::fmt::Arguments<'_>) -> Result<String, Error> {
    let mut text = BoundedText::default();
    let result = text.write_fmt(what);
    text.written(result)
}

fn check_len(out: &str) -> Result<(), Error> {
    match out.len() > MAX_TEXT {
        true => Err(Error::new(
            ErrorKind::InvalidOperation,
            "the chat template makes a text of more than 16 MiB",
        )),
        false => Ok(()),
    }
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    // Lists may hold one long text many times.
    check_len(out)?;
    match value.kind() {
        ValueKind::String => string_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Number => out.push_str(&to_str(value)?),
        ValueKind::Map if is_plain(value) => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        ValueKind::Seq if is_plain(value) => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push(']');
        }
        _ => out.push_str(&written(format_args!("{value:?}"))?),
    }
    Ok(())
}

/// Lists and dicts, not tuples, namespaces and the like, which write themselves.
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
            c if is_printable(c) => out.push(c),
            c => {
                // Writing to a String cannot fail.
                let _ = match c as u32 {
                    code @ ..=0xFF => write!(out, "\\x{code:02x}"),
                    code @ ..=0xFFFF => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable` without its tables: control, format, separator and private characters
/// are not; unassigned code points are taken for printable.
fn is_printable(c: char) -> bool {
    !c.is_control()
        && (c == ' ' || !c.is_whitespace())
        && !matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{10ffff}')
}

/// The `tojson` filter as transformers defines it: `json.dumps(x, ensure_ascii, indent, separators,
/// sort_keys)`, with Python's separators and no HTML escapes.
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let named = kwargs.get::<Option<bool>>("ensure_ascii")?;
    let indent = match kwargs.get::<Option<Value>>("indent")?.filter(|value| !value.is_none()) {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators is not a pair")),
        // With an indent Python leaves out the space at the end of the line.
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    kwargs.assert_all_used()?;
    let ensure_ascii = ensure_ascii.or(named).unwrap_or(false);
    let mut dumps =
        Dumps { ensure_ascii, indent, item, key, sort_keys, depth: 0, out: String::new() };
    dumps.value(value)?;
    Ok(Value::from(dumps.out))
}

/// The state of one `json.dumps`.
struct Dumps {
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    depth: usize,
    out: String,
}

/// Deepest nesting that is written: JSON rows are read with a limit of 128 themselves.
const MAX_DEPTH: usize = 200;

impl Dumps {
    fn value(&mut self, value: &Value) -> Result<(), Error> {
        check_len(&self.out)?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.container('[', ']', items)?;
            }
            ValueKind::Map => {
                let mut items = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    items.push((Some(key), item));
                }
                if self.sort_keys {
                    items.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.container('{', '}', items)?;
            }
            kind => {
                let message = format!("an {kind} value is not JSON serializable");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        open: char,
        close: char,
        items: Vec<(Option<Value>, Value)>,
    ) -> Result<(), Error> {
        self.out.push(open);
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
        }
        let empty = items.is_empty();
        for (index, (key, item)) in items.into_iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item);
            }
            self.new_line();
            if let Some(key) = key {
                match key.kind() {
                    ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                    ValueKind::None => self.string("null"),
                    ValueKind::Bool => self.string(if key.is_true() { "true" } else { "false" }),
                    _ => self.string(&number(&key)),
                }
                self.out.push_str(&self.key);
            }
            self.value(&item)?;
        }
        self.depth -= 1;
        if !empty {
            self.new_line();
        }
        self.out.push(close);
        Ok(())
    }

    fn new_line(&mut self) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(self.depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && c > '~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(float) if float.is_nan() => "NaN".to_string(),
        Some(float) if float.is_infinite() => {
            if float > 0.0 { "Infinity" } else { "-Infinity" }.to_string()
        }
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
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
