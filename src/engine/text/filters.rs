//! Filters, tests and functions of jinja2 that minijinja lacks or reads otherwise.

use std::fmt::Write;
use std::sync::Arc;

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::chat_template::budget::{BoundedText, Budget};
use super::chat_template::counted;
use super::{python, python_methods};

/// Registers filters twice: under another name, and under their own what counts their arguments and
/// their results and calls them.
macro_rules! counted {
    ($environment:ident, $budget:ident: $($name:literal => $filter:expr),+) => {$(
        $environment.add_filter(concat!("__", $name), $filter);
        let counts = Arc::clone($budget);
        let counted = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            counted::filtered(&counts, state, $name, concat!("__", $name), args.into_values())
        };
        $environment.add_filter($name, counted);
    )+};
}

/// Gives an environment what transformers' sandbox has.
pub(super) fn add_to(environment: &mut Environment<'static>, budget: &Arc<Budget>) {
    counted!(environment, budget:
        "tojson" => python::tojson,
        "trim" => trim,
        "length" => length,
        "count" => length,
        "items" => items,
        "string" => |value: &Value| python::to_str(value),
        "join" => join,
        "sort" => sort,
        "truncate" => truncate,
        "wordcount" => word_count,
        "center" => center,
        "pprint" => |value: &Value| python::to_str(value),
        "upper" => builtin::upper,
        "lower" => builtin::lower,
        "title" => builtin::title,
        "capitalize" => builtin::capitalize,
        "escape" => builtin::escape,
        "e" => builtin::escape,
        "replace" => builtin::replace,
        "indent" => builtin::indent,
        "format" => builtin::format,
        "split" => builtin::split,
        "lines" => builtin::lines,
        "reverse" => builtin::reverse,
        "round" => builtin::round,
        "list" => builtin::list,
        "batch" => builtin::batch,
        "slice" => builtin::slice,
        "sum" => builtin::sum,
        "select" => builtin::select,
        "reject" => builtin::reject,
        "selectattr" => builtin::selectattr,
        "rejectattr" => builtin::rejectattr,
        "map" => builtin::map,
        "groupby" => builtin::groupby,
        "unique" => builtin::unique,
        "dictsort" => builtin::dictsort,
        "chain" => builtin::chain,
        "zip" => builtin::zip,
        "min" => builtin::min,
        "max" => builtin::max,
        "first" => builtin::first,
        "last" => builtin::last,
        "default" => default,
        "d" => default,
        "abs" => builtin::abs,
        "int" => builtin::int,
        "float" => builtin::float,
        "bool" => builtin::bool,
        "attr" => builtin::attr,
        "safe" => builtin::safe
    );
    let counts = Arc::clone(budget);
    environment.add_function("raise_exception", move |message: &Value| -> Result<Value, Error> {
        counts.charge_all(message)?;
        Err(Error::new(ErrorKind::InvalidOperation, python::to_str(message)?))
    });
    // jinja2 also counts strings and mappings as sequences, and None as nothing.
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("iterable", |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    });
    environment.add_test("callable", |value: &Value| {
        value.kind() == ValueKind::Plain && value.as_object().is_some()
    });
}

fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = value.as_str().map_or_else(|| python::to_str(value), |text| Ok(text.to_string()))?;
    Ok(python_methods::strip(&text, chars, true, true).to_string())
}

/// An undefined value has length 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let message = format!("object of type {} has no len()", value.kind());
        Error::new(ErrorKind::InvalidOperation, message)
    })
}

/// An undefined value has no items.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    minijinja::filters::items(value)
}

fn join(value: &Value, with: Option<&str>, kwargs: Kwargs) -> Result<String, Error> {
    let with = with.or(kwargs.get("d")?).unwrap_or_default();
    let attribute: Option<String> = kwargs.get("attribute")?;
    kwargs.assert_all_used()?;
    joined(value, with, attribute.as_deref())
}

/// The items of a list as one text.
pub(super) fn joined(value: &Value, with: &str, attribute: Option<&str>) -> Result<String, Error> {
    let mut out = BoundedText::default();
    let mut result = Ok(());
    for (index, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(attribute) => item.get_attr(attribute)?,
            None => item,
        };
        let with = if index > 0 { with } else { "" };
        result = match item.as_str() {
            Some(text) => write!(out, "{with}{text}"),
            None => write!(out, "{with}{}", python::to_str(&item)?),
        };
        if result.is_err() {
            break;
        }
    }
    out.written(result)
}

/// `default(value, boolean=false)`, with both names of jinja2.
fn default(
    value: &Value,
    other: Option<Value>,
    boolean: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(kwargs.get("default_value")?);
    let boolean = boolean.or(kwargs.get("boolean")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    match value.is_undefined() || (boolean && !value.is_true()) {
        true => Ok(other.unwrap_or_else(|| Value::from(""))),
        false => Ok(value.clone()),
    }
}

fn word_count(text: &str) -> usize {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty()).count()
}

fn center(text: &str, width: Option<usize>) -> Result<Value, Error> {
    python_methods::pad(text, "center", &[Value::from(width.unwrap_or(80))])
}

/// `sort(attribute=0)`: minijinja takes only names.
fn sort(state: &State, value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let mut named = Vec::new();
    for name in kwargs.args() {
        let value: Value = kwargs.get(name)?;
        let by_index = name == "attribute" && value.is_integer();
        let value = if by_index { Value::from(value.to_string()) } else { value };
        named.push((name.to_string(), value));
    }
    minijinja::filters::sort(state, value, Kwargs::from_iter(named))
}

fn truncate(text: &str, length: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let length = length.or(kwargs.get("length")?).unwrap_or(255);
    let kill_words = kwargs.get::<Option<bool>>("killwords")?.unwrap_or(false);
    let end = kwargs.get::<Option<String>>("end")?.unwrap_or_else(|| "...".to_string());
    let leeway = kwargs.get::<Option<usize>>("leeway")?.unwrap_or(5);
    kwargs.assert_all_used()?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_string());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let whole_words = kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words);
    Ok(format!("{}{end}", if kill_words { &kept } else { whole_words }))
}
