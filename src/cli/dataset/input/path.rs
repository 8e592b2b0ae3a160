//! Values inside a field, by a path: `a.b[0].c`. A field whose name is the whole text comes first.

use std::fmt;

use serde_json::value::RawValue;

use super::fields::JsonFields;

/// Why a path leads to no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No field has the name, nor one that the path could begin with.
    Field,
    /// The field is there, and has no such part.
    Part(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Field => f.write_str("there is no such field"),
            Missing::Part(text) => f.write_str(text),
        }
    }
}

/// The JSON text of the value that a name or a path leads to.
///
/// # Errors
/// It leads to none.
pub fn find<'a>(fields: &'a JsonFields, name: &str) -> Result<&'a str, Missing> {
    find_by(name, |name| fields.get(name))
}

/// The same, of fields that are looked up by a function.
///
/// # Errors
/// As `find`.
pub fn find_by<'a>(
    name: &str,
    field: impl Fn(&str) -> Option<&'a str>,
) -> Result<&'a str, Missing> {
    if let Some(value) = field(name) {
        return Ok(value);
    }
    let found = beginnings(name).find_map(|end| Some((field(&name[..end])?, end)));
    let (mut value, mut end) = found.ok_or(Missing::Field)?;
    while end < name.len() {
        let (seen, rest) = name.split_at(end);
        let (next, length) = step(value, seen, rest).map_err(Missing::Part)?;
        (value, end) = (next, end + length);
    }
    Ok(value)
}

/// The object that the value of a path is a field of, as JSON text. None: it is a field of the row
/// itself, or an item of a list.
pub fn object_around<'a>(fields: &'a JsonFields, path: &str) -> Option<&'a str> {
    let (around, _) = path.rsplit_once('.').filter(|_| fields.get(path).is_none())?;
    find(fields, around).ok().filter(|json| json.starts_with('{'))
}

/// The name of the field that a path begins with.
pub fn root(name: &str) -> &str {
    &name[..beginnings(name).last().unwrap_or(name.len())]
}

/// Where a path may be divided, the longest beginning first: names of fields may have dots.
fn beginnings(name: &str) -> impl Iterator<Item = usize> {
    name.char_indices().rev().filter(|(at, c)| *at > 0 && matches!(c, '.' | '[')).map(|(at, _)| at)
}

/// The part of a value that the rest of a path begins with, and the length of that beginning.
fn step<'a>(value: &'a str, seen: &str, rest: &str) -> Result<(&'a str, usize), String> {
    match rest.as_bytes()[0] {
        b'[' => item(value, seen, rest),
        b'.' => member(value, seen, rest),
        _ => Err(format!("`{seen}` is followed by `{rest}`; write a dot before a name")),
    }
}

fn item<'a>(value: &'a str, seen: &str, rest: &str) -> Result<(&'a str, usize), String> {
    let end = rest.find(']').ok_or_else(|| format!("`{rest}` has no closing `]`"))?;
    let place: i64 = rest[1..end].parse().map_err(|_| {
        format!("`{}` is no place in a list: write [0], or [-1] for the last", &rest[..=end])
    })?;
    if !value.starts_with('[') {
        return Err(format!("`{seen}` is {}, which has no items", kind(value)));
    }
    let items: Vec<&RawValue> = serde_json::from_str(value).map_err(|error| error.to_string())?;
    let index = match place < 0 {
        true => items.len().checked_sub(place.unsigned_abs() as usize),
        false => usize::try_from(place).ok(),
    };
    let item = index.and_then(|index| items.get(index)).ok_or_else(|| {
        let (number, plural) = (items.len(), if items.len() == 1 { "" } else { "s" });
        format!("`{seen}` has {number} item{plural}, and no [{place}]")
    })?;
    Ok((item.get(), end + 1))
}

fn member<'a>(value: &'a str, seen: &str, rest: &str) -> Result<(&'a str, usize), String> {
    if !value.starts_with('{') {
        let what = match value.starts_with('[') {
            true => format!("a list; name an item of it, as in `{seen}[0]`"),
            false => format!("{}, which has no fields", kind(value)),
        };
        return Err(format!("`{seen}` is {what}"));
    }
    let names = &rest[1..];
    let ends = std::iter::once(names.len()).chain(beginnings(names));
    let found = ends.filter(|end| *end > 0).find_map(|end| {
        let value = JsonFields::member(value, &names[..end])?;
        Some((value, end + 1))
    });
    found.ok_or_else(|| format!("`{seen}` has no field `{}`", root(names)))
}

/// The kind of a value, in words.
fn kind(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'"') => "text",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b'n') => "null",
        Some(b't' | b'f') => "true or false",
        _ => "a number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: &str = r#"{"a":{"b":[{"c":"x"},{"c":2}],"d.e":3,"\u00e4":4,"b":[{"c":1},{"c":2}]},
        "a.f":{"g":5},"text":"t","none":null,"l":[[7,8]],"h":{"":6}}"#;

    fn found(name: &str) -> Result<String, String> {
        let fields = JsonFields::parse(ROW.to_owned(), 1).unwrap();
        find(&fields, name).map(str::to_owned).map_err(|missing| missing.to_string())
    }

    #[test]
    fn paths_lead_into_objects_and_lists() {
        for (path, value) in [
            ("text", "\"t\""),
            ("a.b[1].c", "2"),
            // Of a name that is twice there the last counts, as of fields.
            ("a.b[0].c", "1"),
            ("a.b[-1].c", "2"),
            ("a.d.e", "3"),
            ("a.ä", "4"),
            ("a.f", r#"{"g":5}"#),
            ("a.f.g", "5"),
            ("l[0][1]", "8"),
            ("none", "null"),
        ] {
            assert_eq!(found(path).as_deref(), Ok(value), "{path}");
        }
    }

    #[test]
    fn the_part_that_is_missing_is_named() {
        for (path, text) in [
            ("b", "there is no such field"),
            ("b.c[0]", "there is no such field"),
            ("a.x.y", "`a` has no field `x`"),
            ("a.b.c", "`a.b` is a list; name an item of it, as in `a.b[0]`"),
            ("a.b[2].c", "`a.b` has 2 items, and no [2]"),
            ("a.b[-3]", "`a.b` has 2 items, and no [-3]"),
            ("l[0][2]", "`l[0]` has 2 items, and no [2]"),
            ("text.x", "`text` is text, which has no fields"),
            ("text[0]", "`text` is text, which has no items"),
            ("none.x", "`none` is null, which has no fields"),
            ("a[0]", "`a` is an object, which has no items"),
            ("a.b[x]", "`[x]` is no place in a list: write [0], or [-1] for the last"),
            ("a.b[0", "`[0` has no closing `]`"),
            ("a.b[0]c", "`a.b[0]` is followed by `c`; write a dot before a name"),
        ] {
            assert_eq!(found(path), Err(text.to_owned()), "{path}");
        }
    }
}
