//! `str.format` of Python, as jinja2's sandbox has it.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::{refused, split};
use super::spec::{Spec, converted};
use super::{Formatted, Pieces, html};

/// Deepest nesting of fields in the format of a field, as in Python.
const MAX_DEPTH: usize = 2;

struct Fields<'a> {
    places: &'a [Value],
    named: Lookup,
    /// The next field without a name; None: fields have numbers.
    next: Option<usize>,
    has_numbers: bool,
    escapes: bool,
    formatted: Formatted,
}

enum Lookup {
    Names(Vec<(String, Value)>),
    /// `format_map`.
    Map(Value),
}

/// `text.format(..)`.
pub(crate) fn format(text: &Value, args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(args)?;
    formatted(text, places, Lookup::Names(named))
}

/// `text.format_map(map)`.
pub(crate) fn format_map(text: &Value, map: &Value) -> Result<Value, Error> {
    formatted(text, &[], Lookup::Map(map.clone()))
}

fn formatted(text: &Value, places: &[Value], named: Lookup) -> Result<Value, Error> {
    let escapes = text.is_safe();
    let formatted = Formatted::default();
    let mut fields =
        Fields { places, named, next: Some(0), has_numbers: false, escapes, formatted };
    let made = fields.write(text.as_str().unwrap_or_default(), MAX_DEPTH)?;
    Ok(if escapes { Value::from_safe_string(made) } else { Value::from(made) })
}

impl Fields<'_> {
    fn write(&mut self, format: &str, depth: usize) -> Result<String, Error> {
        let mut out = Pieces::default();
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.write(&rest[..at])?;
            let bracket = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(bracket) {
                out.write(bracket)?;
                rest = after;
                continue;
            }
            if bracket == "}" {
                return Err(refused("single '}' encountered in format string"));
            }
            let end = end_of_field(rest)?;
            out.write(&self.field(&rest[..end], depth)?)?;
            rest = &rest[end + 1..];
        }
        out.write(rest)?;
        Ok(out.text())
    }

    /// `name!conversion:format`.
    fn field(&mut self, field: &str, depth: usize) -> Result<String, Error> {
        let end = end_of_name(field);
        let (name, rest) = field.split_at(end);
        let (conversion, spec) = match rest.strip_prefix('!') {
            Some(rest) => {
                let (conversion, spec) = rest.split_once(':').unwrap_or((rest, ""));
                let mut chars = conversion.chars();
                let c = chars.next().filter(|_| chars.next().is_none());
                let c = c.ok_or_else(|| refused("a conversion is one of !s, !r and !a"))?;
                (Some(c), spec)
            }
            None => (None, rest.strip_prefix(':').unwrap_or("")),
        };
        let mut value = self.value(name)?;
        if let Some(conversion) = conversion {
            let text = converted(&value, conversion)?;
            self.formatted.count(&text)?;
            value = Value::from(text);
        }
        let spec = match spec.contains(['{', '}']) {
            true if depth == 0 => return Err(refused("max string recursion exceeded")),
            true => self.write(spec, depth - 1)?,
            false => spec.to_string(),
        };
        let made = Spec::parse(&spec)?.format(&value)?;
        Ok(if self.escapes && !value.is_safe() { html::escape(&made) } else { made })
    }

    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let (first, mut path) = name.split_at(name.find(['.', '[']).unwrap_or(name.len()));
        let mut value = match first.parse::<usize>() {
            Ok(place) => {
                if self.next.is_some_and(|next| next > 0) {
                    return Err(refused("cannot switch from automatic to manual numbering"));
                }
                self.has_numbers = true;
                self.place(place)?
            }
            Err(_) if first.is_empty() => {
                if self.has_numbers {
                    return Err(refused("cannot switch from manual to automatic numbering"));
                }
                let place = self.next.unwrap_or(0);
                self.next = Some(place + 1);
                self.place(place)?
            }
            Err(_) => self.named(first)?,
        };
        while !path.is_empty() {
            let (key, rest) = match path.strip_prefix('[') {
                Some(rest) => {
                    let (key, rest) = rest
                        .split_once(']')
                        .ok_or_else(|| refused("missing ']' in format string"))?;
                    (key.parse::<usize>().map_or_else(|_| Value::from(key), Value::from), rest)
                }
                None => {
                    let path = path.strip_prefix('.').ok_or_else(|| {
                        refused("only '.' or '[' may follow ']' in a format field")
                    })?;
                    let end = path.find(['.', '[']).unwrap_or(path.len());
                    (Value::from(&path[..end]), &path[end..])
                }
            };
            if key.as_str().is_some_and(|key| key.is_empty()) {
                return Err(refused("empty attribute in format string"));
            }
            // The error is of what is undefined.
            value = value.get_item(&key)?;
            path = rest;
        }
        Ok(value)
    }

    fn place(&self, place: usize) -> Result<Value, Error> {
        let missing = || refused("replacement index out of range in a format");
        self.places.get(place).cloned().ok_or_else(missing)
    }

    fn named(&self, name: &str) -> Result<Value, Error> {
        let value = match &self.named {
            Lookup::Names(named) => {
                named.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone())
            }
            Lookup::Map(map) if map.kind() == ValueKind::Map => Some(map.get_attr(name)?),
            Lookup::Map(_) => None,
        };
        let value = value.filter(|value| !value.is_undefined());
        value.ok_or_else(|| refused(format!("the format has no value for '{name}'")))
    }
}

/// Where the name of a field ends: at `!` or `:` outside of brackets.
fn end_of_name(field: &str) -> usize {
    let mut in_brackets = false;
    for (at, c) in field.char_indices() {
        match c {
            '[' => in_brackets = true,
            ']' => in_brackets = false,
            '!' | ':' if !in_brackets => return at,
            _ => {}
        }
    }
    field.len()
}

/// Where the bracket is that closes a field.
fn end_of_field(text: &str) -> Result<usize, Error> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if depth == 0 {
            return Ok(at);
        }
    }
    Err(refused("expected '}' before end of string"))
}
