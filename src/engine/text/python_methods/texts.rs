//! Python's methods of str.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use crate::filters::lists::items;
use crate::is_space;
use crate::python::arguments::{
    as_int, bind, flag, given, int, refused, soft, text as strict, unsupported,
};
use crate::python::classes::{self, casefold};
use crate::python::{Pieces, format, html, is_tuple};

/// Methods of texts that give texts which are as safe as theirs.
const KEEP_SAFE: [&str; 21] = [
    "capitalize",
    "casefold",
    "center",
    "expandtabs",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "strip",
    "swapcase",
    "title",
];

pub(super) fn method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let text = value.as_str().unwrap_or_default();
    let found = match method {
        "format" => return format::format(value, args).map(Some),
        "format_map" => {
            let [map] = bind(method, args, 1, [""])?;
            return format::format_map(value, &map.unwrap_or_default()).map(Some);
        }
        "encode" | "translate" | "maketrans" => {
            return Err(unsupported(&format!("the method `{method}` of texts")));
        }
        _ if !value.is_safe() => return plain_method(text, method, args),
        // What is put into a safe text is escaped.
        "replace" | "join" | "ljust" | "rjust" | "center" => {
            let args = args.iter().map(|arg| match (method, arg.as_str()) {
                ("join", _) => {
                    let escaped = |item| Ok::<Value, Error>(html::escaped(item)?.into());
                    items(arg)?.iter().map(escaped).collect::<Result<Value, Error>>()
                }
                (_, Some(_)) => Ok(Value::from(html::escaped(arg)?)),
                _ => Ok(arg.clone()),
            });
            plain_method(text, method, &args.collect::<Result<Vec<Value>, Error>>()?)?
        }
        _ => plain_method(text, method, args)?,
    };
    let safe = |value: Value| match value.as_str() {
        Some(text) => Value::from_safe_string(text.to_string()),
        None => value,
    };
    Ok(found.map(|found| match found.kind() {
        _ if !KEEP_SAFE.contains(&method) && !matches!(method, "upper" | "zfill") => found,
        ValueKind::Seq => {
            let items = found.try_iter().into_iter().flatten().map(safe);
            let items: Vec<Value> = items.collect();
            if is_tuple(&found) { Value::from(Tuple::from(items)) } else { Value::from(items) }
        }
        _ => safe(found),
    }))
}

fn plain_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bind(method, args, 0, [""])?;
            let chars = given(&chars).map(strict).transpose()?;
            strip(text, chars, method != "rstrip", method != "lstrip").into()
        }
        "split" | "rsplit" => {
            let [separator, count] = bind(method, args, 0, ["sep", "maxsplit"])?;
            let separator = given(&separator).map(strict).transpose()?;
            if separator == Some("") {
                return Err(refused("empty separator"));
            }
            let count = usize::try_from(int(&count, -1)?).ok();
            let parts = split(text, separator, count, method == "rsplit");
            parts.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let [separator] = bind(method, args, 1, [""])?;
            let separator = separator.unwrap_or_default();
            let separator = strict(&separator)?;
            if separator.is_empty() {
                return Err(refused("empty separator"));
            }
            let last = method == "rpartition";
            let at = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match at {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" | "removesuffix" => {
            let [part] = bind(method, args, 1, [""])?;
            let part = part.unwrap_or_default();
            let part = strict(&part)?;
            let is_prefix = method == "removeprefix";
            let left = if is_prefix { text.strip_prefix(part) } else { text.strip_suffix(part) };
            left.unwrap_or(text).into()
        }
        "splitlines" => {
            let [keep] = bind(method, args, 0, ["keepends"])?;
            split_lines(text, flag(&keep, false)).into_iter().map(Value::from).collect()
        }
        "join" => {
            let [list] = bind(method, args, 1, [""])?;
            let mut out = Pieces::default();
            for (index, item) in items(&list.unwrap_or_default())?.iter().enumerate() {
                out.write(if index > 0 { text } else { "" })?;
                out.write(strict(item)?)?;
            }
            out.text().into()
        }
        "replace" => {
            let [old, new, count] = bind(method, args, 2, [""; 3])?;
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            replaced(text, strict(&old)?, strict(&new)?, int(&count, -1)?)?.into()
        }
        "expandtabs" => {
            let [size] = bind(method, args, 0, ["tabsize"])?;
            expand_tabs(text, int(&size, 8)?)?.into()
        }
        "zfill" | "ljust" | "rjust" | "center" => pad(text, method, args)?.into(),
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => {
            return search(text, method, args).map(Some);
        }
        _ => return case_method(text, method, args),
    };
    Ok(Some(value))
}

/// The methods that look for a text between two places.
fn search(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [what, start, end] = bind(method, args, 1, [""; 3])?;
    let what = what.unwrap_or_default();
    let len = if start.is_some() || end.is_some() { text.chars().count() as i64 } else { i64::MAX };
    let place = |place: &Option<Value>, default: i64| {
        let at = given(place).map_or(Ok(default), as_int)?;
        let at = if at < 0 { (at + len).max(0) } else { at };
        Ok::<_, Error>(usize::try_from(at).unwrap_or(usize::MAX))
    };
    let (first, last) = (place(&start, 0)?, place(&end, len)?.min(len as usize));
    let offset = |place: usize| {
        if place == 0 { 0 } else { text.char_indices().nth(place).map_or(text.len(), |(at, _)| at) }
    };
    let is_outside = first > last;
    let part = match is_outside {
        true => "",
        false if last == i64::MAX as usize => text,
        false => &text[offset(first)..offset(last)],
    };
    if matches!(method, "startswith" | "endswith") {
        let whats = if is_tuple(&what) { items(&what)? } else { vec![what] };
        for what in whats {
            let what = strict(&what)?;
            let found = method == "startswith" && part.starts_with(what)
                || method == "endswith" && part.ends_with(what);
            if found && !is_outside {
                return Ok(true.into());
            }
        }
        return Ok(false.into());
    }
    let what = strict(&what)?;
    if method == "count" {
        return Ok(match (is_outside, what.is_empty()) {
            (true, _) => 0,
            (_, true) => part.chars().count() + 1,
            _ => part.matches(what).count(),
        }
        .into());
    }
    let at = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
    match at.filter(|_| !is_outside) {
        Some(at) => Ok((first + part[..at].chars().count()).into()),
        None if method.ends_with("find") => Ok((-1).into()),
        None => Err(refused("substring not found")),
    }
}

/// The methods about letters, which take no arguments.
fn case_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let all = |class: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(class));
    let is_cased = |c: char| c.is_lowercase() || c.is_uppercase() || is_title_case(c);
    let has_cased = text.chars().any(is_cased);
    let value = match method {
        "upper" => text.to_uppercase().into(),
        "lower" => text.to_lowercase().into(),
        "title" => title(text).into(),
        "capitalize" => capitalize(text).into(),
        "casefold" => casefold(text).into(),
        "swapcase" => swap_case(text).into(),
        "istitle" => (has_cased && is_title(text)).into(),
        "isupper" => {
            let is_other = |c: char| c.is_lowercase() || is_title_case(c);
            (has_cased && !text.contains(is_other)).into()
        }
        "islower" => {
            let is_other = |c: char| c.is_uppercase() || is_title_case(c);
            (has_cased && !text.contains(is_other)).into()
        }
        "isspace" => all(is_space),
        "isalpha" => all(classes::is_alpha),
        "isalnum" => all(classes::is_alnum),
        "isdigit" => all(classes::is_digit),
        "isdecimal" => all(classes::is_decimal),
        "isnumeric" => all(classes::is_numeric),
        "isascii" => text.is_ascii().into(),
        "isprintable" => text.chars().all(classes::is_printable).into(),
        "isidentifier" => {
            let is_start = |c: char| c == '_' || classes::is_alpha(c);
            let goes_on = |c: char| c == '_' || classes::is_alnum(c);
            if !text.is_ascii() {
                return Err(unsupported("`isidentifier` of a text that is not ASCII"));
            }
            (text.starts_with(is_start) && text.chars().all(goes_on)).into()
        }
        _ => return Ok(None),
    };
    let [] = bind(method, args, 0, [])?;
    Ok(Some(value))
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match c.is_uppercase() {
            true => lower(text, at, c, &mut out),
            false if c.is_lowercase() => out.extend(c.to_uppercase()),
            false => out.push(c),
        }
    }
    out
}

/// The small letter of a character; a sigma that ends a word has its own.
fn lower(text: &str, at: usize, c: char, out: &mut String) {
    let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
    let (before, after) = (text[..at].chars().next_back(), text[at..].chars().nth(1));
    match c == '\u{3a3}' && is_letter(before) && !is_letter(after) {
        true => out.push('\u{3c2}'),
        false => out.extend(c.to_lowercase()),
    }
}

/// Whether capitals follow what has no case, and only that.
fn is_title(text: &str) -> bool {
    let mut in_word = false;
    for c in text.chars() {
        if c.is_uppercase() || is_title_case(c) {
            if in_word {
                return false;
            }
            in_word = true;
        } else if c.is_lowercase() {
            if !in_word {
                return false;
            }
        } else {
            in_word = false;
        }
    }
    true
}

/// `str.replace`; a negative count is no limit.
pub(crate) fn replaced(text: &str, old: &str, new: &str, count: i64) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut out = Pieces::default();
    let mut last = 0;
    for (at, found) in text.match_indices(old).take(count) {
        out.write(&text[last..at])?;
        out.write(new)?;
        last = at + found.len();
    }
    out.write(&text[last..])?;
    Ok(out.text())
}

fn expand_tabs(text: &str, size: i64) -> Result<String, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    if size > MAX_WIDTH {
        return Err(refused("expandtabs: size too large"));
    }
    let mut out = Pieces::default();
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size == 0 => {}
            '\t' => {
                let missing = size - column % size;
                out.write(&" ".repeat(missing))?;
                column += missing;
            }
            c => {
                out.write_char(c)?;
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(out.text())
}

/// `str.strip` of the given characters, or of white space.
pub(crate) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(strips) } else { text };
    if right { text.trim_end_matches(strips) } else { text }
}

fn split<'a>(
    text: &'a str,
    separator: Option<&str>,
    count: Option<usize>,
    from_right: bool,
) -> Vec<&'a str> {
    let pieces = count.map_or(usize::MAX, |count| count.saturating_add(1));
    match (separator, from_right) {
        (Some(separator), false) => text.splitn(pieces, separator).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<_> = text.rsplitn(pieces, separator).collect();
            parts.reverse();
            parts
        }
        (None, false) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = rest.find(is_space).filter(|_| parts.len() + 1 < pieces);
                // The last piece keeps its trailing white space only when the count ran out.
                parts.push(&rest[..end.unwrap_or(rest.len())]);
                rest = end.map_or("", |end| rest[end..].trim_start_matches(is_space));
            }
            parts
        }
        (None, true) => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let end = rest.char_indices().rfind(|(_, c)| is_space(*c));
                match end.filter(|_| parts.len() + 1 < pieces) {
                    Some((at, c)) => {
                        parts.push(&rest[at + c.len_utf8()..]);
                        rest = rest[..at].trim_end_matches(is_space);
                    }
                    None => {
                        parts.push(rest);
                        rest = "";
                    }
                }
            }
            parts.reverse();
            parts
        }
    }
}

/// Python's line boundaries, `\r\n` counting once.
pub(crate) fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[start..if keep_ends { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Widest padding: a template that asks for more is broken or hostile.
const MAX_WIDTH: usize = 1 << 16;

/// `str.zfill`, `ljust`, `rjust` and `center`.
pub(crate) fn pad(text: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let [width, fill] = bind(method, args, 1, [""; 2])?;
    let width = usize::try_from(int(&width, 0)?).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(refused(format!("{method}: width too large")));
    }
    let fill = fill.map_or_else(|| Ok(" ".to_string()), |fill| soft(&fill))?;
    if fill.chars().count() != 1 || method == "zfill" && args.len() > 1 {
        return Err(refused("the fill character must be exactly one character long"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = |count: usize| fill.repeat(count);
    Ok(match method {
        "ljust" => format!("{text}{}", fill(missing)),
        "rjust" => format!("{}{text}", fill(missing)),
        "center" => {
            // CPython puts the odd one left when the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill(left), fill(missing - left))
        }
        _ => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
    })
}

/// `str.title`: a letter after a non-letter is in title case, others lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for (at, c) in text.char_indices() {
        if in_word {
            lower(text, at, c, &mut out);
        } else {
            title_case(c, &mut out);
        }
        in_word = c.is_alphabetic() && (c.is_lowercase() || c.is_uppercase() || is_title_case(c));
    }
    out
}

/// `str.capitalize`: the first character in title case, the rest lower case.
pub(crate) fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        match at {
            0 => title_case(c, &mut out),
            _ => lower(text, at, c, &mut out),
        }
    }
    out
}

/// The digraphs that have a title case of their own: Dž, Lj, Nj, Dz.
fn is_title_case(c: char) -> bool {
    matches!(c, '\u{1c5}' | '\u{1c8}' | '\u{1cb}' | '\u{1f2}')
}

/// Upper case, but "SS" for ß is "Ss".
fn title_case(c: char, out: &mut String) {
    match c {
        '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
        _ => {
            let mut upper = c.to_uppercase();
            let first = upper.next().unwrap_or(c);
            out.push(first);
            for rest in upper {
                if first.is_uppercase() {
                    out.extend(rest.to_lowercase());
                } else {
                    out.push(rest);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected values are Python's.
    #[test]
    fn splits_are_pythons() {
        assert_eq!(split(" a  b c ", None, None, false), ["a", "b", "c"]);
        assert_eq!(split(" a  b c ", None, Some(1), false), ["a", "b c "]);
        assert_eq!(split(" a  b c ", None, Some(1), true), [" a  b", "c"]);
        assert_eq!(split("", None, None, false), [""; 0]);
        assert_eq!(split("a,b,,c", Some(","), None, false), ["a", "b", "", "c"]);
        assert_eq!(split("a,b,,c", Some(","), Some(1), true), ["a,b,", "c"]);
        assert_eq!(split_lines("a\r\nb\rc\n\nd", false), ["a", "b", "c", "", "d"]);
        assert_eq!(split_lines("a\r\nb\n", true), ["a\r\n", "b\n"]);
    }

    #[test]
    fn strips_and_titles_are_pythons() {
        assert_eq!(strip("\u{1c} x\u{a0}\n", None, true, true), "x");
        assert_eq!(strip("xxaxx", Some("x"), false, true), "xxa");
        assert_eq!(title("they're 3rd-rate"), "They'Re 3Rd-Rate");
    }
}
