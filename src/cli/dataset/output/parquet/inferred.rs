//! Columns of fields that no schema describes: what values a field has in all rows decides its
//! type. Which row comes first decides nothing but the order of the columns.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::input::fields::JsonFields;

/// Up to it a float has every integer.
const MAX_EXACT: u64 = 1 << 53;

/// What a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A truth.
    Bool,
    /// An integer that a float has too.
    Int,
    /// Another one of 64 bits.
    BigInt,
    /// Another number that a float has.
    Float,
    /// A text.
    Text,
    /// A list of numbers.
    Numbers,
    /// Anything else: an object, a list, a number that is too large.
    Other,
}

/// The type of such a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inferred {
    /// `BOOLEAN`.
    Bool,
    /// `INT64`.
    Int,
    /// `DOUBLE`.
    Float,
    /// `BYTE_ARRAY (STRING)`.
    Text,
    /// A list of `FLOAT`: only the vectors of `embed`.
    Vector,
    /// `BYTE_ARRAY (JSON)`: values as JSON.
    Json,
}

/// A field, and what it has in the rows so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// The row where it stands first, and its place there.
    pub first: (u64, u64),
    /// What its values are; null is nothing.
    pub kinds: BTreeSet<Kind>,
}

/// All such fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Evidence {
    fields: Vec<Seen>,
}

impl Evidence {
    /// Adds the fields of a row, but for those that a schema describes.
    pub fn add_row(&mut self, row: u64, fields: &JsonFields, is_known: impl Fn(&str) -> bool) {
        for (place, field) in fields.iter().enumerate() {
            if is_known(&field.name) {
                continue;
            }
            let kind = kind(field.value);
            let known = self.fields.iter_mut().find(|known| known.name == field.name);
            match known {
                Some(known) => known.kinds.extend(kind),
                None => self.fields.push(Seen {
                    name: field.name.into_owned(),
                    first: (row, place as u64),
                    kinds: kind.into_iter().collect(),
                }),
            }
        }
    }

    /// Adds what other rows of the same run have.
    pub fn merge(&mut self, other: Self) {
        for field in other.fields {
            match self.fields.iter_mut().find(|known| known.name == field.name) {
                Some(known) => {
                    known.first = known.first.min(field.first);
                    known.kinds.extend(field.kinds);
                }
                None => self.fields.push(field),
            }
        }
    }

    /// The fields in the order of their columns: as they come in the rows.
    pub fn in_order(&self) -> Self {
        let mut fields = self.fields.clone();
        fields.sort_by_key(|field| field.first);
        Self { fields }
    }

    /// The fields.
    pub fn fields(&self) -> &[Seen] {
        &self.fields
    }
}

impl Seen {
    /// The type of its column. `is_vector`: lists of numbers are vectors.
    pub fn inferred(&self, is_vector: bool) -> Inferred {
        let only = |kinds: &[Kind]| self.kinds.iter().all(|kind| kinds.contains(kind));
        match () {
            () if only(&[Kind::Text]) => Inferred::Text,
            () if only(&[Kind::Bool]) => Inferred::Bool,
            () if only(&[Kind::Int, Kind::BigInt]) => Inferred::Int,
            () if only(&[Kind::Int, Kind::Float]) => Inferred::Float,
            () if is_vector && only(&[Kind::Numbers]) => Inferred::Vector,
            () => Inferred::Json,
        }
    }
}

/// What a JSON value is; None: null.
fn kind(json: &str) -> Option<Kind> {
    Some(match json.as_bytes()[0] {
        b'n' => return None,
        b't' | b'f' => Kind::Bool,
        // Half a surrogate pair is no text.
        b'"' if json.contains("\\u") && serde_json::from_str::<String>(json).is_err() => {
            Kind::Other
        }
        b'"' => Kind::Text,
        b'[' => match serde_json::from_str::<Vec<f32>>(json) {
            Ok(numbers) if numbers.iter().all(|number| number.is_finite()) => Kind::Numbers,
            _ => Kind::Other,
        },
        b'{' => Kind::Other,
        _ => number_kind(json),
    })
}

fn number_kind(json: &str) -> Kind {
    let is_float = json == "-0" || json.contains(['.', 'e', 'E']);
    match (is_float, json.parse::<i64>(), json.parse::<f64>()) {
        (false, Ok(number), _) if number.unsigned_abs() <= MAX_EXACT => Kind::Int,
        (false, Ok(_), _) => Kind::BigInt,
        (true, _, Ok(number)) if number.is_finite() => Kind::Float,
        _ => Kind::Other,
    }
}

/// A value as a column of JSON has it: one text for one value, so that it is the same whether it
/// comes from a row or from the column of a shard, which may have another type.
pub(super) fn canonical(json: &str) -> String {
    match kind(json) {
        Some(Kind::Text) => match serde_json::from_str::<String>(json) {
            Ok(text) => crate::input::fields::json_string(&text),
            Err(_) => json.to_owned(),
        },
        Some(Kind::Float) => {
            let number: f64 = json.parse().expect("a number, as `kind` says");
            let is_integer = number.fract() == 0.0 && number.abs() <= MAX_EXACT as f64;
            match is_integer && !(number == 0.0 && number.is_sign_negative()) {
                true => (number as i64).to_string(),
                false => serde_json::Value::from(number).to_string(),
            }
        }
        _ => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(rows: &[(u64, &str)]) -> Evidence {
        let mut evidence = Evidence::default();
        for (row, text) in rows {
            let fields = JsonFields::parse((*text).to_owned(), 1).unwrap();
            evidence.add_row(*row, &fields, |name| name == "known");
        }
        evidence
    }

    #[test]
    fn values_of_all_rows_decide_the_type() {
        for (values, wanted) in [
            (&["null"][..], Inferred::Text),
            (&["\"a\"", "null", "\"\\u00e9\""], Inferred::Text),
            (&["true", "false"], Inferred::Bool),
            (&["1", "9007199254740993", "-9223372036854775808"], Inferred::Int),
            (&["1", "0.5", "-0", "1e3"], Inferred::Float),
            (&["9007199254740993", "0.5"], Inferred::Json),
            (&["9223372036854775808"], Inferred::Json),
            (&["1e999"], Inferred::Json),
            (&["\"\\ud800\""], Inferred::Json),
            (&["1", "\"1\""], Inferred::Json),
            (&["[1,2.5]", "[]"], Inferred::Json),
            (&["{}"], Inferred::Json),
        ] {
            for turned in [false, true] {
                let mut rows: Vec<(u64, String)> =
                    (0..).zip(values.iter().map(|v| format!("{{\"a\":{v}}}"))).collect();
                if turned {
                    rows.reverse();
                }
                let rows: Vec<(u64, &str)> =
                    rows.iter().map(|(i, row)| (*i, row.as_str())).collect();
                assert_eq!(evidence(&rows).fields()[0].inferred(false), wanted, "{values:?}");
            }
        }
        let vectors = evidence(&[(0, "{\"a\":[1,2.5]}"), (1, "{\"a\":null}")]);
        assert_eq!(vectors.fields()[0].inferred(true), Inferred::Vector);
    }

    #[test]
    fn evidence_of_shards_is_that_of_one_run() {
        let rows = [
            (0, "{\"a\":1,\"known\":2}"),
            (1, "{\"c\":true,\"b\":null}"),
            (2, "{\"b\":\"x\",\"a\":0.5}"),
        ];
        let one = evidence(&rows).in_order();
        let mut merged = evidence(&[rows[1]]);
        merged.merge(evidence(&[rows[0], rows[2]]));
        assert_eq!(merged.in_order(), one);
        let names: Vec<_> = one.fields().iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "b"]);
    }

    #[test]
    fn one_value_has_one_text() {
        for (json, text) in [
            ("3.0", "3"),
            ("3", "3"),
            ("1e2", "100"),
            ("-0", "-0.0"),
            ("0.10", "0.1"),
            ("9007199254740993", "9007199254740993"),
            ("\"\\u00e9\\/\"", "\"\u{e9}/\""),
            ("\"\\ud800\"", "\"\\ud800\""),
            ("[ 1.0 ]", "[ 1.0 ]"),
        ] {
            assert_eq!(canonical(json), text);
            assert_eq!(canonical(text), text, "again");
        }
    }
}
