//! `StructuredOutputs`: vLLM's `StructuredOutputsParams`, from the JSON of a row or a flag.

use serde_json::{Map, Value, json};

/// Levels of a schema (vLLM's limit).
const MAX_SCHEMA_DEPTH: usize = 64;

/// What an answer must match, and how freely.
#[derive(Clone, Debug, PartialEq)]
pub struct StructuredOutputs {
    /// What it must match.
    pub constraint: Constraint,
    /// Whitespace between the tokens of JSON, as a regular expression. None: up to 16 characters at
    /// a time, since models loop on blanks where they may.
    pub whitespace_pattern: Option<String>,
    /// No whitespace in JSON at all.
    pub disable_any_whitespace: bool,
    /// An object has no other keys than its schema's `properties`, where the schema does not say.
    pub disable_additional_properties: bool,
    /// A schema whose keywords masks do not all keep to is refused, and not validated at the end.
    pub strict: bool,
}

/// Exactly one of vLLM's constraints.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// A JSON value of this schema, an object.
    Json(Value),
    /// The whole answer matches.
    Regex(String),
    /// One of these, exactly. Not empty.
    Choice(Vec<String>),
    /// A grammar in Lark's syntax, or in EBNF as of GBNF.
    Grammar(String),
    /// Any JSON object.
    JsonObject,
    /// Free text until a trigger, then what the tag says.
    StructuralTag(Value),
}

/// The fields that are constraints, by vLLM's names.
const CONSTRAINTS: [&str; 6] =
    ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];

impl StructuredOutputs {
    /// What decides the masks beside constraints and tokens: part of a run's fingerprint.
    pub const BACKEND: &str = "llguidance 1.9.1, limits 3, jsonschema 0.61.2";

    /// Free choice of everything beside the constraint.
    pub fn new(constraint: Constraint) -> Self {
        Self {
            constraint,
            whitespace_pattern: None,
            disable_any_whitespace: false,
            disable_additional_properties: false,
            strict: false,
        }
    }

    /// Of vLLM's object `structured_outputs`.
    ///
    /// # Errors
    /// In words: it is no such object, or has none or several constraints, or one of a wrong type.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let fields = value.as_object().ok_or("expected an object")?;
        let given = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
        let names: Vec<&str> = CONSTRAINTS.into_iter().filter(given).collect();
        let [name] = names[..] else {
            let all = CONSTRAINTS.join(", ");
            return Err(match names.is_empty() {
                true => format!("expected one of {all}"),
                false => format!("{} exclude each other: give one", names.join(", ")),
            });
        };
        let constraint =
            constraint(name, &fields[name]).map_err(|what| format!("{name}: {what}"))?;
        let mut outputs = Self::new(constraint);
        for (field, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            match (field.as_str(), value) {
                (field, _) if field == name => {}
                ("whitespace_pattern", Value::String(pattern)) => {
                    outputs.whitespace_pattern = Some(pattern.clone());
                }
                ("disable_any_whitespace", Value::Bool(is_on)) => {
                    outputs.disable_any_whitespace = *is_on;
                }
                ("disable_additional_properties", Value::Bool(is_on)) => {
                    outputs.disable_additional_properties = *is_on;
                }
                ("strict", Value::Bool(is_on)) => outputs.strict = *is_on,
                ("whitespace_pattern", _) => return Err(format!("{field}: expected a string")),
                ("disable_any_whitespace" | "disable_additional_properties" | "strict", _) => {
                    return Err(format!("{field}: expected true or false"));
                }
                _ => return Err(format!("{field}: there is no such field")),
            }
        }
        Ok(outputs)
    }

    /// Of OpenAI's `response_format`; None for free text.
    ///
    /// # Errors
    /// In words: it is of no known type, or lacks what its type needs.
    pub fn from_response_format(value: &Value) -> Result<Option<Self>, String> {
        let kind = value["type"].as_str().ok_or("expected an object with a `type`")?;
        let constraint = match kind {
            "text" => return Ok(None),
            // With a schema, as llama.cpp and Together have it.
            "json_object" => match &value["schema"] {
                Value::Null => Constraint::JsonObject,
                Value::Object(schema) if schema.is_empty() => Constraint::JsonObject,
                schema => constraint("json", schema).map_err(|what| format!("schema: {what}"))?,
            },
            "json_schema" => {
                let schema = match &value["json_schema"]["schema"] {
                    Value::Null => &value["schema"],
                    schema => schema,
                };
                let wrong = |what| format!("json_schema.schema: {what}");
                constraint("json", schema).map_err(wrong)?
            }
            "structural_tag" => Constraint::StructuralTag(value.clone()),
            other => {
                let known = "text, json_object, json_schema, structural_tag";
                return Err(format!("type '{other}' is none of {known}"));
            }
        };
        let strict = value["json_schema"]["strict"] == true;
        Ok(Some(Self { strict, ..Self::new(constraint) }))
    }

    /// Its JSON: what a cache and a fingerprint know it by.
    pub fn to_json(&self) -> Value {
        let (name, value) = match &self.constraint {
            Constraint::Json(schema) => ("json", schema.clone()),
            Constraint::Regex(regex) => ("regex", json!(regex)),
            Constraint::Choice(choices) => ("choice", json!(choices)),
            Constraint::Grammar(grammar) => ("grammar", json!(grammar)),
            Constraint::JsonObject => ("json_object", json!(true)),
            Constraint::StructuralTag(tag) => ("structural_tag", tag.clone()),
        };
        let mut fields = Map::new();
        fields.insert(name.to_owned(), value);
        if let Some(pattern) = &self.whitespace_pattern {
            fields.insert("whitespace_pattern".to_owned(), json!(pattern));
        }
        for (name, is_on) in [
            ("disable_any_whitespace", self.disable_any_whitespace),
            ("disable_additional_properties", self.disable_additional_properties),
            ("strict", self.strict),
        ] {
            if is_on {
                fields.insert(name.to_owned(), json!(true));
            }
        }
        Value::Object(fields)
    }
}

fn constraint(name: &str, value: &Value) -> Result<Constraint, String> {
    match (name, value) {
        ("json", Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(schema) => constraint("json", &schema),
            Err(error) => Err(format!("the schema is not JSON: {error}")),
        },
        ("json", Value::Object(_)) if depth(value) > MAX_SCHEMA_DEPTH => {
            Err(format!("the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels"))
        }
        ("json", Value::Object(_)) => Ok(Constraint::Json(value.clone())),
        ("json", _) => Err("expected a JSON schema: an object, or its text".to_owned()),
        ("regex", Value::String(regex)) if regex.contains('\0') => {
            Err("a NUL character cannot be matched".to_owned())
        }
        ("regex", Value::String(regex)) => Ok(Constraint::Regex(regex.clone())),
        ("grammar", Value::String(text)) if text.trim().is_empty() => {
            Err("the grammar is empty".to_owned())
        }
        ("grammar", Value::String(text)) => Ok(Constraint::Grammar(text.clone())),
        ("regex" | "grammar", _) => Err("expected a string".to_owned()),
        ("choice", Value::Array(items)) if !items.is_empty() => {
            let text = |item: &Value| item.as_str().map(str::to_owned);
            let choices: Option<Vec<String>> = items.iter().map(text).collect();
            choices.map(Constraint::Choice).ok_or("expected a list of strings".to_owned())
        }
        ("choice", _) => Err("expected a list of strings that is not empty".to_owned()),
        ("json_object", Value::Bool(true)) => Ok(Constraint::JsonObject),
        ("json_object", _) => Err("expected true".to_owned()),
        (_, Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(tag) if tag.is_object() => Ok(Constraint::StructuralTag(tag)),
            Ok(_) => Err("expected a JSON object".to_owned()),
            Err(error) => Err(format!("it is not JSON: {error}")),
        },
        (_, Value::Object(_)) => Ok(Constraint::StructuralTag(value.clone())),
        _ => Err("expected a JSON object, or its text".to_owned()),
    }
}

/// Levels of objects and lists. The parser of JSON limits the recursion.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_vllm_is_read_and_written() {
        let cases = [
            json!({"json": {"type": "object"}, "disable_any_whitespace": true}),
            json!({"json": {"type": "object"}, "strict": true}),
            json!({"regex": ""}),
            json!({"choice": ["a", "b"]}),
            json!({"grammar": "start: \"a\""}),
            json!({"json_object": true, "whitespace_pattern": " ?"}),
            json!({"structural_tag": {"structures": [], "triggers": []}}),
        ];
        for case in cases {
            assert_eq!(StructuredOutputs::from_json(&case).unwrap().to_json(), case);
        }
        let text = json!({"json": "{\"type\": \"null\"}", "regex": null});
        let read = StructuredOutputs::from_json(&text).unwrap();
        assert_eq!(read.constraint, Constraint::Json(json!({"type": "null"})));
    }

    #[test]
    fn what_is_wrong_with_it_is_said() {
        let mut deep = json!({});
        for _ in 0..MAX_SCHEMA_DEPTH {
            deep = json!({ "items": deep });
        }
        let cases = [
            (json!([]), "expected an object"),
            (json!({}), "expected one of json, regex"),
            (json!({"regex": "a", "choice": ["b"]}), "regex, choice exclude each other"),
            (json!({"json": "{"}), "json: the schema is not JSON"),
            (json!({"json": ""}), "json: the schema is not JSON"),
            (json!({"json": 1}), "json: expected a JSON schema"),
            (json!({ "json": deep }), "json: the schema is nested deeper than 64 levels"),
            (json!({"regex": "a\0"}), "regex: a NUL"),
            (json!({"choice": []}), "choice: expected a list"),
            (json!({"choice": [1]}), "choice: expected a list"),
            (json!({"json_object": false}), "json_object: expected true"),
            (json!({"structural_tag": "["}), "structural_tag: it is not JSON"),
            (json!({"regex": "a", "backend": "x"}), "backend: there is no such field"),
            (json!({"regex": "a", "whitespace_pattern": 1}), "whitespace_pattern: expected"),
        ];
        for (case, message) in cases {
            let found = StructuredOutputs::from_json(&case).unwrap_err();
            assert!(found.starts_with(message), "{case}: {found}");
        }
    }

    #[test]
    fn the_response_format_of_openai_is_a_constraint() {
        let read = |value: Value| StructuredOutputs::from_response_format(&value);
        assert_eq!(read(json!({"type": "text"})), Ok(None));
        let object = StructuredOutputs::new(Constraint::JsonObject);
        assert_eq!(read(json!({"type": "json_object"})), Ok(Some(object)));
        let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true,
            "schema": {"type": "integer"}}});
        let integer = Constraint::Json(json!({"type": "integer"}));
        let strict = StructuredOutputs { strict: true, ..StructuredOutputs::new(integer) };
        assert_eq!(read(schema), Ok(Some(strict)));
        let of_object = json!({"type": "json_object", "schema": {"type": "integer"}});
        let integer = Constraint::Json(json!({"type": "integer"}));
        assert_eq!(read(of_object), Ok(Some(StructuredOutputs::new(integer))));
        assert!(
            read(json!({"type": "json_object", "schema": 7})).unwrap_err().contains("schema: ")
        );
        assert!(read(json!({"type": "json_schema"})).is_err());
        assert!(read(json!({"type": "xml"})).unwrap_err().contains("none of"));
        assert!(read(json!("text")).is_err());
    }
}
