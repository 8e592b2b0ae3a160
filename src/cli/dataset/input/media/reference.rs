//! `Reference`: what a row says of an image or a recording.

use serde_json::Value;

use crate::input::base64;
use vllm_batch_media::{MediaKind, Samples};

/// What a row says of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// A path, a URL, a `data:` URI, or base64 where it can be nothing else.
    Text(String),
    /// A path, a URL or a `data:` URI.
    Path(String),
    /// base64.
    Base64(String),
    /// A PDF: base64, a `data:` URI or a URL.
    Document(String),
}

/// A medium of a row, and its place there as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What it is.
    pub kind: MediaKind,
    /// The place.
    pub place: String,
    /// What is said of it.
    pub reference: Reference,
}

/// What a value must be.
pub(in crate::input) const EXPECTED: &str =
    "a path, a data: URI, base64 or an object with `bytes` and `path`";

impl Reference {
    /// That of a value: a text, or an object as the hub's files have it. None: there is nothing.
    ///
    /// # Errors
    /// In words, it is none of these.
    pub(in crate::input) fn of(kind: MediaKind, value: &Value) -> Result<Option<Self>, String> {
        if kind == MediaKind::Sound && value.get("array").is_some_and(Value::is_array) {
            return of_samples(value).map(|wav| Some(Reference::Base64(base64::encode(&wav))));
        }
        let given = |name: &str| value.get(name).filter(|value| !is_nothing(value));
        let text = |name: &str| match given(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("`{name}` is no text")),
        };
        match value {
            value if is_nothing(value) => Ok(None),
            Value::String(text) => Ok(Some(Reference::Text(text.clone()))),
            // Bytes win: their path is what the file was called elsewhere.
            Value::Object(_) => match (text("bytes")?, text("path")?, text("url")?) {
                (Some(bytes), ..) => Ok(Some(Reference::Base64(bytes))),
                (None, Some(path), _) => Ok(Some(Reference::Path(path))),
                (None, None, Some(url)) => Ok(Some(Reference::Text(url))),
                (None, None, None) if has_only_nulls(value) => Ok(None),
                (None, None, None) => Err(format!("expected {EXPECTED}")),
            },
            _ => Err(format!("expected {EXPECTED}")),
        }
    }
}

/// The WAV of samples that a row has as numbers, as `datasets` decodes them.
fn of_samples(value: &Value) -> Result<Vec<u8>, String> {
    let rate = value["sampling_rate"].as_u64().and_then(|rate| u32::try_from(rate).ok());
    let rate = rate
        .filter(|rate| *rate > 0)
        .ok_or("`array` has no `sampling_rate` beside it that is a number")?;
    let samples = value["array"].as_array().expect("it is one");
    let value = |sample: &Value| sample.as_f64().map(|sample| sample as f32);
    let values: Option<Vec<f32>> = samples.iter().map(value).collect();
    let samples = Samples::new(rate, values.ok_or("`array` is no list of numbers")?);
    samples.to_wav().ok_or_else(|| "`array` is too long".to_owned())
}

/// Whether a value says nothing.
pub(in crate::input) fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Whether an object is what the hub's files have in place of a medium.
fn has_only_nulls(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.values().all(is_nothing))
}

impl Named {
    /// The name of its file, where it has one.
    pub(in crate::input) fn file_name(&self) -> Option<&str> {
        let text = match &self.reference {
            Reference::Text(text) | Reference::Path(text) if text.len() <= super::MAX_PATH => text,
            _ => return None,
        };
        let path = match super::scheme(text) {
            Some((scheme, _)) if scheme.eq_ignore_ascii_case("data") => return None,
            Some((_, path)) => path.split(['?', '#']).next().unwrap_or_default(),
            None => text,
        };
        path.rsplit('/').next().filter(|name| name.contains('.'))
    }

    /// The URL that it may be fetched from.
    pub(in crate::input) fn url(&self) -> Option<String> {
        match &self.reference {
            Reference::Text(text) | Reference::Path(text) | Reference::Document(text)
                if super::is_web(text) =>
            {
                Some(text.clone())
            }
            _ => None,
        }
    }
}
