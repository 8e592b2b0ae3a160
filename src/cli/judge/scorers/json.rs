//! JSON in an answer, and whether two values are equal.

use serde_json::Value;

/// The answer as JSON; else the first object or list in it that is whole.
pub fn found(answer: &str) -> Option<Value> {
    let whole = serde_json::from_str(answer.trim()).ok();
    whole.or_else(|| first_within(answer))
}

/// The first object or list that stands in a text and is whole. Values nest no deeper than
/// `serde_json` reads, so that a text of brackets takes linear time.
pub fn first_within(text: &str) -> Option<Value> {
    text.match_indices(['{', '[']).find_map(|(at, _)| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter();
        values.next()?.ok()
    })
}

/// Equal values: fields in any order, numbers by their value.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let is_there = |(name, value): (&String, &Value)| {
                b.get(name).is_some_and(|other| equal(value, other))
            };
            a.len() == b.len() && a.iter().all(is_there)
        }
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_found_in_what_models_write() {
        let cases = [
            ("{\"a\":1}", Some(json!({"a": 1}))),
            (" 5\n", Some(json!(5))),
            ("Here: ```json\n{\"a\": [1, 2]}\n``` and {\"b\":2}", Some(json!({"a": [1, 2]}))),
            ("an {open {\"a\":1} one", Some(json!({"a": 1}))),
            ("[1, 2", None),
            ("{'a': 1}", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(found(text), expected, "{text}");
        }
    }

    #[test]
    fn values_are_equal_by_their_meaning() {
        assert!(equal(&json!({"a": 1, "b": [2]}), &json!({"b": [2.0], "a": 1.0})));
        for (a, b) in [
            (json!({"a": 1}), json!({"a": 1, "b": 2})),
            (json!([1, 2]), json!([2, 1])),
            (json!("1"), json!(1)),
            (json!(null), json!(false)),
        ] {
            assert!(!equal(&a, &b), "{a} {b}");
        }
    }

    #[test]
    fn a_text_of_brackets_takes_no_longer_than_it_is() {
        for text in ["[", "{\"a\":", "{", "[[[],"] {
            assert_eq!(found(&text.repeat(1 << 14)).is_some(), text == "[[[],", "{text}");
        }
    }
}
