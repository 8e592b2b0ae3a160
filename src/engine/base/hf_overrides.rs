//! `HfOverrides`: keys that are laid over config.json (`--hf-overrides`), by vLLM's rules.

use serde_json::{Map, Value};

/// Keys whose objects are configs of their own in transformers.
pub const NESTED_CONFIGS: &[&str] = &[
    "attn_config",
    "audio_config",
    "embd_layer",
    "ffn_config",
    "language_config",
    "llm_config",
    "projector_config",
    "text_config",
    "text_config_dict",
    "vision_config",
    "vision_config_dict",
    "vlm_config",
];

/// Keys laid over config.json before anything of it is read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HfOverrides(Map<String, Value>);

impl HfOverrides {
    /// Of a JSON object.
    ///
    /// # Errors
    /// It is none, or a key has a value of the wrong type; the text says which.
    pub fn parse(json: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let Value::Object(keys) = value else { return Err("expected a JSON object".to_owned()) };
        check(&keys)?;
        Ok(Self(keys))
    }

    /// Whether nothing is laid over.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As JSON, equal for equal keys in another order.
    pub fn text(&self) -> String {
        sorted(&Value::Object(self.0.clone())).to_string()
    }

    /// Whether it gives another `model_type` than `keys` and no `architectures`: the class goes by
    /// the latter.
    pub fn has_type_alone(&self, keys: &Map<String, Value>) -> bool {
        let given = self.0.get(TYPE).filter(|given| !given.is_null());
        given.is_some_and(|given| keys.get(TYPE) != Some(given)) && !self.0.contains_key(CLASSES)
    }

    /// Lays the keys over those of a file.
    pub fn apply(&self, keys: &mut Map<String, Value>) {
        lay_over(keys, &self.0);
    }
}

const TYPE: &str = "model_type";
const CLASSES: &str = "architectures";

fn check(keys: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        let (fits, expected) = match key.as_str() {
            CLASSES => {
                let names = value.as_array().filter(|names| !names.is_empty());
                (names.is_some_and(|names| names.iter().all(Value::is_string)), "a list of strings")
            }
            TYPE => (value.is_string(), "a string"),
            nested if NESTED_CONFIGS.contains(&nested) => (value.is_object(), "an object"),
            _ => (true, ""),
        };
        if !fits {
            return Err(format!("`{key}` should be {expected} or null"));
        }
        if NESTED_CONFIGS.contains(&key.as_str()) {
            check(value.as_object().expect("checked above"))
                .map_err(|text| format!("{key}: {text}"))?;
        }
    }
    Ok(())
}

/// A nested config is changed key by key; null takes a key away; all else is replaced whole.
fn lay_over(keys: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        let nested = NESTED_CONFIGS.contains(&key.as_str());
        match (value, keys.get_mut(key)) {
            (Value::Null, _) => drop(keys.shift_remove(key)),
            (Value::Object(value), Some(Value::Object(keys))) if nested => lay_over(keys, value),
            (Value::Object(value), _) if nested => {
                let mut of_nothing = Map::new();
                lay_over(&mut of_nothing, value);
                keys.insert(key.clone(), Value::Object(of_nothing));
            }
            _ => drop(keys.insert(key.clone(), value.clone())),
        }
    }
}

/// The same with the keys of all objects in order.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Array(list) => list.iter().map(sorted).collect(),
        Value::Object(keys) => {
            let mut keys: Vec<_> = keys.iter().collect();
            keys.sort_by_key(|(key, _)| *key);
            keys.into_iter().map(|(key, value)| (key.clone(), sorted(value))).collect()
        }
        value => value.clone(),
    }
}

/// The flag's value that takes this key of a file away; None: it is in an object that is replaced
/// whole.
pub fn without(key: &str) -> Option<String> {
    let value = match key.split_once('.') {
        None if !key.contains('[') => serde_json::json!({ key: null }),
        Some((nested, key)) if NESTED_CONFIGS.contains(&nested) && !key.contains(['.', '[']) => {
            serde_json::json!({ nested: { key: null } })
        }
        _ => return None,
    };
    Some(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_laid_over_by_vllms_rules() {
        let file = r#"{"a": 1, "rope_parameters": {"x": 1, "y": 2}, "b": [1, 2],
            "text_config": {"a": 1, "b": 2, "rope_parameters": {"x": 1}}}"#;
        for (over, expected) in [
            (r#"{"a": 2, "b": [3]}"#, r#"{"a": 2, "b": [3]}"#),
            (r#"{"rope_parameters": {"y": 3}}"#, r#"{"rope_parameters": {"y": 3}}"#),
            (
                r#"{"text_config": {"a": null, "b": 3, "rope_parameters": {"z": 4}}}"#,
                r#"{"text_config": {"b": 3, "rope_parameters": {"z": 4}}}"#,
            ),
            (r#"{"text_config": null, "new": 1}"#, r#"{"text_config": null, "new": 1}"#),
            (r#"{"vision_config": {"a": null, "b": 1}}"#, r#"{"vision_config": {"b": 1}}"#),
        ] {
            let mut keys = serde_json::from_str(file).unwrap();
            HfOverrides::parse(over).unwrap().apply(&mut keys);
            let mut wanted: Map<String, Value> = serde_json::from_str(file).unwrap();
            wanted.extend(serde_json::from_str::<Map<String, Value>>(expected).unwrap());
            wanted.retain(|_, value| !value.is_null());
            assert_eq!(keys, wanted, "{over}");
        }
    }

    #[test]
    fn what_has_the_wrong_type_is_refused() {
        for (json, expected) in [
            ("", "EOF"),
            ("[]", "a JSON object"),
            (r#"{"a": }"#, "expected value"),
            (r#"{"architectures": "A"}"#, "`architectures` should be a list of strings"),
            (r#"{"architectures": []}"#, "`architectures` should be a list of strings"),
            (r#"{"text_config": {"model_type": 1}}"#, "text_config: `model_type`"),
            (r#"{"vision_config": 1}"#, "`vision_config` should be an object"),
        ] {
            let error = HfOverrides::parse(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn the_order_of_keys_does_not_count() {
        let text = |json| HfOverrides::parse(json).unwrap().text();
        assert_eq!(
            text(r#"{"a": {"c": 1, "b": 2}, "B": 3}"#),
            text(r#"{"B":3,"a":{"b":2,"c":1}}"#)
        );
        assert_ne!(text(r#"{"a": 1}"#), text(r#"{"a": 1.0}"#));
    }
}
