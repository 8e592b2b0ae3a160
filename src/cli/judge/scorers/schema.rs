//! JSON Schema: the keywords of draft 2020-12 that say what a value is, and those of older drafts
//! that mean the same. A schema with another keyword is refused by name, so that none is passed
//! over. Patterns are matched in linear time.

use std::cell::Cell;
use std::collections::HashMap;

use regex::Regex;
use serde_json::{Map, Value};

use super::json::equal;
use crate::cli::judge::settings::pattern;

/// How deep references may lead, and how often a schema is asked in all: one that refers to itself
/// may have no end.
const MAX_DEPTH: usize = 128;
const MAX_STEPS: u32 = 1 << 20;

/// Keywords that say nothing of a value. `format` is one by default since draft 2019-09.
const ANNOTATIONS: [&str; 13] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "format",
];

/// Keywords with one schema, with a list of them, and with an object of them.
const OF_ONE: [&str; 8] =
    ["not", "if", "then", "else", "additionalProperties", "propertyNames", "contains", "items"];
const OF_LIST: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const OF_OBJECT: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Keywords with a number of things.
const COUNTS: [&str; 8] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
];

/// Keywords with a number.
const NUMBERS: [&str; 5] =
    ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// A schema whose every keyword is known.
#[derive(Debug)]
pub struct Schema {
    root: Value,
    patterns: HashMap<String, Regex>,
}

impl Schema {
    /// Looks at every keyword.
    ///
    /// # Errors
    /// One is not supported or has a value that it cannot have, or a reference leads nowhere.
    pub fn new(root: Value) -> Result<Self, String> {
        let mut schema = Self { root: Value::Null, patterns: HashMap::new() };
        check(&root, &root, &mut schema.patterns)?;
        schema.root = root;
        Ok(schema)
    }

    /// Whether a value is as the schema says.
    pub fn holds(&self, value: &Value) -> bool {
        self.is_valid(&self.root, value, (0, &Cell::new(0)))
    }

    fn is_valid(&self, schema: &Value, value: &Value, (depth, steps): (usize, &Cell<u32>)) -> bool {
        let keywords = match schema {
            Value::Object(keywords) => keywords,
            other => return *other != Value::Bool(false),
        };
        steps.set(steps.get() + 1);
        if depth > MAX_DEPTH || steps.get() > MAX_STEPS {
            return false;
        }
        let valid =
            |schema: &Value, value: &Value| self.is_valid(schema, value, (depth + 1, steps));
        let each = |(name, argument): (&String, &Value)| match (name.as_str(), argument) {
            ("$ref", Value::String(to)) => {
                found(&self.root, to).is_some_and(|schema| valid(schema, value))
            }
            ("type", Value::Array(names)) => names.iter().any(|name| is_of_type(value, name)),
            ("type", name) => is_of_type(value, name),
            ("enum", Value::Array(values)) => values.iter().any(|other| equal(value, other)),
            ("const", other) => equal(value, other),
            ("allOf", Value::Array(all)) => all.iter().all(|schema| valid(schema, value)),
            ("anyOf", Value::Array(any)) => any.iter().any(|schema| valid(schema, value)),
            ("oneOf", Value::Array(one)) => {
                one.iter().filter(|schema| valid(schema, value)).count() == 1
            }
            ("not", schema) => !valid(schema, value),
            ("if", schema) => {
                let name = if valid(schema, value) { "then" } else { "else" };
                keywords.get(name).is_none_or(|schema| valid(schema, value))
            }
            (name, argument) => match value {
                Value::Number(_) => is_number(name, argument, value),
                Value::String(text) => self.is_text(name, argument, text),
                Value::Array(items) => is_list(keywords, name, items, &valid),
                Value::Object(fields) => self.is_object(keywords, name, fields, &valid),
                Value::Null | Value::Bool(_) => true,
            },
        };
        keywords.iter().all(each)
    }

    fn is_text(&self, name: &str, argument: &Value, text: &str) -> bool {
        match (name, argument) {
            ("minLength" | "maxLength", _) => is_count(name, argument, text.chars().count()),
            ("pattern", Value::String(pattern)) => self.matches(pattern, text),
            _ => true,
        }
    }

    fn is_object(
        &self,
        keywords: &Map<String, Value>,
        name: &str,
        fields: &Map<String, Value>,
        valid: &dyn Fn(&Value, &Value) -> bool,
    ) -> bool {
        let argument = &keywords[name];
        match (name, argument) {
            ("required", Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).all(|name| fields.contains_key(name))
            }
            ("minProperties" | "maxProperties", _) => is_count(name, argument, fields.len()),
            ("properties", Value::Object(schemas)) => schemas
                .iter()
                .all(|(name, schema)| fields.get(name).is_none_or(|value| valid(schema, value))),
            ("patternProperties", Value::Object(schemas)) => {
                schemas.iter().all(|(name, schema)| {
                    let matching = fields.iter().filter(|(field, _)| self.matches(name, field));
                    matching.into_iter().all(|(_, value)| valid(schema, value))
                })
            }
            ("additionalProperties", schema) => {
                let named = |name: &str, field: &String| match keywords.get(name) {
                    Some(Value::Object(schemas)) if name == "properties" => {
                        schemas.contains_key(field)
                    }
                    Some(Value::Object(schemas)) => {
                        schemas.keys().any(|pattern| self.matches(pattern, field))
                    }
                    _ => false,
                };
                let is_other = |field: &String| {
                    !named("properties", field) && !named("patternProperties", field)
                };
                let others = fields.iter().filter(|(field, _)| is_other(field));
                others.into_iter().all(|(_, value)| valid(schema, value))
            }
            ("propertyNames", schema) => {
                fields.keys().all(|name| valid(schema, &Value::from(name.as_str())))
            }
            _ => true,
        }
    }

    fn matches(&self, pattern: &str, text: &str) -> bool {
        self.patterns.get(pattern).is_some_and(|pattern| pattern.is_match(text))
    }
}

fn is_list(
    keywords: &Map<String, Value>,
    name: &str,
    items: &[Value],
    valid: &dyn Fn(&Value, &Value) -> bool,
) -> bool {
    let argument = &keywords[name];
    let of_places = match keywords.get("prefixItems") {
        Some(Value::Array(schemas)) => schemas.len(),
        _ => 0,
    };
    match (name, argument) {
        ("minItems" | "maxItems", _) => is_count(name, argument, items.len()),
        ("uniqueItems", Value::Bool(true)) => {
            let mut seen = items.iter().enumerate();
            seen.all(|(at, item)| !items[..at].iter().any(|other| equal(item, other)))
        }
        ("prefixItems", Value::Array(schemas)) => {
            schemas.iter().zip(items).all(|(schema, item)| valid(schema, item))
        }
        ("items", schema) => items.iter().skip(of_places).all(|item| valid(schema, item)),
        ("contains", schema) => {
            let count = items.iter().filter(|item| valid(schema, item)).count();
            let least = keywords.get("minContains").and_then(Value::as_u64).unwrap_or(1);
            let most = keywords.get("maxContains").and_then(Value::as_u64).unwrap_or(u64::MAX);
            (least..=most).contains(&(count as u64))
        }
        _ => true,
    }
}

fn is_number(name: &str, argument: &Value, value: &Value) -> bool {
    let (Some(limit), Some(number)) = (argument.as_f64(), value.as_f64()) else { return true };
    match name {
        "minimum" => number >= limit,
        "maximum" => number <= limit,
        "exclusiveMinimum" => number > limit,
        "exclusiveMaximum" => number < limit,
        "multipleOf" => is_multiple(number, limit),
        _ => true,
    }
}

/// A quotient that is whole, but for the rounding of decimal fractions: 0.3 is three times 0.1.
fn is_multiple(number: f64, of: f64) -> bool {
    let quotient = number / of;
    (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
}

fn is_count(name: &str, argument: &Value, count: usize) -> bool {
    let limit = argument.as_u64().unwrap_or(0);
    if name.starts_with("min") { count as u64 >= limit } else { count as u64 <= limit }
}

fn is_of_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        // 1.0 is an integer.
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

/// What a reference within the schema leads to.
fn found<'a>(root: &'a Value, to: &str) -> Option<&'a Value> {
    root.pointer(to.strip_prefix('#')?)
}

/// Looks at a schema and those within it.
fn check(
    schema: &Value,
    root: &Value,
    patterns: &mut HashMap<String, Regex>,
) -> Result<(), String> {
    let keywords = match schema {
        Value::Object(keywords) => keywords,
        Value::Bool(_) => return Ok(()),
        other => return Err(format!("{other} is no schema")),
    };
    for (name, argument) in keywords {
        let wrong = || Err(format!("the schema's `{name}` cannot be {argument}"));
        match (name.as_str(), argument) {
            (name, argument) if OF_ONE.contains(&name) => check(argument, root, patterns)?,
            (name, Value::Array(schemas)) if OF_LIST.contains(&name) && !schemas.is_empty() => {
                schemas.iter().try_for_each(|schema| check(schema, root, patterns))?;
            }
            (name, Value::Object(schemas)) if OF_OBJECT.contains(&name) => {
                for (key, schema) in schemas {
                    if name == "patternProperties" {
                        patterns.insert(key.clone(), pattern(key)?);
                    }
                    check(schema, root, patterns)?;
                }
            }
            (name, _) if COUNTS.contains(&name) && argument.as_f64().is_some_and(is_whole) => {}
            ("multipleOf", number) if number.as_f64().is_none_or(|number| number <= 0.0) => {
                return wrong();
            }
            (name, Value::Number(_)) if NUMBERS.contains(&name) => {}
            ("pattern", Value::String(text)) => {
                patterns.insert(text.clone(), pattern(text)?);
            }
            ("uniqueItems", Value::Bool(_)) | ("enum", Value::Array(_)) | ("const", _) => {}
            ("required", Value::Array(names)) if names.iter().all(Value::is_string) => {}
            ("type", Value::Array(names)) if names.iter().all(is_type) => {}
            ("type", name) if is_type(name) => {}
            ("$ref", Value::String(to)) => {
                if found(root, to).is_none() {
                    return Err(format!("the schema's `$ref` leads nowhere: {to}"));
                }
            }
            (name, _) if ANNOTATIONS.contains(&name) && !OF_OBJECT.contains(&name) => {}
            (known, _) if is_keyword(known) => return wrong(),
            _ => return Err(format!("`{name}` of a JSON schema is not supported")),
        }
    }
    Ok(())
}

fn is_whole(number: f64) -> bool {
    number >= 0.0 && number.fract() == 0.0
}

fn is_type(name: &Value) -> bool {
    const TYPES: [&str; 7] = ["null", "boolean", "object", "array", "string", "number", "integer"];
    name.as_str().is_some_and(|name| TYPES.contains(&name))
}

fn is_keyword(name: &str) -> bool {
    let others = ["pattern", "uniqueItems", "enum", "required", "type", "$ref"];
    let lists: [&[&str]; 6] = [&OF_LIST, &OF_OBJECT, &COUNTS, &NUMBERS, &others, &ANNOTATIONS];
    lists.iter().any(|list| list.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Schemas and values of the tests' file, judged by Python's `jsonschema`.
    #[test]
    fn values_are_valid_as_by_another_validator() {
        let text = include_str!("../../../../testdata/eval_vectors.json");
        let vectors: Value = serde_json::from_str(text).unwrap();
        for vector in vectors["schemas"].as_array().unwrap() {
            let schema = Schema::new(vector["schema"].clone()).unwrap();
            for (value, valid) in
                vector["values"].as_array().unwrap().iter().map(|pair| (&pair[0], &pair[1]))
            {
                assert_eq!(schema.holds(value), *valid, "{} {value}", vector["schema"]);
            }
        }
    }

    #[test]
    fn what_is_not_looked_at_is_refused() {
        let cases = [
            (r#"{"unevaluatedProperties": false}"#, "`unevaluatedProperties` of a JSON schema is"),
            (r#"{"properties": {"a": {"$dynamicRef": "a"}}}"#, "`$dynamicRef` of a JSON schema is"),
            (r#"{"type": "text"}"#, "the schema's `type` cannot be \"text\""),
            (r#"{"minimum": "1"}"#, "the schema's `minimum` cannot be \"1\""),
            (r#"{"maxItems": -1}"#, "the schema's `maxItems` cannot be -1"),
            (r##"{"$ref": "#/$defs/a"}"##, "the schema's `$ref` leads nowhere: #/$defs/a"),
            (r#"{"$ref": "https://a.b/c"}"#, "the schema's `$ref` leads nowhere: https://a.b/c"),
            (r#"{"pattern": "(?=a)"}"#, "`(?=a)` is no regular expression"),
            (r#"{"items": [{}]}"#, "[{}] is no schema"),
            ("5", "5 is no schema"),
        ];
        for (schema, expected) in cases {
            let error = Schema::new(serde_json::from_str(schema).unwrap()).unwrap_err();
            assert!(error.starts_with(expected), "{schema}: {error}");
        }
        for endless in [r##"{"$ref": "#"}"##, r##"{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}"##] {
            let endless: Value = serde_json::from_str(endless).unwrap();
            assert!(!Schema::new(endless).unwrap().holds(&Value::Null));
        }
    }
}
