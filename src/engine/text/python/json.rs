//! `json.dumps` of Python.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::super::chat_template::budget::check_text;
use super::super::chat_template::sequences::Sequence;
use super::super::filters::lists::{less, sorted};
use super::arguments::{as_int, bind, flag, given, refused, text};
use super::{as_float, float_repr, number, type_name};

/// The `tojson` filter as transformers defines it: `json.dumps(x, ensure_ascii, indent, separators,
/// sort_keys)`, with Python's separators and no HTML escapes.
pub(crate) fn tojson(args: &[Value]) -> Result<Value, Error> {
    let names = ["", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ensure_ascii, indent, separators, sort_keys] = bind("tojson", args, 1, names)?;
    let indent = match given(&indent) {
        None => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_string(),
            None => " ".repeat(usize::try_from(as_int(value)?.max(0)).unwrap_or(0).min(64)),
        }),
    };
    let (item, key) = match given(&separators) {
        Some(pair) => {
            let pair: Vec<Value> = pair.try_iter()?.collect();
            let [item, key] = pair.as_slice() else {
                return Err(refused("separators is not a pair"));
            };
            (text(item)?.to_string(), text(key)?.to_string())
        }
        // With an indent Python leaves out the space at the end of the line.
        None if indent.is_some() => (",".to_string(), ": ".to_string()),
        None => (", ".to_string(), ": ".to_string()),
    };
    let (ensure_ascii, sort_keys) = (flag(&ensure_ascii, false), flag(&sort_keys, false));
    let mut dumps =
        Dumps { ensure_ascii, indent, item, key, sort_keys, depth: 0, out: String::new() };
    dumps.value(&value.unwrap_or_default())?;
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
        check_text(self.out.len())?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number_text(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            _ if number::is_integer(value) => self.out.push_str(&value.to_string()),
            ValueKind::Seq if value.downcast_object_ref::<Sequence>().is_none() => {
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
                    items =
                        sorted(items, |(a, _): &(Option<Value>, Value), (b, _)| match (a, b) {
                            (Some(a), Some(b)) => less(a, b),
                            _ => Ok(false),
                        })?;
                }
                self.container('{', '}', items)?;
            }
            _ => {
                let kind = type_name(value);
                return Err(refused(format!("Object of type {kind} is not JSON serializable")));
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
            return Err(refused("tojson: nested too deeply"));
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
                    _ if number::is_number(&key) => self.string(&number_text(&key)),
                    _ => {
                        let kind = type_name(&key);
                        let text = "keys must be str, int, float, bool or None, not";
                        return Err(refused(format!("{text} {kind}")));
                    }
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

fn number_text(value: &Value) -> String {
    match as_float(value) {
        Some(float) if float.is_nan() => "NaN".to_string(),
        Some(float) if float.is_infinite() => {
            if float > 0.0 { "Infinity" } else { "-Infinity" }.to_string()
        }
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
}
