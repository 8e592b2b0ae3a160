//! markupsafe: HTML in texts that are marked as safe.

use minijinja::{Error, Value};

use super::arguments::{soft, unsupported};

/// `markupsafe.escape` of a text.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `markupsafe.escape` of a value: what is safe stays.
pub(crate) fn escaped(value: &Value) -> Result<String, Error> {
    let text = soft(value)?;
    Ok(if value.is_safe() { text } else { escape(&text) })
}

/// A text that is as safe as another value is.
pub(crate) fn as_safe_as(value: &Value, text: String) -> Value {
    if value.is_safe() { Value::from_safe_string(text) } else { Value::from(text) }
}

/// Entities as characters.
///
/// # Errors
/// An entity is not one that this program knows.
pub(crate) fn unescape(text: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let name = rest[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '#');
        let name = &rest[1..name.map_or(rest.len(), |end| end + 1)];
        if name.is_empty() || name == "#" {
            out.push('&');
            rest = &rest[1..];
            continue;
        }
        let code = match name.strip_prefix('#') {
            Some(hex) if hex.starts_with(['x', 'X']) => u32::from_str_radix(&hex[1..], 16).ok(),
            Some(digits) => digits.parse().ok(),
            None => match name {
                "amp" => Some(u32::from('&')),
                "lt" => Some(u32::from('<')),
                "gt" => Some(u32::from('>')),
                "quot" => Some(u32::from('"')),
                "apos" => Some(u32::from('\'')),
                "nbsp" => Some(0xa0),
                _ => None,
            },
        };
        let c = code.and_then(char::from_u32).filter(|c| !c.is_control());
        let ends = rest[1 + name.len()..].starts_with(';');
        let c = c.filter(|_| ends).ok_or_else(|| unsupported(&format!("the entity &{name}")))?;
        out.push(c);
        rest = &rest[name.len() + 2..];
    }
    out.push_str(rest);
    Ok(out)
}
