//! `assert` lists, in promptfoo's names and by its rules: what of them is judged here, and what is
//! refused by name.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::criterion::{Criterion, HowMany, Test};
use super::row::text_of;
use super::scorers::json::Exact;
use super::scorers::number::Decimal;
use super::scorers::promptfoo;
use super::scorers::schema::Schema;
use super::scorers::words::{Patterns, rouge};
use super::settings::{PassIf, javascript_pattern};

/// What an item of a list may have.
const KEYS: [&str; 5] = ["type", "value", "threshold", "weight", "metric"];

/// What a set of items may have.
const SET_KEYS: [&str; 5] = ["type", "assert", "threshold", "weight", "metric"];

/// The distance up to which `levenshtein` passes, as in promptfoo.
const DISTANCE: f64 = 5.0;

/// Items of a list, those of its sets included.
const MAX_ITEMS: usize = 1000;

/// Types that are judged.
const TYPES: [&str; 22] = [
    "equals",
    "contains",
    "contains-any",
    "contains-all",
    "icontains",
    "icontains-any",
    "icontains-all",
    "starts-with",
    "ends-with",
    "regex",
    "is-json",
    "contains-json",
    "word-count",
    "levenshtein",
    "rouge-n",
    "bleu",
    "gleu",
    "assert-set",
    "number",
    "f1",
    "rouge-l",
    "chrf",
];

type Fields = HashMap<String, Box<RawValue>>;

/// The criteria of a list, which is JSON.
///
/// # Errors
/// It is no list of objects, or has a type or a key that is not supported.
pub(super) fn criteria(list: &str, patterns: &Arc<Patterns>) -> Result<Vec<Criterion>, String> {
    // A cell of a CSV.
    let cell: Option<String> = serde_json::from_str(list).ok();
    let items = items(cell.as_deref().unwrap_or(list))?;
    let criteria = items.iter().map(|item| criterion(item, patterns, true));
    let criteria: Vec<Criterion> = criteria.collect::<Result<_, _>>()?;
    let nested = criteria.iter().map(|one| match &one.test {
        Test::Set { criteria, .. } => criteria.len(),
        _ => 1,
    });
    match nested.sum::<usize>() > MAX_ITEMS {
        true => Err(format!("`assert` has more than {MAX_ITEMS} items")),
        false => Ok(criteria),
    }
}

fn items(list: &str) -> Result<Vec<Fields>, String> {
    let items: Option<Vec<Fields>> = serde_json::from_str(list).ok();
    let items = items.ok_or("`assert` is no list of objects")?;
    match items.len() > MAX_ITEMS {
        true => Err(format!("`assert` has more than {MAX_ITEMS} items")),
        false => Ok(items),
    }
}

/// An item, of a list that may have sets in it or not.
fn criterion(
    item: &Fields,
    patterns: &Arc<Patterns>,
    may_be_set: bool,
) -> Result<Criterion, String> {
    let value_of = |key: &str| -> Option<Value> {
        let value = serde_json::from_str(item.get(key)?.get()).ok()?;
        Some(value).filter(|value: &Value| !value.is_null())
    };
    let kind = value_of("type");
    let kind = kind.as_ref().and_then(Value::as_str).ok_or("assert: an item has no `type`")?;
    let is_set = kind == "assert-set" && may_be_set;
    let keys = if is_set { SET_KEYS } else { KEYS };
    let mut others: Vec<&String> =
        item.keys().filter(|key| !keys.contains(&key.as_str())).collect();
    others.sort();
    if let Some(other) = others.first() {
        return Err(format!("assert: `{other}` is not supported; there are {}", keys.join(", ")));
    }
    let number = |key: &str| match value_of(key) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| *number >= 0.0);
            let wrong = || format!("assert `{kind}`: {key} {value} is no number from 0");
            number.map(Some).ok_or_else(wrong)
        }
    };
    let (threshold, weight) = (number("threshold")?, number("weight")?.unwrap_or(1.0));
    let metric = value_of("metric").as_ref().map(text_of);
    if metric.as_deref().is_some_and(is_template) {
        return Err(format!("assert `{kind}`: templates in `metric` are not supported"));
    }
    let name = metric.clone().unwrap_or_else(|| kind.to_owned());
    let has_metric = metric.is_some();
    let made = |is_negated, pass_if, test| Criterion {
        name,
        weight,
        is_negated,
        pass_if,
        test,
        has_metric,
        is_assert: true,
    };
    if is_set {
        let list = item.get("assert").map_or("null", |list| list.get());
        let items = items(list)?;
        let criteria = items.iter().map(|item| criterion(item, patterns, false));
        let criteria = criteria.collect::<Result<_, _>>()?;
        return Ok(made(false, None, Test::Set { criteria, threshold }));
    }
    let (is_negated, plain) = match kind.strip_prefix("not-") {
        Some(plain) => (true, plain),
        None => (false, kind),
    };
    let json = item.get("value").map(|value| value.get());
    let asked = Asked { json, value: value_of("value"), threshold, patterns };
    let (test, default) = asked.test(plain).map_err(|what| format!("assert `{kind}`: {what}"))?;
    let limit = if test.is_binary() { 1.0 } else { threshold.unwrap_or(default) };
    Ok(made(is_negated, Some(PassIf::at_least(limit)), test))
}

/// Whether promptfoo would fill something in.
fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// A value as JavaScript writes it.
fn javascript_text(value: &Value) -> Result<String, String> {
    match value {
        Value::Number(number) => Ok(match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < 1e21 => {
                format!("{float:.0}")
            }
            _ => number.to_string(),
        }),
        Value::Array(_) | Value::Object(_) => Err("`value` has an item that is no text".to_owned()),
        Value::Null => Ok("null".to_owned()),
        other => Ok(text_of(other)),
    }
}

/// What an item says of its test.
struct Asked<'a> {
    /// Of `value`.
    json: Option<&'a str>,
    /// None: there is none, or null.
    value: Option<Value>,
    threshold: Option<f64>,
    patterns: &'a Arc<Patterns>,
}

impl Asked<'_> {
    /// What a type asks, and the threshold that promptfoo gives it.
    fn test(&self, kind: &str) -> Result<(Test, f64), String> {
        self.check_texts()?;
        let test = match kind {
            "equals" => self.equals()?,
            "contains" => contains(false, vec![self.plain()?], HowMany::Any),
            "icontains" => contains(true, vec![self.plain()?], HowMany::Any),
            "contains-any" => contains(false, self.listed()?, HowMany::Any),
            "contains-all" => contains(false, self.listed()?, HowMany::All),
            "icontains-any" => contains(true, self.listed()?, HowMany::Any),
            "icontains-all" => contains(true, self.listed()?, HowMany::All),
            "starts-with" => Test::StartsWith(vec![self.text()?]),
            "ends-with" => Test::EndsWith(self.text()?),
            "regex" => Test::Matches(vec![javascript_pattern(&self.text()?)?]),
            "is-json" => self.json(true)?,
            "contains-json" => self.json(false)?,
            "word-count" => self.word_count()?,
            "levenshtein" => Test::Distance(self.text()?, self.threshold.unwrap_or(DISTANCE)),
            "rouge-n" => return Ok((Test::RougeN(promptfoo::treebank(&self.text()?)), 0.75)),
            "bleu" => return Ok((Test::PlainBleu(self.each(promptfoo::words)?), 0.5)),
            "gleu" => return Ok((Test::Gleu(self.each(promptfoo::words)?), 0.5)),
            // Of our own scorers, those that need no flag.
            "number" => {
                let number =
                    |text: &String| Decimal::parse(text).ok_or(format!("`{text}` is no number"));
                Test::Number(self.texts()?.iter().map(number).collect::<Result<_, _>>()?)
            }
            "f1" => return Ok((Test::F1(self.each(|text| self.patterns.squad(text))?), 1.0)),
            "rouge-l" => return Ok((Test::RougeL(self.each(rouge)?), 0.75)),
            "chrf" => return Ok((Test::Chrf(self.texts()?), 0.5)),
            _ => {
                let types = TYPES.join(", ");
                let what = "this type is not supported; there are";
                return Err(format!("{what} {types}, and not- before them"));
            }
        };
        Ok((test, 1.0))
    }

    /// Texts that promptfoo would read otherwise than as they are.
    fn check_texts(&self) -> Result<(), String> {
        let texts = match &self.value {
            Some(Value::Array(values)) => &values[..],
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        for text in texts.iter().filter_map(Value::as_str) {
            if is_template(text) {
                return Err("templates in `value` are not supported: write the text".to_owned());
            }
            if text.starts_with("file://") || text.starts_with("package:") {
                return Err("files in `value` are not supported: write the value".to_owned());
            }
        }
        Ok(())
    }

    fn given(&self) -> Result<&Value, String> {
        self.value.as_ref().ok_or_else(|| "there is no `value`".to_owned())
    }

    /// A text with something in it.
    fn text(&self) -> Result<String, String> {
        match self.given()? {
            Value::String(text) if !text.is_empty() => Ok(text.clone()),
            _ => Err("`value` is no text with something in it".to_owned()),
        }
    }

    /// The same, or a number.
    fn plain(&self) -> Result<String, String> {
        match self.given()? {
            Value::String(text) if !text.is_empty() => Ok(text.clone()),
            number @ Value::Number(_) => javascript_text(number),
            _ => Err("`value` is neither a text with something in it nor a number".to_owned()),
        }
    }

    /// A list; a text is split at its commas.
    fn listed(&self) -> Result<Vec<String>, String> {
        match self.given()? {
            Value::String(text) if !text.is_empty() => promptfoo::comma_separated(text),
            Value::Array(values) => values.iter().map(javascript_text).collect(),
            _ => Err("`value` is neither a list nor a text with commas".to_owned()),
        }
    }

    /// One text, or several.
    fn texts(&self) -> Result<Vec<String>, String> {
        match self.given()? {
            Value::Array(values) if !values.is_empty() => {
                values.iter().map(javascript_text).collect()
            }
            Value::Array(_) => Err("`value` is an empty list".to_owned()),
            value => Ok(vec![javascript_text(value)?]),
        }
    }

    fn each(&self, make: impl Fn(&str) -> Vec<String>) -> Result<Vec<Vec<String>>, String> {
        Ok(self.texts()?.iter().map(|text| make(text)).collect())
    }

    fn equals(&self) -> Result<Test, String> {
        match &self.value {
            Some(Value::Object(_) | Value::Array(_)) => {
                Ok(Test::Json { is_whole: true, expected: self.json.and_then(Exact::parse) })
            }
            Some(value) => Ok(Test::Equals(vec![match (value, self.json) {
                // A number beyond 64 bits keeps its digits.
                (Value::Number(number), Some(json)) if number.is_f64() && is_integer(json) => {
                    json.to_owned()
                }
                _ => javascript_text(value)?,
            }])),
            None if self.json == Some("null") => {
                Ok(Test::Json { is_whole: true, expected: Exact::parse("null") })
            }
            None => Err("there is no `value`".to_owned()),
        }
    }

    /// JSON, by a schema if there is one: an object, or a text of one.
    fn json(&self, is_whole: bool) -> Result<Test, String> {
        let schema = match &self.value {
            None => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) => {
                let schema: Option<Value> = serde_json::from_str(text).ok();
                let schema = schema.filter(Value::is_object);
                Some(schema.ok_or("`value` is no schema: a schema in YAML is not supported")?)
            }
            Some(value @ Value::Object(_)) => Some(value.clone()),
            Some(_) => return Err("`value` is no schema".to_owned()),
        };
        let schema = schema.map(|schema| Schema::new(schema, &self.patterns.stack)).transpose()?;
        Ok(match (is_whole, schema) {
            (true, None) => Test::Json { is_whole, expected: None },
            (true, Some(schema)) => Test::JsonSchema { is_whole, schema },
            (false, schema) => Test::JsonWithin(schema),
        })
    }

    /// A number of words, or `min` and `max`.
    fn word_count(&self) -> Result<Test, String> {
        let count = |value: &Value| {
            let text = match value {
                Value::String(text) => text.trim().parse::<f64>().ok(),
                value => value.as_f64(),
            };
            text.ok_or_else(|| format!("{value} is no number of words"))
        };
        let Value::Object(limits) = self.given()? else {
            let exact = count(self.given()?)?;
            return Ok(Test::WordCount { min: exact, max: exact });
        };
        if let Some(other) = limits.keys().find(|key| !["min", "max"].contains(&key.as_str())) {
            return Err(format!("`{other}` of `value` is not supported; there are min, max"));
        }
        let limit = |name: &str| limits.get(name).map(count).transpose();
        let (min, max) = match (limit("min")?, limit("max")?) {
            (None, None) => return Err("`value` has neither `min` nor `max`".to_owned()),
            (min, max) => (min.unwrap_or(0.0), max.unwrap_or(f64::INFINITY)),
        };
        match min <= max {
            true => Ok(Test::WordCount { min, max }),
            false => Err(format!("`min` {min} is more than `max` {max}")),
        }
    }
}

fn contains(ignores_case: bool, texts: Vec<String>, how_many: HowMany) -> Test {
    let fold = |text: String| if ignores_case { text.to_lowercase() } else { text };
    Test::Contains { texts: texts.into_iter().map(fold).collect(), ignores_case, how_many }
}

fn is_integer(json: &str) -> bool {
    json.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit())
}
