//! Lenient reader of config.json, which remembers what was read: a key that nobody reads and that
//! is not known to be harmless refuses the model.

mod generation;
mod harmless;
mod keys;
mod rope;
mod section;

pub use generation::{GenerationConfig, SpeechConfig};
pub use keys::LayerType;
pub use rope::RopeDefaults;
pub use section::Section;

use std::borrow::Cow;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::model_files::ModelFiles;
use vllm_batch_base::config::DType;
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES, quoted};
use vllm_batch_base::hf_overrides::{self, HfOverrides, NESTED_CONFIGS};
use vllm_batch_base::weight_files::QUANTIZATION_CONFIGS;
use vllm_batch_base::{EngineError, Setting};

/// Keys that a text part may have: that of transformers, that of InternVL's own code, and that of
/// DeepSeek-VL2's.
const TEXT_KEYS: [&str; 3] = ["text_config", "llm_config", "language_config"];

/// The key of a model that sees, within one that compares tokens (ColPali).
const VLM_KEY: &str = "vlm_config";

/// The key of the part of a model that reads and writes, within one that speaks, too (Qwen Omni).
const THINKER_KEY: &str = "thinker_config";

/// Keys of the parts of such a model that speak.
const SPEAKING_KEYS: [&str; 7] = [
    "code2wav_config",
    "enable_audio_output",
    "enable_talker",
    "talker_config",
    "token2wav_config",
    "tts_bos_token_id",
    "tts_eos_token_id",
];

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
    /// The text part of a multimodal model.
    text: Option<Box<HfConfig>>,
    /// The key of the text part.
    text_key: &'static str,
    /// The model that sees, of one that compares tokens.
    vlm: Option<Box<HfConfig>>,
    /// How many tensors are of which type, of a GGUF file; for people to read.
    gguf_types: Option<String>,
    /// The output layer is the table of tokens, whatever this part says.
    is_tied_above: Cell<bool>,
    /// The output layer has its own matrix, whatever the keys say.
    has_own_head: bool,
}

impl HfConfig {
    /// Reads `config.json` of a model folder, or what a GGUF file says in its place, with keys laid
    /// over it.
    ///
    /// # Errors
    /// The file is missing or no JSON object; or the GGUF file is not supported. Or a class is
    /// chosen by `model_type`.
    pub fn open(model: &ModelFiles, overrides: &HfOverrides) -> Result<Self, EngineError> {
        let (mut keys, mut path, gguf_types) = Self::keys_of(model)?;
        if overrides.has_type_alone(&keys) {
            let text = "`model_type` alone chooses no class";
            let help = "give `architectures` too, as in \
                        '{\"architectures\": [\"LlamaForCausalLM\"]}'";
            return Err(EngineError::setting(Setting::HfOverrides, text, help));
        }
        if !overrides.is_empty() {
            overrides.apply(&mut keys);
            path += " with `settings.hf_overrides`";
        }
        Ok(Self { gguf_types, ..Self::new(keys, path) })
    }

    /// The keys of a model, the file that has them, and the types of a GGUF file's tensors.
    fn keys_of(model: &ModelFiles) -> Result<FileKeys, EngineError> {
        let folder = match model {
            ModelFiles::Folder(folder) => folder,
            ModelFiles::Gguf(file) => {
                let config = file.opened()?.config;
                let gguf_types = Some(file.types());
                let path = file.path().display().to_string();
                return Ok((config, path, gguf_types));
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
        let path = path.display().to_string();
        Ok((object(&text, &path)?, path, None))
    }

    /// Parses the text of a config.json; `path` is for messages.
    ///
    /// # Errors
    /// The text is no JSON object.
    pub fn parse(text: &str, path: &str) -> Result<Self, EngineError> {
        Ok(Self::new(object(text, path)?, path.to_owned()))
    }

    fn new(keys: Map<String, Value>, path: String) -> Self {
        let mut keys = unwrapped(keys);
        let has = |key: &&&str| keys.get(**key).is_some_and(|value| !value.is_null());
        let text_key = *TEXT_KEYS.iter().find(has).unwrap_or(&TEXT_KEYS[0]);
        let text = match keys.remove(text_key) {
            Some(Value::Object(mut text)) => {
                // Said at the top alone, it is of the text part too. If either ties, the files
                // decide: `own_head`.
                let key = "tie_word_embeddings";
                let ties = keys.get(key) == Some(&Value::Bool(true));
                let unties = text.get(key) == Some(&Value::Bool(false));
                if ((ties && unties) || !text.contains_key(key))
                    && let Some(value) = keys.remove(key)
                {
                    text.insert(key.to_owned(), value);
                }
                Some(Box::new(Self::new(text, format!("{path}: {text_key}"))))
            }
            None | Some(Value::Null) => None,
            Some(other) => {
                keys.insert(text_key.to_owned(), other);
                None
            }
        };
        let vlm = match keys.remove(VLM_KEY) {
            Some(Value::Object(vlm)) => {
                Some(Box::new(Self::new(vlm, format!("{path}: {VLM_KEY}"))))
            }
            None | Some(Value::Null) => None,
            Some(other) => {
                keys.insert(VLM_KEY.to_owned(), other);
                None
            }
        };
        Self {
            keys,
            path,
            read: RefCell::default(),
            ignored: RefCell::default(),
            defaults: OnceCell::new(),
            text,
            text_key,
            vlm,
            gguf_types: None,
            is_tied_above: Cell::new(false),
            has_own_head: false,
        }
    }

    /// The same file, with an output layer that has its own matrix whatever the keys say.
    pub(super) fn with_own_head(&self) -> Self {
        let with_own = |part: &Self| Box::new(part.with_own_head());
        let (text, vlm) = (self.text.as_deref().map(with_own), self.vlm.as_deref().map(with_own));
        Self { text, vlm, has_own_head: true, ..self.clone() }
    }

    /// How many tensors are of which type, of a GGUF file; for people to read.
    pub fn gguf_types(&self) -> Option<&str> {
        self.gguf_types.as_deref()
    }

    /// An error of this config: its path, then the text.
    pub fn error(&self, text: impl std::fmt::Display) -> EngineError {
        EngineError::Model(format!("{}: {text}", self.path))
    }

    /// All keys, to be read.
    pub(super) fn root(&self) -> Section<'_> {
        Section::new(self, &self.keys)
    }

    /// The text part of a multimodal model, or the whole file (Qwen2.5-VL).
    pub(super) fn text_part(&self) -> &HfConfig {
        self.text.as_deref().unwrap_or(self)
    }

    /// The model that sees, of one that compares tokens, or the whole file.
    pub(super) fn vlm_part(&self) -> &HfConfig {
        self.vlm.as_deref().unwrap_or(self)
    }

    /// Whether the model that sees is within one that compares tokens.
    pub(super) fn is_wrapped(&self) -> bool {
        self.vlm.is_some()
    }

    /// Nothing of the text part of a multimodal model is used.
    pub(super) fn ignore_text_part(&self) {
        if let Some(text) = &self.text {
            let keys = text.root();
            keys.ignore(&keys.names().collect::<Vec<_>>());
        }
    }

    /// Gives values to keys that the file leaves out, as the family's class in transformers does.
    /// A key that is null stays so. The first call counts.
    pub(super) fn assume(&self, defaults: &[(&str, Value)]) {
        let owned = |(key, value): &(&str, Value)| ((*key).to_owned(), value.clone());
        self.defaults.get_or_init(|| defaults.iter().map(owned).collect());
    }

    /// The output layer of the text part is its table unless the top says otherwise, whatever the
    /// text part says: a class that ties by itself. Where the files have another one, that counts.
    ///
    /// # Errors
    /// The key is no flag.
    pub(super) fn tie_text_part(&self) -> Result<(), EngineError> {
        let ties = self.root().flag("tie_word_embeddings")?.unwrap_or(true);
        self.text_part().is_tied_above.set(ties);
        Ok(())
    }

    /// The first of this file and its parts that has the key.
    fn anywhere(&self, key: &str) -> Option<&Value> {
        let in_parts = || self.text.iter().chain(&self.vlm).find_map(|part| part.anywhere(key));
        self.root().value(key).or_else(in_parts)
    }

    /// Names of the model class, as in `architectures`.
    ///
    /// # Errors
    /// `architectures` is missing or empty.
    pub fn architectures(&self) -> Result<Vec<&str>, EngineError> {
        let list = self.root().value("architectures").and_then(Value::as_array);
        let names = list.into_iter().flatten().filter_map(Value::as_str);
        let model_type = self.root().value("model_type").and_then(Value::as_str);
        let names: Vec<_> = names.map(|name| own_class(name, model_type)).collect();
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
                "dtype {} is not supported; give `settings.dtype` float32, bfloat16 or float16",
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
        if let Some(section) = self.root().section(key)? {
            return Ok(Some(section));
        }
        for part in self.text.iter().chain(&self.vlm) {
            if let Some(section) = part.quantization()? {
                return Ok(Some(section));
            }
        }
        Ok(None)
    }

    /// Whether `quantization` or `quantization_config` is what MLX writes there.
    pub(super) fn is_of_mlx(&self) -> bool {
        let is_mlx = |key: &str| {
            let said = self.keys.get(key);
            let has = |key| said.is_some_and(|said| said.get(key).is_some());
            has("bits") && has("group_size") && !has("quant_method")
        };
        is_mlx("quantization") || is_mlx("quantization_config")
    }

    /// Whether a key changes nothing: in any family, or in the one whose spec was made of this. One
    /// of an object has the object's name and a dot before it.
    pub fn is_harmless(&self, key: &str) -> bool {
        match self.parts().find_map(|(name, part)| {
            Some((key.strip_prefix(name).and_then(|key| key.strip_prefix('.'))?, part))
        }) {
            Some((key, part)) => part.is_harmless(key),
            None => {
                harmless::is_harmless(key, self.keys.get(key))
                    || self.is_harmless_nested(key)
                    || self.ignored.borrow().contains(key)
            }
        }
    }

    /// The same of a key of a nested config, which has all keys that every config of transformers
    /// has.
    fn is_harmless_nested(&self, key: &str) -> bool {
        let Some((outer, key)) = key.split_once('.') else { return false };
        let value = self.keys.get(outer).and_then(|nested| nested.get(key));
        NESTED_CONFIGS.contains(&outer) && harmless::is_harmless(key, value)
    }

    /// Keys that no code has read and that none has said to change nothing here. What changes
    /// nothing in any family counts: for files that are no config.json.
    pub(super) fn unread(&self) -> Vec<String> {
        let parts = self.parts().map(|(name, _)| name.to_owned());
        let read = self.read.borrow();
        let unread = section::unread(&self.keys, &read);
        unread.filter(|key| !self.ignored.borrow().contains(key)).chain(parts).collect()
    }

    /// The parts that are read as files of their own, with their keys.
    fn parts(&self) -> impl Iterator<Item = (&'static str, &HfConfig)> {
        let text = self.text.as_deref().map(|text| (self.text_key, text));
        text.into_iter().chain(self.vlm.as_deref().map(|vlm| (VLM_KEY, vlm)))
    }

    /// Refuses keys that no code has read and that are not known to be harmless: the model may
    /// compute something else than the spec that was made of the rest.
    ///
    /// # Errors
    /// There is such a key; the text names it.
    pub(super) fn refuse_unread(&self) -> Result<(), EngineError> {
        self.refuse_unread_of("")
    }

    /// `prefix`: what stands before the keys of this part of a file.
    fn refuse_unread_of(&self, prefix: &str) -> Result<(), EngineError> {
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
            0 => {
                let mut parts = self.parts();
                return parts.try_for_each(|(name, part)| {
                    part.refuse_unread_of(&format!("{prefix}{name}."))
                });
            }
            1 => "is",
            _ => "are",
        };
        let first = format!("{prefix}{}", unread[0]);
        let is_beside = QUANTIZATION_CONFIGS.iter().any(|(name, _)| self.path.ends_with(name));
        let way_out = match hf_overrides::without(&first) {
            _ if is_beside => "leave it out of a copy of the file if it changes nothing".to_owned(),
            Some(flag) => {
                format!("leave it out with `settings.hf_overrides` '{flag}' if it changes nothing")
            }
            None => format!(
                "give the object without it with `settings.hf_overrides` if `{first}` changes nothing"
            ),
        };
        Err(self.error(format!(
            "{} {verb} not known for this architecture, so the model may be another than the one \
             that would run; {way_out}",
            quoted(&unread.join(", ")),
        )))
    }
}

/// The keys of a model that speaks, too, with those of the part that thinks among them.
fn unwrapped(mut keys: Map<String, Value>) -> Map<String, Value> {
    match keys.remove(THINKER_KEY) {
        Some(Value::Object(thinker)) => {
            SPEAKING_KEYS.iter().for_each(|key| drop(keys.remove(*key)));
            for (key, value) in thinker {
                keys.entry(key).or_insert(value);
            }
        }
        None => {}
        Some(other) => drop(keys.insert(THINKER_KEY.to_owned(), other)),
    }
    keys
}

/// Keys, the file that has them, and the types of a GGUF file's tensors.
type FileKeys = (Map<String, Value>, String, Option<String>);

/// The object of a config.json.
fn object(text: &str, path: &str) -> Result<Map<String, Value>, EngineError> {
    match serde_json::from_str(&with_quoted_infinities(text)) {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(_) => Err(EngineError::Model(format!("{path}: expected a JSON object"))),
        Err(error) => Err(EngineError::Model(format!("{path}: {error}"))),
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

/// (class in `architectures`, `model_type`, the name that the family is known by): transformers
/// computes these families with the classes of others, and writes their names.
pub(super) const CLASSES_OF_OTHERS: &[(&str, &str, &str)] = &[
    ("DeepseekV3ForCausalLM", "sarvam_mla", "SarvamMLAForCausalLM"),
    ("DeepseekV3Model", "sarvam_mla", "SarvamMLAModel"),
    ("Glm4MoeForCausalLM", "sarvam_moe", "SarvamMoEForCausalLM"),
    ("Glm4MoeModel", "sarvam_moe", "SarvamMoEModel"),
    ("LlamaForCausalLM", "exaone", "ExaoneForCausalLM"),
    ("LlamaModel", "exaone", "ExaoneModel"),
];

fn own_class<'a>(class: &'a str, model_type: Option<&str>) -> &'a str {
    let own = |&(other, kind, own): &(&str, &str, &'static str)| {
        (other == class && Some(kind) == model_type).then_some(own)
    };
    CLASSES_OF_OTHERS.iter().find_map(own).unwrap_or(class)
}
