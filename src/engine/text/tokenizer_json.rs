//! `TokenizerJson`: a `tokenizer.json` whose small parts are values, and whose vocabulary and
//! merges stay text where nothing in them has to be changed.
//!
//! These two are nearly all of the file. As values they would be taken apart, rewritten and put
//! together again only for the tokenizers crate to take them apart once more.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::tokenizer_limits::{self, MAX_VOCAB_SIZE};

/// A `tokenizer.json`.
pub(super) struct TokenizerJson<'a> {
    /// All of it; without what `bulk` has, where that is there.
    pub value: Value,
    bulk: Option<Bulk<'a>>,
}

/// `model.vocab` and `model.merges`, as the file spells them.
struct Bulk<'a> {
    vocab: Cow<'a, RawValue>,
    merges: Option<&'a RawValue>,
    /// Entries of `vocab`.
    ids: Vec<(Cow<'a, str>, u32)>,
}

impl<'a> TokenizerJson<'a> {
    /// All of it as a value.
    pub(crate) fn whole(value: Value) -> Self {
        Self { value, bulk: None }
    }

    /// With its vocabulary and merges as text. None for a file that is wrong, or spelled so that
    /// something in them would have to be changed.
    pub(crate) fn outline(file: &'a [u8]) -> Option<Self> {
        let Outline { value, vocab, merges } =
            serde_json::from_str(std::str::from_utf8(file).ok()?).ok()?;
        // The second part of a merge is then checked for it.
        let prefix = value["model"]["continuing_subword_prefix"].as_str().unwrap_or_default();
        // Old files have "a b" for ["a", "b"].
        let has_pairs = |merges: &RawValue| {
            let inner = merges.get().strip_prefix('[').unwrap_or_default().trim_start();
            inner.starts_with(['[', ']'])
        };
        if !prefix.is_empty() || !merges.is_none_or(has_pairs) {
            return None;
        }
        let vocab = vocab?;
        let Ids(ids) = serde_json::from_str(vocab.get()).ok()?;
        Some(Self { value, bulk: Some(Bulk { vocab: Cow::Borrowed(vocab), merges, ids }) })
    }

    /// Whether the vocabulary is no part of `value`.
    pub(crate) fn is_outline(&self) -> bool {
        self.bulk.is_some()
    }

    /// Id of a token in `added_tokens` or in the model's vocabulary (Unigram's is a list of pairs).
    pub(crate) fn id_of(&self, token: &str) -> Option<u32> {
        let added = self.value["added_tokens"].as_array().into_iter().flatten();
        let id = match added.into_iter().find(|t| t["content"] == token) {
            Some(added) => added["id"].as_u64(),
            None => match (&self.bulk, &self.value["model"]["vocab"]) {
                (Some(bulk), _) => return bulk.id_of(token),
                (None, Value::Object(vocab)) => vocab.get(token)?.as_u64(),
                (None, Value::Array(pieces)) => {
                    pieces.iter().position(|p| p[0] == token).map(|i| i as u64)
                }
                _ => None,
            },
        };
        u32::try_from(id?).ok()
    }

    /// The token of an id, found as `id_of` finds it.
    pub(crate) fn token_of(&self, id: u64) -> Option<String> {
        let mut added = self.value["added_tokens"].as_array().into_iter().flatten();
        if let Some(token) = added.find(|t| t["id"] == id) {
            return content(token);
        }
        match (&self.bulk, &self.value["model"]["vocab"]) {
            (Some(bulk), _) => {
                let id = u32::try_from(id).ok()?;
                let mut of_id = bulk.ids.iter().filter(|(_, of)| *of == id);
                of_id.find(|(token, _)| bulk.id_of(token) == Some(id)).map(|(t, _)| t.to_string())
            }
            (None, Value::Object(vocab)) => {
                vocab.iter().find(|(_, v)| **v == id).map(|(t, _)| t.clone())
            }
            (None, Value::Array(pieces)) => {
                pieces.get(usize::try_from(id).ok()?).and_then(|p| content(&p[0]))
            }
            _ => None,
        }
    }

    /// Shows all tokens of a model whose vocabulary is an object, with their ids.
    pub(crate) fn each_model_token(&self, mut show: impl FnMut(&str, u32)) {
        let bulk = self.bulk.iter().flat_map(|bulk| &bulk.ids);
        bulk.for_each(|(token, id)| show(token, *id));
        let vocab = self.value["model"]["vocab"].as_object().into_iter().flatten();
        for (token, id) in vocab {
            if let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                show(token, id);
            }
        }
    }

    /// Puts tokens into a vocabulary that is an object, if they are not there.
    pub(crate) fn add_to_vocabulary(&mut self, tokens: Vec<(String, u32)>) -> Result<(), String> {
        let Some(bulk) = &mut self.bulk else {
            let vocab = self.value["model"]["vocab"].as_object_mut();
            let vocab = vocab.ok_or("`vocab` is not an object")?;
            for (token, id) in tokens {
                vocab.entry(token).or_insert(id.into());
            }
            return Ok(());
        };
        let known: HashSet<&str> = bulk.ids.iter().map(|(token, _)| token.as_ref()).collect();
        let mut new = Map::new();
        for (token, id) in tokens.into_iter().filter(|(token, _)| !known.contains(token.as_str())) {
            new.entry(token).or_insert(id.into());
        }
        let written = serde_json::to_string(&new).map_err(|error| error.to_string())?;
        let old = bulk.vocab.get().trim_end().trim_end_matches('}');
        let comma = if bulk.ids.is_empty() || new.is_empty() { "" } else { "," };
        let text = format!("{old}{comma}{}", &written[1..]);
        bulk.ids.extend(new.into_iter().filter_map(|(token, id)| {
            Some((Cow::Owned(token), u32::try_from(id.as_u64()?).ok()?))
        }));
        bulk.vocab = Cow::Owned(RawValue::from_string(text).map_err(|error| error.to_string())?);
        Ok(())
    }

    /// The largest token id; None if it has no tokens.
    pub(crate) fn largest_id(&self) -> Option<u64> {
        let ids = self.bulk.iter().flat_map(|bulk| &bulk.ids).map(|(_, id)| u64::from(*id));
        ids.max().max(tokenizer_limits::largest_id(&self.value))
    }
}

impl Bulk<'_> {
    /// Id of a token; of two tokens of one name the last counts.
    fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.iter().rev().find(|(name, _)| *name == token).map(|(_, id)| *id)
    }
}

/// A token is written as `"<s>"` or as `{"content": "<s>", ..}`; null and "" are none.
pub(super) fn content(token: &Value) -> Option<String> {
    let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
    (!text.is_empty()).then(|| text.to_string())
}

impl Serialize for TokenizerJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (Some(bulk), Some(root)) = (&self.bulk, self.value.as_object()) else {
            return self.value.serialize(serializer);
        };
        let mut map = serializer.serialize_map(Some(root.len()))?;
        for (key, value) in root {
            match value.as_object().filter(|_| key == "model") {
                Some(model) => map.serialize_entry(key, &Model { model, bulk })?,
                None => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

/// The model with its vocabulary and merges in their places.
struct Model<'a> {
    model: &'a Map<String, Value>,
    bulk: &'a Bulk<'a>,
}

impl Serialize for Model<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.model.len()))?;
        for (key, value) in self.model {
            match (key.as_str(), self.bulk.merges) {
                ("vocab", _) => map.serialize_entry(key, &self.bulk.vocab)?,
                ("merges", Some(merges)) => map.serialize_entry(key, merges)?,
                _ => map.serialize_entry(key, value)?,
            }
        }
        map.end()
    }
}

/// A file with empty places for the vocabulary and the merges, and what belongs there.
struct Outline<'a> {
    value: Value,
    vocab: Option<&'a RawValue>,
    merges: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Outline<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut outline = Outline { value: Value::Null, vocab: None, merges: None };
        outline.value =
            deserializer.deserialize_map(Parts { of: &mut outline, is_model: false })?;
        Ok(outline)
    }
}

/// Reads an object: the file's, or its model's.
struct Parts<'o, 'a> {
    of: &'o mut Outline<'a>,
    is_model: bool,
}

impl<'de: 'a, 'a> DeserializeSeed<'de> for Parts<'_, 'a> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for Parts<'_, 'a> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = match (self.is_model, key.as_str()) {
                (false, "model") => {
                    entries.next_value_seed(Parts { of: &mut *self.of, is_model: true })?
                }
                (true, "vocab" | "merges") => {
                    let text: &RawValue = entries.next_value()?;
                    match (key.as_str(), text.get().starts_with('{'), text.get().starts_with('[')) {
                        ("vocab", true, _) => {
                            self.of.vocab = Some(text);
                            Value::Object(Map::new())
                        }
                        ("merges", _, true) => {
                            self.of.merges = Some(text);
                            Value::Array(Vec::new())
                        }
                        _ => return Err(A::Error::custom("a vocabulary of another kind")),
                    }
                }
                _ => entries.next_value()?,
            };
            if map.insert(key, value).is_some() {
                return Err(A::Error::custom("a key is there twice"));
            }
        }
        Ok(Value::Object(map))
    }
}

/// The tokens of a vocabulary, in its order.
struct Ids<'a>(Vec<(Cow<'a, str>, u32)>);

/// Reads them, if all ids are plain and small.
struct IdsVisitor;

impl<'de: 'a, 'a> Deserialize<'de> for Ids<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IdsVisitor)
    }
}

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = Ids<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Ids<'de>, A::Error> {
        let mut ids = Vec::new();
        while let Some((Token(token), id)) = entries.next_entry::<Token<'de>, u32>()? {
            if u64::from(id) >= MAX_VOCAB_SIZE {
                return Err(A::Error::custom("an id is too large"));
            }
            ids.push((token, id));
        }
        Ok(Ids(ids))
    }
}

/// A string, in the file where it has no escapes.
#[derive(serde::Deserialize)]
struct Token<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#" {"version": "1.0", "added_tokens": [{"id": 5, "content": "<s>"}],
        "model": {"type": "BPE", "continuing_subword_prefix": null,
            "vocab": {"a": 0, "\u0062": 1, "\\": 7, "ab": 2, "a": 3}, "merges": [ ["a", "b"] ] },
        "decoder": {"vocab": {"x": [1.50, -2e3]}}} "#;

    #[test]
    fn an_outline_says_what_the_whole_file_says() {
        let outline = TokenizerJson::outline(FILE.as_bytes()).unwrap();
        let whole = TokenizerJson::whole(serde_json::from_str(FILE).unwrap());
        assert!(outline.is_outline() && !whole.is_outline());
        assert_eq!(outline.value["model"]["vocab"], serde_json::json!({}));
        for token in ["a", "b", "\\", "ab", "<s>", "c", ""] {
            assert_eq!(outline.id_of(token), whole.id_of(token), "{token}");
        }
        assert_eq!(outline.id_of("b"), Some(1));
        for id in [0, 1, 2, 3, 5, 6, 7, 1 << 40] {
            assert_eq!(outline.token_of(id), whole.token_of(id), "{id}");
        }
        assert_eq!((outline.largest_id(), whole.largest_id()), (Some(7), Some(7)));
        let written = |json: &TokenizerJson<'_>| serde_json::to_string(json).unwrap();
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&written(&outline)), whole.value);
        assert_eq!(read(&written(&whole)), whole.value);
    }

    #[test]
    fn what_has_to_be_rewritten_or_refused_has_no_outline() {
        for (from, to) in [
            (r#"[ ["a", "b"] ]"#, r#"["a b"]"#),
            (r#"[ ["a", "b"] ]"#, "null"),
            (r#""continuing_subword_prefix": null"#, r###""continuing_subword_prefix": "##""###),
            (r#""ab": 2"#, r#""ab": 2.0"#),
            (r#""ab": 2"#, r#""ab": 4294967295"#),
            (r#""ab": 2"#, r#""ab": 4194304"#),
            (r#""ab": 2"#, r#""ab": null"#),
            (r#""type": "BPE""#, r#""vocab": {}"#),
            (r#""vocab": {"a": 0"#, r#""vocab": [["a", 0.5]], "x": {"a": 0"#),
            (r#""version": "1.0""#, r#""model": {}"#),
            ("}}}", "}}"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let file = FILE.replacen(from, to, 1);
            assert!(TokenizerJson::outline(file.as_bytes()).is_none(), "{to}");
        }
        assert!(TokenizerJson::outline(b"").is_none());
        assert!(TokenizerJson::outline(b"[]").is_none());
        assert!(TokenizerJson::outline(b"{\"a\": \"\xff\"}").is_none());
    }
}
