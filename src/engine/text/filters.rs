//! Filters, tests and functions of jinja2 that minijinja lacks or reads otherwise.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::{python, python_methods};

/// Gives an environment what transformers' sandbox has.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("trim", trim);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("items", items);
    environment.add_filter("string", |value: &Value| python::to_str(value));
    environment.add_filter("join", join);
    environment.add_filter("sort", sort);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |text: &str| {
        text.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .count()
    });
    environment.add_filter("center", |text: &str, width: Option<usize>| {
        python_methods::pad(text, "center", &[Value::from(width.unwrap_or(80))])
    });
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
    });
    // jinja2 also counts strings and mappings as sequences, and None as nothing.
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Map | Seq | String | Undefined)
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
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
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        out.push_str(if index > 0 { with } else { "" });
        let item = match &attribute {
            Some(attribute) => item.get_attr(attribute)?,
            None => item,
        };
        out.push_str(&python::to_str(&item)?);
    }
    Ok(out)
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
