//! `'..' % values` of Python.

use std::iter::Peekable;
use std::str::Chars;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::arguments::{as_int, refused};
use super::number::{self, Number};
use super::spec::{Spec, check_width, converted};
use super::{Formatted, Pieces, html, type_name};

/// Values that are formatted.
struct Values<'a> {
    values: &'a Value,
    /// The items of a tuple, else the one value.
    items: Vec<Value>,
    next: usize,
    /// By name, which leaves what is not used alone.
    by_name: bool,
    formatted: Formatted,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value, Error> {
        let value = self.items.get(self.next).cloned();
        self.next += 1;
        value.ok_or_else(|| refused("not enough arguments for format string"))
    }

    fn named(&self, name: &str) -> Result<Value, Error> {
        if self.values.kind() != ValueKind::Map {
            return Err(refused("format requires a mapping"));
        }
        let value = self.values.get_item(&Value::from(name))?;
        match value.is_undefined() {
            true => Err(refused(format!("the format has no value for '{name}'"))),
            false => Ok(value),
        }
    }
}

/// `format % values`.
pub(crate) fn format(format: &Value, values: &Value) -> Result<Value, Error> {
    use ValueKind::{Iterable, Map, Seq, Undefined};
    let items = match values.is_tuple() {
        true => values.try_iter()?.collect(),
        false => vec![values.clone()],
    };
    // Whatever has items counts as a mapping, a list included.
    let by_name = !values.is_tuple() && matches!(values.kind(), Map | Seq | Iterable | Undefined);
    let mut values = Values { values, items, next: 0, by_name, formatted: Formatted::default() };
    let mut out = Pieces::default();
    let text = format.as_str().unwrap_or_default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '%' => {
                let piece = field(&mut chars, &mut values, format.is_safe())?;
                out.write(&piece)?;
            }
            c => out.write_char(c)?,
        }
    }
    if values.next < values.items.len() && !values.by_name {
        return Err(refused("not all arguments converted during string formatting"));
    }
    Ok(match format.is_safe() {
        true => Value::from_safe_string(out.text()),
        false => Value::from(out.text()),
    })
}

/// One field, behind its `%`.
fn field(
    chars: &mut Peekable<Chars<'_>>,
    values: &mut Values<'_>,
    escapes: bool,
) -> Result<String, Error> {
    let incomplete = || refused("incomplete format");
    let mut by_name = None;
    if chars.next_if_eq(&'(').is_some() {
        let mut name = String::new();
        let mut depth = 1;
        loop {
            let c = chars.next().ok_or_else(|| refused("incomplete format key"))?;
            depth += i32::from(c == '(') - i32::from(c == ')');
            if depth == 0 {
                break;
            }
            name.push(c);
        }
        by_name = Some(values.named(&name)?);
    }
    let mut spec = Spec::default();
    let is_plain = chars.peek() == Some(&'%');
    while let Some(flag) = chars.next_if(|c| matches!(c, '#' | '0' | '-' | ' ' | '+')) {
        match flag {
            '#' => spec.alternate = true,
            '0' => spec.zero = true,
            '-' => spec.align = Some('<'),
            ' ' if spec.sign.is_some() => {}
            sign => spec.sign = Some(sign),
        }
    }
    let width = size(chars, values)?;
    if width < 0 {
        spec.align = Some('<');
    }
    spec.width = check_width(width.unsigned_abs() as usize)?;
    if chars.next_if_eq(&'.').is_some() {
        spec.precision = Some(check_width(size(chars, values)?.max(0) as usize)?);
    }
    chars.next_if(|c| matches!(c, 'h' | 'l' | 'L'));
    let kind = chars.next().ok_or_else(incomplete)?;
    if kind == '%' && is_plain {
        return Ok("%".to_string());
    }
    let value = by_name.map_or_else(|| values.next(), Ok)?;
    if spec.align.is_some() {
        spec.zero = false;
    }
    convert(kind, &value, spec, (escapes, &mut values.formatted))
}

/// A width or a precision; `*` takes it from the values.
fn size(chars: &mut Peekable<Chars<'_>>, values: &mut Values<'_>) -> Result<i64, Error> {
    if chars.next_if_eq(&'*').is_some() {
        return match values.next()? {
            value if number::integer(&value).is_some() => as_int(&value),
            _ => Err(refused("* wants int")),
        };
    }
    let mut size = 0;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        size = check_width(size * 10 + digit as usize)?;
    }
    Ok(size as i64)
}

fn convert(
    kind: char,
    value: &Value,
    mut spec: Spec,
    (escapes, formatted): (bool, &mut Formatted),
) -> Result<String, Error> {
    let wrong = |wanted: &str| {
        let found = type_name(value);
        refused(format!("%{kind} format: {wanted} is required, not {found}"))
    };
    // Texts are right of their space.
    let text = |Spec { align, width, precision, .. }: Spec, text: &str| {
        let align = align.or(Some('>'));
        Spec { align, width, precision, ..Spec::default() }.format(&Value::from(text))
    };
    match kind {
        's' | 'r' | 'a' => {
            let mut made = converted(value, kind)?;
            formatted.count(&made)?;
            if escapes && !(kind == 's' && value.is_safe()) {
                made = html::escape(&made);
            }
            text(spec, &made)
        }
        'c' => {
            let c = match value.as_str() {
                Some(one) => one.chars().next().filter(|c| c.len_utf8() == one.len()),
                None => number::integer(value)
                    .and_then(|int| u32::try_from(&int).ok())
                    .and_then(char::from_u32),
            };
            spec.precision = None;
            text(spec, &c.ok_or_else(|| wrong("an int or a char"))?.to_string())
        }
        'd' | 'i' | 'u' | 'o' | 'x' | 'X' => {
            let int = match Number::of(value) {
                Some(Number::Int(int)) => Some(int),
                Some(Number::Float(float)) if matches!(kind, 'd' | 'i' | 'u') => {
                    let whole = number::truncated(float);
                    Some(whole.ok_or_else(|| refused("cannot convert float to integer"))?)
                }
                _ => None,
            };
            let int = int.ok_or_else(|| wrong("a number"))?;
            spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
            spec.percent_int(&int)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let float = Number::of(value).ok_or_else(|| wrong("a real number"))?.float()?;
            spec.kind = Some(kind);
            spec.format(&Value::from(float))
        }
        other => Err(refused(format!("unsupported format character '{other}'"))),
    }
}
