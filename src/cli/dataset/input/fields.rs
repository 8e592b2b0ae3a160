//! `JsonFields`: the fields of a JSON row, byte for byte, so that what is not ours passes through
//! untouched.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::batch_line::BatchLine;
use super::row_error::{RowError, code};

/// Deepest nesting of a row. serde_json skips values without recursion and would accept any depth,
/// but readers of our output may not.
pub const MAX_DEPTH: usize = 128;

/// Fields of a row: each takes more memory than the shortest has bytes.
const MAX_FIELDS: usize = 1 << 16;

/// One field: where its key (quotes included) and its value are in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    key: Range<usize>,
    value: Range<usize>,
    /// The key has escapes. Kept, as a row is asked for a hundred names that it has not.
    is_escaped: bool,
}

/// A JSON object: its text, and where its fields are. Duplicate keys are all kept; the last one
/// counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonFields {
    text: String,
    spans: Vec<Span>,
}

/// One field of a [`JsonFields`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name, unescaped.
    pub name: Cow<'a, str>,
    /// The name as it was written, with quotes.
    pub raw_name: &'a str,
    /// The JSON text of the value.
    pub value: &'a str,
}

impl JsonFields {
    /// Finds the fields of a line that holds one JSON object. Gives the line back if it does not.
    ///
    /// # Errors
    /// The line is not JSON, not an object, or nested too deeply.
    pub fn parse(text: String, line: u64) -> Result<Self, Box<(String, RowError)>> {
        let spans = check_depth(&text, line).and_then(|()| {
            let entries: Entries<'_> = serde_json::from_str(&text)
                .map_err(|error| RowError::bad_json(&error, &text, line))?;
            let span_of = |raw: &RawValue| {
                let start = raw.get().as_ptr() as usize - text.as_ptr() as usize;
                start..start + raw.get().len()
            };
            let spans = entries.0.iter().map(|(key, value)| Span {
                is_escaped: key.get().contains('\\'),
                key: span_of(key),
                value: span_of(value),
            });
            Ok(spans.collect())
        });
        match spans {
            Ok(spans) => Ok(Self { text, spans }),
            Err(error) => Err(Box::new((text, error))),
        }
    }

    /// An object of given fields: names and the JSON text of their values.
    pub fn from_pairs(pairs: &[(&str, &str)]) -> Self {
        let mut text = String::from("{");
        let mut spans = Vec::with_capacity(pairs.len());
        for (name, value) in pairs {
            if text.len() > 1 {
                text.push(',');
            }
            let start = text.len();
            text.push_str(&json_string(name));
            let key = start..text.len();
            text.push(':');
            let start = text.len();
            text.push_str(value);
            let is_escaped = text[key.clone()].contains('\\');
            spans.push(Span { key, value: start..text.len(), is_escaped });
        }
        text.push('}');
        Self { text, spans }
    }

    /// Bytes that it takes in memory beside its text.
    pub fn num_bytes_beside(&self) -> usize {
        self.spans.len() * size_of::<Span>()
    }

    /// The object as it was written, or put together.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The same, kept.
    pub fn into_text(self) -> String {
        self.text
    }

    /// The fields in their order.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.spans.iter().map(|span| {
            let raw_name = &self.text[span.key.clone()];
            Field { name: self.name(span), raw_name, value: &self.text[span.value.clone()] }
        })
    }

    /// The same without the fields of which a test says so.
    pub fn without(&self, is_left_out: impl Fn(&str) -> bool) -> Cow<'_, Self> {
        if !self.spans.iter().any(|span| is_left_out(&self.name(span))) {
            return Cow::Borrowed(self);
        }
        let kept = self.spans.iter().filter(|span| !is_left_out(&self.name(span)));
        Cow::Owned(Self { spans: kept.cloned().collect(), text: self.text.clone() })
    }

    /// The JSON text of a field's value. Of duplicates the last counts, as in vLLM and most
    /// readers.
    pub fn get(&self, name: &str) -> Option<&str> {
        // With its quotes. Nearly every name is told apart by it.
        let length = name.len() + 2;
        let may_be = |span: &&Span| span.is_escaped || span.key.len() == length;
        let span = self.spans.iter().rev().filter(may_be).find(|span| self.name(span) == name)?;
        Some(&self.text[span.value.clone()])
    }

    fn name(&self, span: &Span) -> Cow<'_, str> {
        unescaped(&self.text[span.key.clone()], span.is_escaped)
    }

    /// The JSON text of a field of an object inside a row; None: it has none of the name. Of
    /// duplicates the last counts.
    pub fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
        let entries: Entries<'_> = serde_json::from_str(object).ok()?;
        let is_it = |key: &RawValue| unescaped(key.get(), key.get().contains('\\')) == name;
        entries.0.iter().rev().find(|(key, _)| is_it(key)).map(|(_, value)| value.get())
    }
}

/// A name without quotes and escapes. One that is no valid text (a lone surrogate) stays as
/// written.
fn unescaped(raw_name: &str, is_escaped: bool) -> Cow<'_, str> {
    let inner = &raw_name[1..raw_name.len() - 1];
    match is_escaped {
        true => serde_json::from_str(raw_name).map_or(Cow::Borrowed(inner), Cow::Owned),
        false => Cow::Borrowed(inner),
    }
}

/// The JSON text of a string.
pub fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Refuses a line whose brackets nest deeper than [`MAX_DEPTH`].
///
/// # Errors
/// It does; the column is that of the bracket.
pub fn check_depth(text: &str, line: u64) -> Result<(), RowError> {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} levels");
            return Err(RowError::new(code::BAD_JSON, line, message).at(text, index));
        }
    }
    Ok(())
}

/// The entries of an object as they stand in the text, duplicates included.
struct Entries<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;
        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Vec<(&'de RawValue, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(entry) = map.next_entry()? {
                    if entries.len() == MAX_FIELDS {
                        let text = format!("the row has more than {MAX_FIELDS} fields");
                        return Err(serde::de::Error::custom(text));
                    }
                    entries.push(entry);
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(EntriesVisitor).map(Entries)
    }
}

/// Part of the input row that appears in the output row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passthrough {
    /// The fields of a JSON row. Rows without names (text lines, bare strings) become `prompt`, and
    /// unreadable ones `line` and `input`.
    Json(JsonFields),
    /// The cells of a CSV row.
    Cells {
        /// Column names, the same for all rows.
        names: Arc<[String]>,
        /// As many as names.
        cells: Vec<String>,
    },
    /// Name and ids, no fields: for a row that becomes a line of a batch API.
    Batch(BatchLine),
}

impl Passthrough {
    /// Bytes that it takes in memory beside the text of its row.
    pub fn num_bytes_beside(&self) -> usize {
        match self {
            Passthrough::Json(fields) => fields.num_bytes_beside(),
            Passthrough::Cells { .. } | Passthrough::Batch(_) => 0,
        }
    }
}
