//! JSON Schema: whether a value is as the expected schema says. What the validator does not know,
//! and what takes more work than it may, is refused by name.

use std::sync::Arc;

use serde_json::Value;

use crate::judge::work::TooMuch;
use vllm_batch_base::deep_stack::DeepStack;
use vllm_batch_text::json_schema::{Validator, Verdict};

/// A schema that compiles.
#[derive(Debug)]
pub struct Schema(Validator);

impl Schema {
    /// Of a row.
    ///
    /// # Errors
    /// It is no schema, a reference leads nowhere, or it may take too much work.
    pub fn new(root: Value, stack: &Arc<DeepStack>) -> Result<Self, String> {
        if !root.is_object() && !root.is_boolean() {
            return Err(format!("{root} is no schema"));
        }
        Validator::new(&root, stack).map(Self)
    }

    /// Whether a value is as the schema says.
    ///
    /// # Errors
    /// To find it takes more steps than it may.
    pub fn holds(&self, value: &Value) -> Result<bool, TooMuch> {
        match self.0.judge(value.clone()) {
            Verdict::Valid => Ok(true),
            Verdict::Invalid(_) => Ok(false),
            Verdict::TooMuch(what) => Err(TooMuch(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(root: Value) -> Result<Schema, String> {
        Schema::new(root, &Arc::default())
    }

    /// Schemas and values of the tests' file, judged by Python's `jsonschema`.
    #[test]
    fn values_are_valid_as_by_another_validator() {
        let text = include_str!("../../../../../testdata/eval_vectors.json");
        let vectors: Value = serde_json::from_str(text).unwrap();
        for vector in vectors["schemas"].as_array().unwrap() {
            let asked = schema(vector["schema"].clone()).unwrap();
            for (value, valid) in
                vector["values"].as_array().unwrap().iter().map(|pair| (&pair[0], &pair[1]))
            {
                assert_eq!(
                    asked.holds(value).map(Value::from),
                    Ok(valid.clone()),
                    "{} {value}",
                    vector["schema"]
                );
            }
        }
    }

    /// Values by Python's jsonschema 4.26, each the first valid and the second not.
    #[test]
    fn what_the_other_judge_refused_is_looked_at() {
        let cases = [
            (
                json!({"properties": {"a": {}}, "unevaluatedProperties": false}),
                r#"{"a":1}"#,
                r#"{"b":1}"#,
            ),
            (json!({"prefixItems": [{}], "unevaluatedItems": false}), "[1]", "[1,2]"),
            (json!({"dependentRequired": {"a": ["b"]}}), r#"{"a":1,"b":2}"#, r#"{"a":1}"#),
            (
                json!({"$schema": "http://json-schema.org/draft-07/schema#",
                    "dependencies": {"a": ["b"]}}),
                r#"{"b":1}"#,
                r#"{"a":1}"#,
            ),
            (json!({"$ref": "#x", "$defs": {"x": {"$anchor": "x", "type": "null"}}}), "null", "1"),
            (
                json!({"$id": "https://a.b/c", "$ref": "d", "$defs": {"x": {"$id": "d", "const": 1}}}),
                "1.0",
                "2",
            ),
            (
                json!({"$dynamicAnchor": "n", "type": "object",
                    "additionalProperties": {"$dynamicRef": "#n"}}),
                r#"{"a":{"b":{}}}"#,
                r#"{"a":{"b":1}}"#,
            ),
            (
                json!({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1,
                    "exclusiveMinimum": true}),
                "2",
                "1",
            ),
            (json!({"pattern": "^(a($|/))*$"}), "\"a/a\"", "\"aa\""),
            (json!({"uniqueItems": true}), "[1,2]", "[1,1.0]"),
            (json!({"multipleOf": 0.01}), "4.35", "4.351"),
            (json!({"format": "email", "type": "string"}), "\"no mail\"", "1"),
        ];
        for (root, valid, wrong) in cases {
            let asked = schema(root.clone()).unwrap();
            let holds = |text: &str| asked.holds(&serde_json::from_str(text).unwrap()).unwrap();
            assert!(holds(valid) && !holds(wrong), "{root}");
        }
    }

    #[test]
    fn what_is_not_looked_at_is_refused() {
        let two = json!({"$dynamicRef": "#a", "$defs": {"x": {"$dynamicAnchor": "a"},
            "y": {"$id": "y", "$dynamicAnchor": "a"}}});
        let cases = [
            (json!({"type": "text"}), "/type"),
            (json!({"minimum": "1"}), "/minimum"),
            (json!({"maxItems": -1}), "/maxItems"),
            (json!({"$ref": "#/$defs/a"}), "`$ref` leads nowhere: #/$defs/a"),
            (json!({"$ref": "https://a.b/c"}), "https://a.b/c"),
            (json!({"pattern": "a(?=b)c"}), "/pattern"),
            (json!({"pattern": r"(\w{1,900}x){1,900}"}), "states"),
            (json!({"patternProperties": {"(a{0,1000}){0,1000}": {}}}), "states"),
            (json!({"items": [{}]}), "/items"),
            (json!(5), "5 is no schema"),
            (two, "`$dynamicRef` to #a may lead to several places"),
        ];
        for (root, part) in cases {
            let error = schema(root.clone()).expect_err(&root.to_string());
            assert!(error.contains(part), "{root}: {error}");
        }
    }

    /// Each layer asks the one below twice: 2^40 steps, whatever asks, and however it refers.
    #[test]
    fn bombs_are_refused_by_counts() {
        for keyword in ["allOf", "anyOf", "oneOf"] {
            let layer = |at: usize| {
                let below = json!({"$ref": format!("#/$defs/l{}", at + 1)});
                (format!("l{at}"), json!({keyword: [below, below]}))
            };
            let mut layers: serde_json::Map<String, Value> = (0..40).map(layer).collect();
            layers.insert("l40".to_owned(), json!({}));
            let bomb = json!({"$ref": "#/$defs/l0", "$defs": layers});
            assert!(schema(bomb).unwrap_err().contains("steps"), "{keyword}");
        }
        for endless in [
            json!({"$ref": "#"}),
            json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
            json!({"not": {"$ref": "#"}}),
            json!({"$id": "http://a/", "if": {"$ref": "http://a/"}}),
            json!({"$dynamicAnchor": "a", "allOf": [{"$dynamicRef": "#a"}]}),
        ] {
            assert!(schema(endless).unwrap_err().contains("refers to itself"));
        }
    }

    /// Schemas that are fine, and values that take too many steps by them.
    #[test]
    fn values_that_take_too_much_work_have_no_verdict() {
        let doubled = json!({"$defs": {"l": {"items": {"allOf": [{"$ref": "#/$defs/l"},
            {"$ref": "#/$defs/l"}]}}}, "$ref": "#/$defs/l"});
        let nested = |levels: usize| {
            let text = "[".repeat(levels) + &"]".repeat(levels);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        let doubled = schema(doubled).unwrap();
        assert_eq!(doubled.holds(&nested(10)), Ok(true));
        assert!(doubled.holds(&nested(60)).is_err());
        let looks_back = json!({"$defs": {"l": {"allOf": [{"properties": {"a": {"$ref": "#/$defs/l"}},
            "unevaluatedProperties": false}], "unevaluatedProperties": false}}, "$ref": "#/$defs/l"});
        let looks_back = schema(looks_back).unwrap();
        let deep = |levels: usize| {
            let text = "{\"a\":".repeat(levels) + "{}" + &"}".repeat(levels);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert_eq!(looks_back.holds(&deep(3)), Ok(true));
        let _ = looks_back.holds(&deep(120));
        let pattern = schema(json!({"pattern": "a{0,1000}b"})).unwrap();
        let long = json!("a".repeat(1_000_000));
        for quick in ["[a-z]*b", "a+b", "(a*)*b", "a*a*a*a*b"] {
            let asked = schema(json!({ "pattern": quick })).unwrap();
            assert_eq!(asked.holds(&long), Ok(false), "{quick}");
        }
        assert_eq!(pattern.holds(&json!("aab")), Ok(true));
        assert!(pattern.holds(&json!("a".repeat(5_000_000))).is_err());
    }
}
