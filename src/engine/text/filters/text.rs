//! jinja2's filters of texts.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, State, Value};

use super::escapes;
use crate::is_space;
use crate::python::arguments::{
    as_int, bind, flag, given, int, refused, soft, split, text as strict, unsupported,
};
use crate::python::html::{as_safe_as, escape, escaped};
use crate::python::{Pieces, classes, html, percent, repr_of, type_name};
use crate::python_methods;

/// The one argument of a filter.
fn only(name: &str, args: &[Value]) -> Result<Value, Error> {
    let [value] = bind(name, args, 1, [""])?;
    Ok(value.unwrap_or_default())
}

pub(super) fn upper(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = only("upper", args)?;
    Ok(as_safe_as(&value, soft(&value)?.to_uppercase()))
}

pub(super) fn lower(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = only("lower", args)?;
    Ok(as_safe_as(&value, soft(&value)?.to_lowercase()))
}

pub(super) fn capitalize(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = only("capitalize", args)?;
    Ok(as_safe_as(&value, python_methods::capitalize(&soft(&value)?)))
}

/// Words begin after white space, hyphens and opening brackets.
pub(super) fn title(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let text = soft(&only("title", args)?)?;
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let begins = |c: char| is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
        let start = rest.find(|c| !begins(c)).unwrap_or(rest.len());
        let (before, word) = rest.split_at(start);
        out.push_str(before);
        let end = word.find(begins).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        if let Some(first) = word.chars().next() {
            out.extend(first.to_uppercase());
            out.push_str(&word[first.len_utf8()..].to_lowercase());
        }
        rest = after;
    }
    Ok(Value::from(out))
}

pub(super) fn string(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = only("string", args)?;
    Ok(as_safe_as(&value, soft(&value)?))
}

pub(super) fn safe(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from_safe_string(soft(&only("safe", args)?)?))
}

pub(super) fn escape_of(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escaped(&only("escape", args)?)?))
}

pub(super) fn forceescape(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    Ok(Value::from_safe_string(escape(&soft(&only("forceescape", args)?)?)))
}

/// `trim(value, chars=None)`.
pub(super) fn trim(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, chars] = bind("trim", args, 1, ["", "chars"])?;
    let value = value.unwrap_or_default();
    let text = soft(&value)?;
    let chars = given(&chars).map(strict).transpose()?;
    Ok(as_safe_as(&value, python_methods::strip(&text, chars, true, true).to_string()))
}

/// `center(value, width=80)`.
pub(super) fn center(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width] = bind("center", args, 1, ["", "width"])?;
    let value = value.unwrap_or_default();
    let width = Value::from(int(&width, 80)?);
    Ok(as_safe_as(&value, python_methods::pad(&soft(&value)?, "center", &[width])?))
}

/// `replace(s, old, new, count=None)`.
pub(super) fn replace(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, old, new, count] = bind("replace", args, 3, ["", "old", "new", "count"])?;
    let [value, old, new] = [value, old, new].map(Option::unwrap_or_default);
    let count = given(&count).map(as_int).transpose()?;
    if !escapes(state) {
        let (text, old, new) = (soft(&value)?, soft(&old)?, soft(&new)?);
        return Ok(Value::from(python_methods::replaced(&text, &old, &new, count.unwrap_or(-1))?));
    }
    let is_safe = value.is_safe() || old.is_safe() || new.is_safe();
    let text = if is_safe && !value.is_safe() { escaped(&value)? } else { soft(&value)? };
    let new = if is_safe { escaped(&new)? } else { soft(&new)? };
    let old = if is_safe { escaped(&old)? } else { soft(&old)? };
    let text = python_methods::replaced(&text, &old, &new, count.unwrap_or(-1))?;
    Ok(if is_safe { Value::from_safe_string(text) } else { Value::from(text) })
}

/// `indent(s, width=4, first=False, blank=False)`.
pub(super) fn indent(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind("indent", args, 1, ["", "width", "first", "blank"])?;
    let value = value.unwrap_or_default();
    let (first, blank) = (flag(&first, false), flag(&blank, false));
    let indention = match width.as_ref().and_then(|width| width.as_str()) {
        Some(text) => text.to_string(),
        None => " ".repeat(usize::try_from(int(&width, 4)?).unwrap_or(0)),
    };
    // Anything else cannot be added to a newline.
    let text = strict(&value)?.to_string() + "\n";
    let mut out = Pieces::default();
    for (index, line) in python_methods::split_lines(&text, false).iter().enumerate() {
        out.write(if index > 0 { "\n" } else { "" })?;
        out.write(if index > 0 && (blank || !line.is_empty()) { &indention } else { "" })?;
        out.write(line)?;
    }
    let text = if first { indention + &out.text() } else { out.text() };
    Ok(as_safe_as(&value, text))
}

/// `truncate(s, length=255, killwords=False, end="...", leeway=5)`.
pub(super) fn truncate(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let names = ["", "length", "killwords", "end", "leeway"];
    let [value, length, killwords, end, leeway] = bind("truncate", args, 1, names)?;
    let value = value.unwrap_or_default();
    let end = end.unwrap_or_else(|| Value::from("..."));
    let ending = soft(&end)?;
    let length = usize::try_from(int(&length, 255)?).unwrap_or(0);
    let leeway = usize::try_from(given(&leeway).map_or(Ok(5), as_int)?);
    if length < ending.chars().count() {
        return Err(refused(format!("expected length >= the end's, got {length}")));
    }
    let len = super::lists::length_of(&value)?;
    if len <= length.saturating_add(leeway.unwrap_or(0)) {
        return Ok(value);
    }
    let text = strict(&value)?;
    let kept: String = text.chars().take(length - ending.chars().count()).collect();
    let whole_words = kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words);
    let kept = if flag(&killwords, false) { kept.as_str() } else { whole_words };
    let ending = if value.is_safe() { escaped(&end)? } else { ending };
    Ok(as_safe_as(&value, format!("{kept}{ending}")))
}

pub(super) fn wordcount(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let text = soft(&only("wordcount", args)?)?;
    let words = text.split(|c: char| !classes::is_alnum(c) && c != '_');
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

/// `format(value, *args, **kwargs)`.
pub(super) fn format(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let (places, named) = split(&args[1..])?;
    if !places.is_empty() && !named.is_empty() {
        return Err(refused("can't handle positional and keyword arguments at the same time"));
    }
    let text = as_safe_as(&args[0], soft(&args[0])?);
    let values = match named.is_empty() {
        true => Value::from(Tuple::from(places.to_vec())),
        false => Value::from_pairs(named),
    };
    percent::format(&text, &values)
}

/// `pprint` of what fits on a line.
pub(super) fn pprint(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let text = repr_of(&sorted_maps(&only("pprint", args)?)?)?;
    match text.chars().count() > 80 {
        true => Err(unsupported("`pprint` of more than a line")),
        false => Ok(Value::from(text)),
    }
}

/// The same with all keys in their order.
fn sorted_maps(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let keys = value.try_iter()?.collect();
            let keys: Vec<Value> = super::lists::sorted(keys, super::lists::less)?;
            let pair = |key: Value| Ok((key.clone(), sorted_maps(&value.get_item(&key)?)?));
            let pairs = keys.into_iter().map(pair).collect::<Result<Vec<_>, Error>>()?;
            Ok(Value::from_pairs(pairs))
        }
        ValueKind::Seq if type_name(value) == "list" => {
            value.try_iter()?.map(|item| sorted_maps(&item)).collect()
        }
        _ => Ok(value.clone()),
    }
}

/// `xmlattr(d, autospace=True)`.
pub(super) fn xmlattr(state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let [value, autospace] = bind("xmlattr", args, 1, ["", "autospace"])?;
    let value = value.unwrap_or_default();
    if value.kind() != ValueKind::Map {
        return Err(refused(format!("'{}' object has no attributes to write", type_name(&value))));
    }
    let mut out = Pieces::default();
    for key in value.try_iter()? {
        let item = value.get_item(&key)?;
        if item.is_none() || item.is_undefined() {
            continue;
        }
        let name = strict(&key)?;
        if name.contains(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>' | '=')) {
            return Err(refused(format!("invalid character in attribute name: '{name}'")));
        }
        if flag(&autospace, true) || !out.is_empty() {
            out.write(" ")?;
        }
        out.write(&format!("{}=\"{}\"", escaped(&key)?, escaped(&item)?))?;
    }
    let text = out.text();
    Ok(if escapes(state) { Value::from_safe_string(text) } else { Value::from(text) })
}

/// Text without comments and tags, with single spaces, and without entities.
pub(super) fn striptags(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let mut text = soft(&only("striptags", args)?)?;
    let mut work = 0;
    for (open, close) in [("<!--", "-->"), ("<", ">")] {
        while let Some(start) = text.find(open) {
            let Some(end) = text[start..].find(close) else { break };
            text.replace_range(start..start + end + close.len(), "");
            work += text.len();
            if work > 64 << 20 {
                return Err(refused("the chat template strips too many tags"));
            }
        }
    }
    let words: Vec<_> = text.split(is_space).filter(|word| !word.is_empty()).collect();
    html::unescape(&words.join(" ")).map(Value::from)
}

/// Text as `urlencode` writes it.
fn url_quote(text: &str, in_query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(byte as char);
            }
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

pub(super) fn urlencode(_: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
    let value = only("urlencode", args)?;
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
    if value.as_str().is_some() || !is_list && !value.is_undefined() {
        return Ok(Value::from(url_quote(&soft(&value)?, false)));
    }
    let mut pairs = Vec::new();
    for item in super::lists::items(&value)? {
        let pair = match value.kind() {
            ValueKind::Map => vec![item.clone(), value.get_item(&item)?],
            _ => super::lists::items(&item)?,
        };
        let [key, value] = pair.as_slice() else {
            return Err(refused("urlencode takes pairs"));
        };
        pairs.push(format!("{}={}", url_quote(&soft(key)?, true), url_quote(&soft(value)?, true)));
    }
    Ok(Value::from(pairs.join("&")))
}
