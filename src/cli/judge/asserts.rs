//! `assert` lists, in promptfoo's names: what of them is judged here, and what is refused by name.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::criterion::{Criterion, HowMany, Test};
use super::row::text_of;
use super::scorers::number::Decimal;
use super::scorers::schema::Schema;
use super::scorers::words::{Patterns, rouge};
use super::settings::{PassIf, pattern};

/// What an item of a list may have.
const KEYS: [&str; 5] = ["type", "value", "threshold", "weight", "metric"];

/// The distance up to which `levenshtein` passes, as in promptfoo.
const DISTANCE: f64 = 5.0;

/// The criteria of a list.
///
/// # Errors
/// It is no list of objects, or has a type or a key that is not supported.
pub fn criteria(list: &Value, patterns: &Arc<Patterns>) -> Result<Vec<Criterion>, String> {
    let parsed;
    let list = match list {
        // A cell of a CSV.
        Value::String(cell) => {
            parsed = serde_json::from_str(cell).unwrap_or_default();
            &parsed
        }
        list => list,
    };
    let items = list.as_array().ok_or("`assert` is no list of objects")?;
    let item = |item: &Value| {
        let item = item.as_object().ok_or("`assert` is no list of objects")?;
        criterion(item, patterns)
    };
    items.iter().map(item).collect()
}

fn criterion(item: &Map<String, Value>, patterns: &Arc<Patterns>) -> Result<Criterion, String> {
    if let Some(other) = item.keys().find(|key| !KEYS.contains(&key.as_str())) {
        return Err(format!("assert: `{other}` is not supported; there are {}", KEYS.join(", ")));
    }
    let kind = item.get("type").and_then(Value::as_str).ok_or("assert: an item has no `type`")?;
    let number = |key: &str| match item.get(key).filter(|value| !value.is_null()) {
        None => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| *number >= 0.0);
            number.map(Some).ok_or_else(|| format!("assert `{kind}`: {key} {value} is no number"))
        }
    };
    let (is_negated, plain) = match kind.strip_prefix("not-") {
        Some(plain) => (true, plain),
        None => (false, kind),
    };
    let threshold = number("threshold")?;
    let value = item.get("value").filter(|value| !value.is_null());
    let test = test(plain, value, threshold, patterns);
    let (test, default) = test.map_err(|what| format!("assert `{kind}`: {what}"))?;
    let limit = if test.is_binary() { 1.0 } else { threshold.unwrap_or(default) };
    let name = item.get("metric").map_or_else(|| kind.to_owned(), text_of);
    let weight = number("weight")?.unwrap_or(1.0);
    Ok(Criterion { name, weight, is_negated, pass_if: Some(PassIf::at_least(limit)), test })
}

/// What a type asks, and the threshold that promptfoo gives it.
fn test(
    kind: &str,
    value: Option<&Value>,
    threshold: Option<f64>,
    patterns: &Arc<Patterns>,
) -> Result<(Test, f64), String> {
    let texts = || match value {
        Some(Value::Array(values)) if !values.is_empty() => {
            Ok(values.iter().map(text_of).collect::<Vec<String>>())
        }
        Some(Value::Array(_)) | None => Err("there is no `value`".to_owned()),
        Some(value) => Ok(vec![text_of(value)]),
    };
    let each = |make: &dyn Fn(&str) -> Vec<String>| {
        Ok::<_, String>(texts()?.iter().map(|text| make(text)).collect())
    };
    let contains = |ignores_case: bool, how_many| {
        let fold = |text: String| if ignores_case { text.to_lowercase() } else { text };
        let texts = texts()?.into_iter().map(fold).collect();
        Ok::<_, String>(Test::Contains { texts, ignores_case, how_many })
    };
    let is_json = |is_whole| match value {
        None => Ok(Test::Json { is_whole, expected: None }),
        Some(schema) => {
            let schema = Schema::new(schema.clone(), &patterns.stack)?;
            Ok::<_, String>(Test::JsonSchema { is_whole, schema })
        }
    };
    let test = match kind {
        "equals" => match value {
            Some(value @ (Value::Object(_) | Value::Array(_))) => {
                Test::Json { is_whole: true, expected: Some(value.clone()) }
            }
            _ => Test::Equals(texts()?),
        },
        "contains" | "contains-any" => contains(false, HowMany::Any)?,
        "contains-all" => contains(false, HowMany::All)?,
        "icontains" | "icontains-any" => contains(true, HowMany::Any)?,
        "icontains-all" => contains(true, HowMany::All)?,
        "starts-with" => Test::StartsWith(texts()?),
        "regex" => Test::Matches(texts()?.iter().map(|t| pattern(t)).collect::<Result<_, _>>()?),
        "is-json" => is_json(true)?,
        "contains-json" => is_json(false)?,
        "levenshtein" => Test::Distance(texts()?, threshold.unwrap_or(DISTANCE) as usize),
        "rouge-n" => return Ok((Test::Rouge1(each(&rouge)?), 0.75)),
        "bleu" => return Ok((Test::Bleu(texts()?), 0.5)),
        // Of our own scorers, those that need no flag.
        "number" => {
            let number =
                |text: &String| Decimal::parse(text).ok_or(format!("`{text}` is no number"));
            Test::Number(texts()?.iter().map(number).collect::<Result<_, _>>()?)
        }
        "f1" => return Ok((Test::F1(each(&|text| patterns.squad(text))?), 1.0)),
        "rouge-l" => return Ok((Test::RougeL(each(&rouge)?), 0.75)),
        "chrf" => return Ok((Test::Chrf(texts()?), 0.5)),
        _ => return Err("this type is not supported".to_owned()),
    };
    Ok((test, 1.0))
}
