//! Integers of a row that JSON values have no room for: on their way to the chat template they are
//! texts with a mark.

use minijinja::Value as Jinja;
use serde_json::Value;

use super::python::number;

/// Private to this program: before the digits of an integer. A text of a row that begins with it
/// and goes on with digits alone would be one.
const MARK: char = '\u{F0002}';

/// Integers with fewer digits have room.
const MIN_DIGITS: usize = 19;

/// The value of a JSON text, with all digits of its integers.
///
/// # Errors
/// It is no JSON.
pub fn json_with_integers(text: &str) -> serde_json::Result<Value> {
    match marked(text) {
        Some(marked) => {
            // What is wrong is said of the text as it is.
            serde_json::from_str(&marked).or_else(|_| serde_json::from_str(text))
        }
        None => serde_json::from_str(text),
    }
}

/// The text with large integers as strings; None if it has none.
fn marked(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    let mut in_string = false;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => at += 1,
            b'"' => in_string = !in_string,
            b'-' | b'0'..=b'9' if !in_string => {
                let is_part =
                    |byte: &u8| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9');
                let len = bytes[at..].iter().take_while(|byte| is_part(byte)).count();
                let number = &text[at..at + len];
                if is_large_integer(number) {
                    out.push_str(&text[copied..at]);
                    out.push_str(&format!("\"{MARK}{number}\""));
                    copied = at + len;
                }
                at += len - 1;
            }
            _ => {}
        }
        at += 1;
    }
    (copied > 0).then(|| out + &text[copied..])
}

/// Whether a number of JSON is an integer of more than 64 bits.
fn is_large_integer(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.len() >= MIN_DIGITS
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
        && number.parse::<i64>().is_err()
        && number.parse::<u64>().is_err()
}

/// Whether a text is a marked integer.
pub(super) fn is_large(text: &str) -> bool {
    text.strip_prefix(MARK).is_some_and(is_large_integer)
}

/// The integer of a marked text.
pub(super) fn value(text: &str) -> Jinja {
    let digits = text.trim_start_matches(MARK);
    let int = number::parse_int(digits, 10).and_then(|int| number::value(int).ok());
    // Python refuses integers of so many digits in JSON; a float is written as without an end.
    int.unwrap_or_else(|| Jinja::from(digits.parse().unwrap_or(f64::INFINITY)))
}

/// The same with its marked integers as the floats that JSON values have for them: for fields that
/// are no business of the template.
pub fn without_marks(value: &mut Value) {
    match value {
        Value::String(text) if is_large(text) => {
            let float = text.trim_start_matches(MARK).parse::<f64>().unwrap_or(f64::MAX);
            *value = float.into();
        }
        Value::Array(items) => items.iter_mut().for_each(without_marks),
        Value::Object(fields) => fields.values_mut().for_each(without_marks),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_integers_are_marked() {
        let large =
            "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        let text = format!(
            r#"{{"a": [{large}, -{large}, 18446744073709551615, 1{large}.0, 1e400],
            "b\\": "{large} \" {large}", "c": 18446744073709551616}}"#
        )
        .replace("1e400", "1e40");
        let value = json_with_integers(&text).unwrap();
        assert_eq!(value["a"][0], format!("{MARK}{large}"));
        assert_eq!(value["a"][1], format!("{MARK}-{large}"));
        assert_eq!(value["a"][2], u64::MAX);
        assert!(value["a"][3].is_f64() && value["a"][4].is_f64());
        assert_eq!(value["b\\"], format!("{large} \" {large}"));
        assert!(is_large(value["c"].as_str().unwrap()) && !is_large("18446744073709551616"));
        let mut plain = value;
        without_marks(&mut plain);
        assert!(plain["a"][0].is_f64() && plain["c"].is_f64());
        assert!(
            json_with_integers("[1,").is_err() && json_with_integers(&format!("[{large}")).is_err()
        );
    }
}
