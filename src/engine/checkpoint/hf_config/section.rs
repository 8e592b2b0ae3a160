//! `Section`: an object of config.json, read key by key. Each key that is asked for is remembered.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{HfConfig, shown};
use vllm_batch_base::EngineError;

/// The key for which classes of transformers have a default where it is null, too.
const NULL_IS_ABSENT: &str = "rope_parameters";

/// The whole file, or an object in it.
#[derive(Clone, Debug)]
pub struct Section<'a> {
    config: &'a HfConfig,
    keys: &'a Map<String, Value>,
    /// What stands before each key where it is remembered.
    prefix: String,
}

impl<'a> Section<'a> {
    pub(super) fn new(config: &'a HfConfig, keys: &'a Map<String, Value>) -> Self {
        Self { config, keys, prefix: String::new() }
    }

    /// A value, None if absent or null.
    pub fn value(&self, key: &str) -> Option<&'a Value> {
        self.config.read.borrow_mut().insert(format!("{}{key}", self.prefix));
        let is_root = self.prefix.is_empty();
        let default = || self.config.defaults.get().filter(|_| is_root)?.get(key);
        let given = self.keys.get(key).filter(|value| !(value.is_null() && key == NULL_IS_ABSENT));
        given.or_else(default).filter(|value| !value.is_null())
    }

    /// An object, None if absent or null.
    ///
    /// # Errors
    /// It is something else; so for all below.
    pub fn section(&self, key: &str) -> Result<Option<Section<'a>>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let keys = value.as_object().ok_or_else(|| self.wrong(key, "an object", value))?;
        let prefix = format!("{}{key}.", self.prefix);
        Ok(Some(Section { config: self.config, keys, prefix }))
    }

    /// A list of objects, None if absent or null.
    pub fn sections(&self, key: &str) -> Result<Option<Vec<Section<'a>>>, EngineError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let section = |(index, value): (usize, &'a Value)| {
            let keys = value.as_object().ok_or_else(|| self.wrong(key, "a list of objects", value));
            let prefix = format!("{}{key}[{index}].", self.prefix);
            Ok(Section { config: self.config, keys: keys?, prefix })
        };
        list.iter().enumerate().map(section).collect::<Result<_, _>>().map(Some)
    }

    /// A non-negative integer.
    pub fn optional_size(&self, key: &str) -> Result<Option<usize>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value.as_u64() {
            Some(number) if number <= u64::from(u32::MAX) => Ok(Some(number as usize)),
            _ => Err(self.wrong(key, "a count", value)),
        }
    }

    /// A non-negative integer: null is none, an absent key is the default.
    pub fn size_or_none(&self, key: &str, default: usize) -> Result<Option<usize>, EngineError> {
        match self.keys.contains_key(key) {
            true => self.optional_size(key),
            false => Ok(Some(default)),
        }
    }

    /// A positive integer; an absent key and null are the default.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, EngineError> {
        self.size_of_or(&[key], default)
    }

    /// The same under one of several names, as `size_of` has it.
    pub fn size_of_or(&self, keys: &[&str], default: usize) -> Result<usize, EngineError> {
        match keys.iter().any(|key| self.value(key).is_some()) {
            true => self.size_of(keys),
            false => Ok(default),
        }
    }

    /// A positive integer that must be there.
    pub fn size(&self, key: &str) -> Result<usize, EngineError> {
        self.size_of(&[key])
    }

    /// The same under one of several names; where more are there, they agree. Messages have the
    /// first.
    pub fn size_of(&self, keys: &[&str]) -> Result<usize, EngineError> {
        let there: Vec<_> = keys.iter().filter(|key| self.value(key).is_some()).collect();
        let key = there.first().copied().unwrap_or(&keys[0]);
        if let Some(other) = there.iter().find(|other| self.value(other) != self.value(key)) {
            return Err(self.error(format!("`{key}` and `{other}` disagree")));
        }
        match self.optional_size(key)? {
            Some(0) => Err(self.error(format!("`{}{key}` is 0", self.prefix))),
            Some(size) => Ok(size),
            None => Err(self.error(format!("`{}{key}` is missing", self.prefix))),
        }
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = value.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(key, "a number", value))
    }

    /// A number under any of several names. Old files have several of them.
    ///
    /// # Errors
    /// Two of them differ.
    pub fn number_of(&self, keys: &[&str]) -> Result<Option<f64>, EngineError> {
        let mut found: Option<(&str, f64)> = None;
        for key in keys {
            let Some(number) = self.number(key)? else { continue };
            match found {
                Some((first, other)) if other != number => {
                    let text = format!("`{}{first}` and `{key}` disagree", self.prefix);
                    return Err(self.error(text));
                }
                _ => found = Some((key, number)),
            }
        }
        Ok(found.map(|(_, number)| number))
    }

    /// A number above zero that must be there.
    pub fn positive(&self, key: &str) -> Result<f64, EngineError> {
        let number = self.number(key)?.filter(|number| *number > 0.0);
        number.ok_or_else(|| self.error(format!("`{}{key}` should be positive", self.prefix)))
    }

    /// True or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false", value))
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// A list.
    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>, EngineError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, "a list", value))?;
        Ok(Some(list))
    }

    /// A list of strings.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, EngineError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let text = |value: &'a Value| {
            value.as_str().ok_or_else(|| self.wrong(key, "a list of strings", value))
        };
        list.iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// The keys that are there.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.keys.keys().map(String::as_str)
    }

    /// How many keys and strings there are, at any depth.
    pub fn num_strings(&self) -> usize {
        self.keys.values().map(|value| 1 + num_strings(value)).sum()
    }

    /// A list of numbers.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, EngineError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let number = |value: &Value| {
            value.as_f64().ok_or_else(|| self.wrong(key, "a list of numbers", value))
        };
        list.iter().map(number).collect::<Result<_, _>>().map(Some)
    }

    /// A list of the least number and the most, either perhaps infinite, as Python's JSON has it or
    /// transformers 5.
    pub fn bounds(&self, key: &str) -> Result<Option<[f64; 2]>, EngineError> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let number = |value: &Value| {
            let name = value.get("__float__").unwrap_or(value);
            let infinite = (name.as_str() == Some("Infinity")).then_some(f64::INFINITY);
            value.as_f64().or(infinite)
        };
        match list.iter().map(number).collect::<Option<Vec<_>>>().as_deref() {
            Some([least, most]) => Ok(Some([*least, *most])),
            _ => Err(self.wrong(key, "a list of two numbers", &Value::from(list))),
        }
    }

    /// Refuses a key whose value is not what the engine computes. An absent one is.
    pub fn expect(&self, key: &str, expected: impl Into<Value>) -> Result<(), EngineError> {
        let expected = expected.into();
        match self.value(key) {
            Some(found) if *found != expected => Err(self.error(format!(
                "`{}{key}` of {} is not supported; {expected} is",
                self.prefix,
                shown(found)
            ))),
            _ => Ok(()),
        }
    }

    /// Says that keys change nothing here.
    pub fn ignore(&self, keys: &[&str]) {
        let names = keys.iter().map(|key| format!("{}{key}", self.prefix));
        self.config.ignored.borrow_mut().extend(names);
    }

    /// A key with the names of the objects around it.
    pub fn name_of(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// An error of this file.
    pub fn error(&self, text: impl std::fmt::Display) -> EngineError {
        self.config.error(text)
    }

    fn wrong(&self, key: &str, what: &str, found: &Value) -> EngineError {
        self.error(format!("`{}{key}` should be {what}, found {}", self.prefix, shown(found)))
    }
}

fn num_strings(value: &Value) -> usize {
    match value {
        Value::String(_) => 1,
        Value::Array(list) => list.iter().map(num_strings).sum(),
        Value::Object(keys) => keys.values().map(|value| 1 + num_strings(value)).sum(),
        _ => 0,
    }
}

/// Keys with a value that are not in `read`; those of an object count if the object was read.
pub(super) fn unread(
    keys: &Map<String, Value>,
    read: &BTreeSet<String>,
) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    add_unread("", keys, read, &mut found);
    found.into_iter()
}

fn add_unread(
    prefix: &str,
    keys: &Map<String, Value>,
    read: &BTreeSet<String>,
    found: &mut Vec<String>,
) {
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        let name = format!("{prefix}{key}");
        if !add_unread_within(&name, value, read, found) && !read.contains(&name) {
            found.push(name);
        }
    }
}

/// Unread keys of an object, or of the objects of a list; false where nobody read a key in it.
fn add_unread_within(
    name: &str,
    value: &Value,
    read: &BTreeSet<String>,
    found: &mut Vec<String>,
) -> bool {
    let is_opened = |inner: &String| {
        read.range(inner.clone()..).next().is_some_and(|key| key.starts_with(inner))
    };
    match value {
        Value::Object(keys) => {
            let inner = format!("{name}.");
            let is_opened = is_opened(&inner);
            if is_opened {
                add_unread(&inner, keys, read, found);
            }
            is_opened
        }
        Value::Array(list) if is_opened(&format!("{name}[")) => {
            for (index, value) in list.iter().enumerate() {
                let name = format!("{name}[{index}]");
                if !add_unread_within(&name, value, read, found) {
                    found.push(name);
                }
            }
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_may_be_infinite_in_both_spellings() {
        for (text, expected) in [
            (r#"{"a": [0.0, Infinity], "b": "\" Infinity"}"#, Some([0.0, f64::INFINITY])),
            (r#"{"a": [0, {"__float__": "Infinity"}]}"#, Some([0.0, f64::INFINITY])),
            (r#"{"a": [0.5, 2]}"#, Some([0.5, 2.0])),
            (r#"{"a": null}"#, None),
        ] {
            let config = HfConfig::parse(text, "config.json").unwrap();
            assert_eq!(config.root().bounds("a").unwrap(), expected, "{text}");
            let b = config.root().text("b").unwrap();
            assert!(b.is_none_or(|b| b == "\" Infinity"), "{b:?}");
        }
        for text in [r#"{"a": [0.0]}"#, r#"{"a": [0.0, "NaN"]}"#, r#"{"a": [0.0, 1.0, 2.0]}"#] {
            let config = HfConfig::parse(text, "config.json").unwrap();
            let error = config.root().bounds("a").unwrap_err();
            assert!(error.to_string().contains("`a` should be a list of two numbers"), "{error}");
        }
    }
}
