//! Values of calls that are not JSON, typed by the tool's schema (vLLM's `coerce_to_schema_type`).

use serde_json::Value;

use super::Tool;
use super::json::is_json;
use super::object::string;
use super::python_literal::Reader;

/// Schemas of a function's arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a> {
    properties: Option<&'a serde_json::Map<String, Value>>,
}

impl<'a> Arguments<'a> {
    /// Schemas of the tool with a name. Without one, or without properties, all values are strings.
    pub(super) fn of(tools: &'a [Tool], name: &str) -> Self {
        let tool = tools.iter().find(|tool| tool.name == name);
        Self { properties: tool.and_then(|tool| tool.parameters.get("properties")?.as_object()) }
    }

    /// The JSON text of an argument's value.
    pub(super) fn value(self, argument: &str, text: &str) -> String {
        match self.of_argument(argument) {
            Some(schema) => typed(text, &types(schema)),
            None => string(text),
        }
    }

    /// The same where all that a schema does not call a string is JSON or a literal of Python, if
    /// it can be read so.
    pub(super) fn literal(self, argument: &str, text: &str) -> String {
        let kind = self.of_argument(argument).and_then(|schema| schema.get("type"));
        if kind.and_then(Value::as_str) == Some("string") {
            return string(text);
        }
        let trimmed = text.trim();
        let python = || {
            let mut reader = Reader::new(trimmed);
            reader.value().filter(|_| reader.is_at_end())
        };
        let json = is_json(trimmed).then(|| trimmed.to_owned());
        json.or_else(python).unwrap_or_else(|| string(trimmed))
    }

    /// Whether the argument has a schema.
    pub(super) fn has(self, argument: &str) -> bool {
        self.of_argument(argument).is_some()
    }

    fn of_argument(self, argument: &str) -> Option<&'a Value> {
        self.properties?.get(argument).filter(|schema| schema.is_object())
    }
}

/// All types that a schema allows; `string` where it names none.
fn types(schema: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![schema];
    while let Some(schema) = waiting.pop() {
        let before = found.len();
        let listed = |key: &str| schema.get(key).and_then(Value::as_array).into_iter().flatten();
        found.extend(schema.get("type").and_then(Value::as_str).map(type_name));
        found.extend(listed("type").filter_map(Value::as_str).map(type_name));
        found.extend(listed("enum").map(|value| value_type(value).to_owned()));
        let choices: Vec<&Value> =
            ["anyOf", "oneOf", "allOf"].into_iter().flat_map(listed).collect();
        if found.len() == before && choices.is_empty() {
            found.push("string".to_owned());
        }
        waiting.extend(choices);
    }
    found
}

fn value_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// JSON schema's name of a type that goes by another.
fn type_name(name: &str) -> String {
    let name = name.trim().to_lowercase();
    let known = match name.as_str() {
        "str" | "text" | "varchar" | "char" | "enum" => "string",
        "int" | "int32" | "int64" | "uint" | "uint32" | "uint64" | "long" | "short"
        | "unsigned" => "integer",
        "float" | "float32" | "float64" | "double" => "number",
        "bool" => "boolean",
        "dict" => "object",
        "arr" | "list" | "sequence" => "array",
        other => other,
    };
    known.to_owned()
}

/// The JSON text of a value by the first of its types that it fits, in vLLM's order.
fn typed(text: &str, types: &[String]) -> String {
    let has = |name: &str| types.iter().any(|known| known == name);
    let parsed = || is_json(text).then(|| text.trim().to_owned());
    let tries: [(&str, &dyn Fn() -> Option<String>); 7] = [
        ("null", &|| text.eq_ignore_ascii_case("null").then(|| "null".to_owned())),
        ("integer", &|| integer(text)),
        ("number", &|| number(text)),
        ("boolean", &|| boolean(text)),
        ("object", &parsed),
        ("array", &parsed),
        ("string", &|| Some(string(text))),
    ];
    let typed = tries.iter().filter(|(name, _)| has(name)).find_map(|(_, read)| read());
    typed.or_else(parsed).unwrap_or_else(|| string(text))
}

/// Python's `int(text)`.
fn integer(text: &str) -> Option<String> {
    let text = text.trim();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = without_underscores(digits)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    let digits = digits.trim_start_matches('0');
    is_number.then(|| match digits {
        "" => "0".to_owned(),
        digits => format!("{sign}{digits}"),
    })
}

/// Python's `float(text)`, as an integer where it is one. None for infinities.
fn number(text: &str) -> Option<String> {
    let digits = without_underscores(text.trim())?;
    let is_written = digits.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    let value: f64 = digits.parse().ok().filter(|_| is_written)?;
    match value.is_finite() {
        false => None,
        true if value == 0.0 => Some("0".to_owned()),
        true if value.fract() == 0.0 => Some(format!("{value:.0}")),
        true => serde_json::to_string(&value).ok(),
    }
}

/// Underscores of Python's numbers stand between digits.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_placed =
        |at: usize| bytes[at] != b'_' || (at > 0 && is_digit(at - 1) && is_digit(at + 1));
    (0..bytes.len()).all(is_placed).then(|| text.replace('_', ""))
}

fn boolean(text: &str) -> Option<String> {
    match text.trim().to_lowercase().as_str() {
        "true" | "1" => Some("true".to_owned()),
        "false" | "0" => Some("false".to_owned()),
        _ => None,
    }
}
