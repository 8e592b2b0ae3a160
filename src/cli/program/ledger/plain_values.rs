//! Fields of a fingerprint as JSON values. In a run and in its journal they are texts, many of them
//! as Rust's `Debug` writes a value: `Some(512)`. In a side file they are what they say: `512`.
//! Side files of old versions have the texts, and are read too.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::fingerprint::Fingerprint;

/// Fields that are texts, whatever they look like: names, hashes, words.
const TEXTS: &[&str] = &[
    "version",
    "model",
    "mmproj",
    "config",
    "checkpoint_format",
    "tokenizer",
    "modules",
    "dtype",
    "kernel_set",
    "chat_template",
    "reasoning_parser",
    "tool_call_parser",
    "format",
    "encoding",
    "delimiter",
    "out_field",
    "served_model_name",
    "judge",
    "task",
];

/// Fields that are a variant of an enum, and in side files of old versions its name in Rust.
const VARIANTS: &[&str] = &[
    "chat",
    "kv_cache_dtype",
    "last_assistant",
    "likelihoods",
    "overflow",
    "quantization",
    "truncation_side",
];

/// What a side file has of a fingerprint.
#[derive(Serialize, Deserialize)]
struct Plain {
    id: String,
    fields: BTreeMap<String, Value>,
}

/// Writes the fields of a fingerprint as values.
///
/// # Errors
/// The serializer's.
pub fn serialize<S: Serializer>(
    fingerprint: &Fingerprint,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let fields = fingerprint.fields.iter().map(|(name, text)| (name.clone(), value(name, text)));
    Plain { id: fingerprint.id.clone(), fields: fields.collect() }.serialize(serializer)
}

/// Reads fields as texts whose values are those that were read.
///
/// # Errors
/// The deserializer's.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fingerprint, D::Error> {
    let Plain { id, fields } = Plain::deserialize(deserializer)?;
    let is_old = fields.values().all(Value::is_string);
    let text = |name: &str, read: Value| match read {
        Value::String(text) if [TEXTS, VARIANTS].iter().any(|names| names.contains(&name)) => text,
        // It would be read as something else.
        Value::String(text) if !is_old && value(name, &text) != Value::String(text.clone()) => {
            Value::String(text).to_string()
        }
        Value::String(text) => text,
        other => other.to_string(),
    };
    let fields = fields.into_iter().map(|(name, read)| {
        let text = text(&name, read);
        (name, text)
    });
    Ok(Fingerprint { id, fields: fields.collect() })
}

/// The value of a field. Different texts with one value are different ways to write it.
pub fn value(name: &str, text: &str) -> Value {
    match name {
        "format" => return text.to_lowercase().into(),
        _ if TEXTS.contains(&name) => return text.into(),
        _ => {}
    }
    let read = serde_json::from_str(text).ok().filter(|read: &Value| match read {
        // A hash may be all digits: a number is one only if nothing of it is lost.
        Value::Number(number) => number.to_string() == text,
        _ => true,
    });
    if let Some(read) = read {
        return read;
    }
    match name {
        "output_format" => output_format(text),
        "structured_outputs" => structured_outputs(text),
        _ => Debugged::read(text).unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

/// `Own Auto npy`: the form of lines, how much they show, and the form of the file.
fn output_format(text: &str) -> Value {
    let mut words = text.split_whitespace().map(|word| Value::String(word.to_lowercase()));
    let names = ["lines", "detail", "file"];
    let fields = names.into_iter().map(|name| (name.to_owned(), words.next().unwrap_or_default()));
    Value::Object(fields.collect())
}

/// `llguidance 1; Some("...")`: who constrains answers, and to what.
fn structured_outputs(text: &str) -> Value {
    let Some((backend, constraint)) = text.split_once("; ") else {
        return Value::String(text.to_owned());
    };
    let constraint = Debugged::read(constraint).unwrap_or_else(|| constraint.into());
    let fields = [("backend", backend.into()), ("constraint", constraint)];
    Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
}

/// A text as Rust's `Debug` writes values, from some place on.
struct Debugged<'a> {
    rest: &'a str,
}

impl<'a> Debugged<'a> {
    /// The value of a text that is nothing else.
    fn read(text: &'a str) -> Option<Value> {
        let mut reader = Self { rest: text };
        let value = reader.value()?;
        reader.rest.is_empty().then_some(value)
    }

    fn take(&mut self, token: &str) -> bool {
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self) -> Option<Value> {
        if self.rest.starts_with('"') {
            return self.string().map(Value::String);
        }
        if self.take("[") {
            return self.list("]").map(Value::Array);
        }
        if self.take("(") {
            return self.list(")").map(Value::Array);
        }
        if self.take("{") {
            return self.fields("}").map(Value::Object);
        }
        let is_of_word = |c: char| c.is_alphanumeric() || "_.+-".contains(c);
        let length = self.rest.find(|c| !is_of_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        let named = |value| Value::Object(Map::from_iter([(hyphenated(word), value)]));
        match word {
            "" => None,
            "None" => Some(Value::Null),
            "Some" if self.take("(") => {
                let value = self.value()?;
                self.take(")").then_some(value)
            }
            _ if self.take("(") => {
                let mut values = self.list(")")?;
                let value = if values.len() == 1 { values.pop()? } else { Value::Array(values) };
                Some(named(value))
            }
            // The name of a struct says nothing that its fields do not.
            _ if self.take(" { ") => self.fields(" }").map(Value::Object),
            _ => Some(self.word(word)),
        }
    }

    /// A number, or the name of a variant.
    fn word(&self, word: &str) -> Value {
        let number = serde_json::from_str::<Value>(word).ok();
        let is_same = |number: &Value| {
            let text = number.to_string();
            number.is_boolean() || text == word
        };
        let number = number.filter(is_same);
        number.unwrap_or_else(|| hyphenated(word).into())
    }

    fn list(&mut self, end: &str) -> Option<Vec<Value>> {
        let mut values = Vec::new();
        while !self.take(end) {
            if !values.is_empty() && !self.take(", ") {
                return None;
            }
            values.push(self.value()?);
        }
        Some(values)
    }

    fn fields(&mut self, end: &str) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        while !self.take(end) {
            if !fields.is_empty() && !self.take(", ") {
                return None;
            }
            let name = match self.value()? {
                Value::String(name) => name,
                name => name.to_string(),
            };
            if !self.take(": ") {
                return None;
            }
            fields.insert(name, self.value()?);
        }
        Some(fields)
    }

    /// A text between quotes, with Rust's escapes.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest.strip_prefix('"')?.chars();
        loop {
            match chars.next()? {
                '"' => break,
                '\\' => text.push(match chars.next()? {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    '0' => '\0',
                    'u' => {
                        let (code, rest) = chars.as_str().strip_prefix('{')?.split_once('}')?;
                        chars = rest.chars();
                        char::from_u32(u32::from_str_radix(code, 16).ok()?)?
                    }
                    other => other,
                }),
                other => text.push(other),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }
}

/// The name of a variant as flags spell it: `TruncateLeft` as `truncate-left`.
fn hyphenated(name: &str) -> String {
    let mut text = String::with_capacity(name.len() + 2);
    for (index, c) in name.char_indices() {
        if index > 0 && c.is_uppercase() {
            text.push('-');
        }
        text.extend(c.to_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_of_debug_are_values() {
        for (name, text, wanted) in [
            ("max_tokens", "Some(512)", json!(512)),
            ("max_tokens", "None", json!(null)),
            ("temperature", "0.7", json!(0.7)),
            ("ignore_eos", "false", json!(false)),
            ("kv_cache_dtype", "Auto", json!("auto")),
            ("overflow", "TruncateLeft", json!("truncate-left")),
            ("quantization", "Some(Int8)", json!("int8")),
            ("format", "Jsonl, Csv", json!("jsonl, csv")),
            ("stop", r#"["a\n\"", "\u{1f}"]"#, json!(["a\n\"", "\u{1f}"])),
            ("system_prompt", r#"Some("None")"#, json!("None")),
            ("logit_bias", "[(5, -1.5)]", json!([[5, -1.5]])),
            ("vectors", "Some(P { a: Some(1), b: T(2) })", json!({"a": 1, "b": {"t": 2}})),
            ("version", "0.1, rows 4", json!("0.1, rows 4")),
            (
                "model",
                "12345678901234567890123456789012",
                json!("12345678901234567890123456789012"),
            ),
            (
                "model",
                "1234567890123456789012345678e012",
                json!("1234567890123456789012345678e012"),
            ),
            ("chat_template", "the model's", json!("the model's")),
            ("out_field", "None", json!("None")),
            ("output_format", "Own Auto", json!({"lines":"own","detail":"auto","file":null})),
            ("output_format", "Own Full npy", json!({"lines":"own","detail":"full","file":"npy"})),
            ("structured_outputs", "x 1; None", json!({"backend":"x 1","constraint":null})),
        ] {
            assert_eq!(value(name, text), wanted, "{text}");
        }
    }

    #[derive(Serialize, Deserialize)]
    struct Side {
        #[serde(with = "super")]
        fingerprint: Fingerprint,
    }

    fn fields(texts: &[(&str, &str)]) -> Fingerprint {
        Fingerprint::new(texts.iter().map(|(n, t)| ((*n).into(), (*t).into())).collect())
    }

    #[test]
    fn what_is_read_of_old_and_new_side_files_is_no_other_run() {
        let texts = [
            ("seed", "0"),
            ("max_tokens", "Some(512)"),
            ("system_prompt", "Some(\"None\")"),
            ("stop", "[\"a\\u{7}\"]"),
            ("output_format", "Own Auto npy"),
            ("chat_template_kwargs", "{\"b\":1,\"a\":2}"),
            ("quantization", "None"),
            ("version", "0.1, rows 4"),
        ];
        let now = fields(&texts);
        let text = serde_json::to_string(&Side { fingerprint: now.clone() }).unwrap();
        assert!(!text.contains("Some(") && !text.contains("Own"), "{text}");
        let new: Side = serde_json::from_str(&text).unwrap();
        let old = json!({ "fingerprint": now });
        let old: Side = serde_json::from_value(old).unwrap();
        for read in [&new.fingerprint, &old.fingerprint] {
            assert!(read.differences(&now).is_empty(), "{:?}", read.differences(&now));
            assert_eq!(read.id, now.id);
            let mut other = texts;
            other[2].1 = "None";
            assert_eq!(read.differences(&fields(&other)), ["system_prompt: None then, null now"]);
            other[2].1 = "Some(\"null\")";
            assert_eq!(read.differences(&fields(&other)), ["system_prompt: None then, null now"]);
        }
        // A side file of a version that named variants as Rust does.
        let plain = json!({"kv_cache_dtype": "Auto", "format": "Jsonl", "max_tokens": 512});
        let before: Side =
            serde_json::from_value(json!({"fingerprint": {"id": "", "fields": plain}})).unwrap();
        let now =
            fields(&[("kv_cache_dtype", "Auto"), ("format", "Jsonl"), ("max_tokens", "Some(512)")]);
        assert!(before.fingerprint.differences(&now).is_empty());
        // Written again it is the same.
        let again = serde_json::to_string(&new).unwrap();
        assert_eq!(again, text);
    }
}
