//! Lenient reader of config.json, which remembers what was read: a key that nobody reads and that
//! is not known to be harmless refuses the model.

mod generation;
mod harmless;
mod keys;
mod rope;
mod section;

pub use generation::GenerationConfig;
pub use keys::LayerType;
pub use rope::RopeDefaults;
pub use section::Section;

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::EngineError;
use crate::engine::config::DType;
use crate::engine::files::{self, MAX_CONFIG_BYTES, quoted};
use crate::engine::model::model_files::ModelFiles;

/// config.json, read key by key.
#[derive(Clone, Debug)]
pub struct HfConfig {
    keys: Map<String, Value>,
    /// File name for messages.
    path: String,
    /// Keys that were asked for; those of an object have its name and a dot before them.
    read: RefCell<BTreeSet<String>>,
    /// Keys that change nothing in this family.
    ignored: RefCell<BTreeSet<String>>,
    /// Values of keys that the file leaves out.
    defaults: OnceCell<Map<String, Value>>,
    /// The `text_config` of a multimodal model.
    text: Option<Box<HfConfig>>,
    /// How many tensors are of which type, of a GGUF file; for people to read.
    gguf_types: Option<String>,
}

impl HfConfig {
    /// Reads `config.json` of a model folder, or what a GGUF file says in its place.
    ///
    /// # Errors
    /// The file is missing or no JSON object; or the GGUF file is not supported.
    pub fn open(model: &ModelFiles) -> Result<Self, EngineError> {
        let folder = match model {
            ModelFiles::Folder(folder) => folder,
            ModelFiles::Gguf(file) => {
                let config = file.translation()?.config;
                let gguf_types = Some(file.described().types.clone());
                let path = file.path().display().to_string();
                return Ok(Self { gguf_types, ..Self::new(config, path) });
            }
        };
        let path = folder.join("config.json");
        let text = files::read_text(&path, MAX_CONFIG_BYTES).map_err(|error| {
            let help = "a model folder needs config.json, tokenizer.json and *.safetensors";
            match files::unreadable(&path, &error) {
                EngineError::Model(text) => EngineError::Model(format!("{text}; {help}")),
                refused => refused,
            }
        })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses the text of a config.json; `path` is for messages.
    ///
    /// # Errors
    /// The text is no JSON object.
    pub fn parse(text: &str, path: &str) -> Result<Self, EngineError> {
        match serde_json::from_str(&with_quoted_infinities(text)) {
            Ok(Value::Object(keys)) => Ok(Self::new(keys, path.to_owned())),
            Ok(_) => Err(EngineError::Model(format!("{path}: expected a JSON object"))),
            Err(error) => Err(EngineError::Model(format!("{path}: {error}"))),
        }
    }

    fn new(mut keys: Map<String, Value>, path: String) -> Self {
        let text = match keys.remove("text_config") {
            Some(Value::Object(mut text)) => {
                // Said at the top alone, it is of the text part too.
                let key = "tie_word_embeddings";
                if !text.contains_key(key)
                    && let Some(value) = keys.remove(key)
                {
                    text.insert(key.to_owned(), value);
                }
                Some(Box::new(Self::new(text, format!("{path}: text_config"))))
            }
            _ => None,
        };
        let (read, ignored) = (RefCell::default(), RefCell::default());
        let defaults = OnceCell::new();
        Self { keys, path, read, ignored, defaults, text, gguf_types: None }
    }

    /// How many tensors are of which type, of a GGUF file; for people to read.
    pub fn gguf_types(&self) -> Option<&str> {
        self.gguf_types.as_deref()
    }

    pub(in crate::engine) fn error(&self, text: impl std::fmt::Display) -> EngineError {
        EngineError::Model(format!("{}: {text}", self.path))
    }

    /// All keys, to be read.
    pub(super) fn root(&self) -> Section<'_> {
        Section::new(self, &self.keys)
    }

    /// The text part of a multimodal model: `text_config`, or the whole file (Qwen2.5-VL).
    pub(super) fn text_part(&self) -> &HfConfig {
        self.text.as_deref().unwrap_or(self)
    }

    /// Gives values to keys that the file leaves out, as the family's class in transformers does.
    /// A key that is null stays so. The first call counts.
    pub(super) fn assume(&self, defaults: &[(&str, Value)]) {
        let owned = |(key, value): &(&str, Value)| ((*key).to_owned(), value.clone());
        self.defaults.get_or_init(|| defaults.iter().map(owned).collect());
    }

    /// The first of this file and its text model that has the key.
    fn anywhere(&self, key: &str) -> Option<&Value> {
        let in_text = || self.text.as_ref()?.root().value(key);
        self.root().value(key).or_else(in_text)
    }

    /// Names of the model class, as in `architectures`.
    ///
    /// # Errors
    /// `architectures` is missing or empty.
    pub fn architectures(&self) -> Result<Vec<&str>, EngineError> {
        let list = self.root().value("architectures").and_then(Value::as_array);
        let names: Vec<_> = list.into_iter().flatten().filter_map(Value::as_str).collect();
        if names.is_empty() {
            return Err(self.error("`architectures` is missing: which model class is this?"));
        }
        Ok(names)
    }

    /// The checkpoint's dtype, float32 if it does not say.
    ///
    /// # Errors
    /// The dtype is none that the engine has.
    pub fn dtype(&self) -> Result<DType, EngineError> {
        let name = self.anywhere("dtype").or_else(|| self.anywhere("torch_dtype"));
        match name.and_then(Value::as_str) {
            None | Some("float32") => Ok(DType::Float32),
            Some("bfloat16") => Ok(DType::BFloat16),
            Some("float16" | "half") => Ok(DType::Float16),
            Some(other) => Err(self.error(format!(
                "dtype {} is not supported; give --dtype float32, bfloat16 or float16",
                quoted(other)
            ))),
        }
    }

    /// EOS ids of config.json, used where generation_config.json has none.
    ///
    /// # Errors
    /// The value is not a token id or a list of them.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>, EngineError> {
        self.anywhere("eos_token_id")
            .map_or(Ok(Vec::new()), generation::token_ids)
            .map_err(|text| self.error(text))
    }

    /// `quantization_config`, at the top or in the text part.
    ///
    /// # Errors
    /// It is no object.
    pub(super) fn quantization(&self) -> Result<Option<Section<'_>>, EngineError> {
        let key = "quantization_config";
        match (self.root().section(key)?, &self.text) {
            (Some(section), _) => Ok(Some(section)),
            (None, Some(text)) => text.root().section(key),
            (None, None) => Ok(None),
        }
    }

    /// Whether a key changes nothing: in any family, or in the one whose spec was made of this. One
    /// of an object has the object's name and a dot before it.
    pub fn is_harmless(&self, key: &str) -> bool {
        match key.strip_prefix("text_config.").zip(self.text.as_ref()) {
            Some((key, text)) => text.is_harmless(key),
            None => {
                harmless::is_harmless(key, self.keys.get(key))
                    || self.ignored.borrow().contains(key)
            }
        }
    }

    /// Keys that no code has read and that none has said to change nothing here. What changes
    /// nothing in any family counts: for files that are no config.json.
    pub(super) fn unread(&self) -> Vec<String> {
        let text = self.text.iter().map(|_| "text_config".to_owned());
        let read = self.read.borrow();
        let unread = section::unread(&self.keys, &read);
        unread.filter(|key| !self.ignored.borrow().contains(key)).chain(text).collect()
    }

    /// Refuses keys that no code has read and that are not known to be harmless: the model may
    /// compute something else than the spec that was made of the rest.
    ///
    /// # Errors
    /// There is such a key; the text names it.
    pub(super) fn refuse_unread(&self) -> Result<(), EngineError> {
        let read = self.read.borrow();
        let unread = section::unread(&self.keys, &read);
        // Some files say everything twice.
        let is_said_twice = |key: &str| {
            let in_text = self.text.as_ref().and_then(|text| text.keys.get(key));
            in_text.is_some() && in_text == self.keys.get(key)
        };
        let unread = unread.filter(|key| !self.is_harmless(key) && !is_said_twice(key));
        let unread: Vec<_> = unread.collect();
        let verb = match unread.len() {
            0 => return self.text.as_ref().map_or(Ok(()), |text| text.refuse_unread()),
            1 => "is",
            _ => "are",
        };
        Err(self.error(format!(
            "{} {verb} not known for this architecture, so the model may be another than the one \
             that would run; leave it out of a copy of config.json if it changes nothing",
            quoted(&unread.join(", ")),
        )))
    }
}

/// The text with quotes around `Infinity` where it is no string: Python writes it as a number,
/// which JSON does not have.
fn with_quoted_infinities(text: &str) -> Cow<'_, str> {
    if !text.contains("Infinity") {
        return Cow::Borrowed(text);
    }
    let (mut quoted, mut rest, mut is_string) = (String::new(), text, false);
    while let Some(next) = rest.chars().next() {
        let len = match next {
            '\\' if is_string => {
                next.len_utf8() + rest[1..].chars().next().map_or(0, char::len_utf8)
            }
            'I' if !is_string && rest.starts_with("Infinity") => "Infinity".len(),
            _ => next.len_utf8(),
        };
        is_string ^= next == '"';
        let (token, after) = rest.split_at(len);
        match len == "Infinity".len() {
            true => quoted.extend(["\"", token, "\""]),
            false => quoted.push_str(token),
        }
        rest = after;
    }
    Cow::Owned(quoted)
}

/// A value in a message.
fn shown(value: &Value) -> String {
    quoted(&value.to_string())
}
