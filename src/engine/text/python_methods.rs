//! Python's methods of str, list and dict where minijinja-contrib's differ or are missing.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::dialect::SLICE_METHOD;
use super::filters;
use super::python::is_space;

/// What templates call on values that minijinja gives no methods.
pub(super) fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let ours = match value.kind() {
        _ if method == SLICE_METHOD => slice(value, args).map(Some),
        ValueKind::String => string_method(value.as_str().unwrap_or_default(), method, args),
        ValueKind::Seq => sequence_method(value, method, args),
        ValueKind::Map if method == "copy" => from_args::<()>(args).map(|()| Some(value.clone())),
        _ => Ok(None),
    };
    match ours? {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn string_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            strip(text, chars, method != "rstrip", method != "lstrip").into()
        }
        "split" | "rsplit" => {
            let (separator, count, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?);
            let count = count.or(kwargs.get("maxsplit")?).unwrap_or(-1);
            kwargs.assert_all_used()?;
            if separator == Some("") {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let parts = split(text, separator, usize::try_from(count).ok(), method == "rsplit");
            Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let last = method == "rpartition";
            let at = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match at {
                Some((before, after)) => [before, separator, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            Value::from(split_lines(text, keep).into_iter().map(Value::from).collect::<Vec<_>>())
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            filters::joined(items, text, None)?.into()
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let at = if method == "index" { text.find(what) } else { text.rfind(what) };
            let at = at.ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("substring {what:?} not found"))
            })?;
            text[..at].chars().count().into()
        }
        "zfill" | "ljust" | "rjust" | "center" => pad(text, method, args)?,
        _ => return case_method(text, method, args),
    };
    Ok(Some(value))
}

/// The methods about letters, which take no arguments.
fn case_method(text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let value = match method {
        "title" => title(text).into(),
        "capitalize" => capitalize(text).into(),
        "casefold" => text.to_lowercase().into(),
        "swapcase" => text
            .chars()
            .flat_map(|c| -> Vec<char> {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            })
            .collect::<String>()
            .into(),
        "istitle" => (title(text) == text && text.chars().any(char::is_alphabetic)).into(),
        "isspace" => (!text.is_empty() && text.chars().all(is_space)).into(),
        _ => return Ok(None),
    };
    let () = from_args(args)?;
    Ok(Some(value))
}

fn sequence_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match method {
        "index" => {
            let (what,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == *what);
            at.map(|at| Some(Value::from(at))).ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, format!("{what:?} is not in list"))
            })
        }
        "copy" => from_args::<()>(args).map(|()| Some(value.clone())),
        // As transformers' ImmutableSandboxedEnvironment: a template may not change its input.
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "sort" | "reverse" => {
            Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("access to attribute '{method}' of 'list' object is unsafe"),
            ))
        }
        _ => Ok(None),
    }
}

/// `value[start:stop:step]` of Python.
fn slice(value: &Value, args: &[Value]) -> Result<Value, Error> {
    let bound = |index: usize| match args.get(index).filter(|bound| !bound.is_none()) {
        Some(bound) => i64::try_from(bound.clone()).map(Some),
        None => Ok(None),
    };
    let (start, stop, step) = (bound(0)?, bound(1)?, bound(2)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    if let Some(text) = value.as_str() {
        let chars: Vec<char> = text.chars().collect();
        return Ok(slice_indices(chars.len(), start, stop, step)
            .map(|i| chars[i])
            .collect::<String>()
            .into());
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let message = format!("{} is not sliceable", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let sliced = slice_indices(items.len(), start, stop, step).map(|i| items[i].clone());
    let sliced: Vec<Value> = sliced.collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(sliced)) } else { Value::from(sliced) })
}

/// Python's `range(*slice(start, stop, step).indices(len))`.
fn slice_indices(
    len: usize,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
) -> impl Iterator<Item = usize> {
    let len = len as i64;
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |bound: i64| {
        let bound = if bound < 0 { bound.saturating_add(len) } else { bound };
        bound.clamp(lowest, highest)
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let next = move |at: &i64| at.checked_add(step);
    std::iter::successors(Some(start), next)
        .take_while(move |&at| if step > 0 { at < stop } else { at > stop })
        .map(|at| at as usize)
}

/// `str.strip` of the given characters, or of white space.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
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
fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
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

pub(super) fn pad(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<char>) = from_args(args)?;
    if width > MAX_WIDTH {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("{method}: width too large")));
    }
    let missing = width.saturating_sub(text.chars().count());
    let fill = |count: usize| fill.unwrap_or(' ').to_string().repeat(count);
    Ok(Value::from(match method {
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
    }))
}

/// `str.title`: a letter after a non-letter is in title case, others lower case.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            title_case(c, &mut out);
        }
        in_word = c.is_alphabetic() && (c.is_lowercase() || c.is_uppercase() || is_title_case(c));
    }
    out
}

/// `str.capitalize`: the first character in title case, the rest lower case.
fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        title_case(first, &mut out);
    }
    out.push_str(&chars.as_str().to_lowercase());
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
    fn slices_are_pythons() {
        let slice = |len, start, stop, step| -> Vec<usize> {
            slice_indices(len, start, stop, step).collect()
        };
        assert_eq!(slice(0, None, None, -1), [0; 0]);
        assert_eq!(slice(3, None, None, -1), [2, 1, 0]);
        assert_eq!(slice(4, Some(2), Some(0), -1), [2, 1]);
        assert_eq!(slice(4, Some(-9), Some(9), 2), [0, 2]);
        assert_eq!(slice(4, Some(9), Some(-9), -3), [3, 0]);
        assert_eq!(slice(4, Some(-1), None, 1), [3]);
        assert_eq!(slice(4, Some(3), Some(1), i64::MAX), [0; 0]);
        assert_eq!(slice(4, Some(1), Some(3), i64::MAX), [1]);
    }

    #[test]
    fn strips_and_titles_are_pythons() {
        assert_eq!(strip("\u{1c} x\u{a0}\n", None, true, true), "x");
        assert_eq!(strip("xxaxx", Some("x"), false, true), "xxa");
        assert_eq!(title("they're 3rd-rate"), "They'Re 3Rd-Rate");
    }
}
