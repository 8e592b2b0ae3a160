//! generation_config.json: defaults of sampling, and what ends a text.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use super::shown;
use crate::model_files::ModelFiles;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES};

/// What generation_config.json says about sampling. `do_sample` is ignored, as in vLLM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// `temperature`
    pub temperature: Option<f32>,
    /// `top_k`
    pub top_k: Option<u32>,
    /// `top_p`
    pub top_p: Option<f32>,
    /// `min_p`
    pub min_p: Option<f32>,
    /// `repetition_penalty`
    pub repetition_penalty: Option<f32>,
    /// `presence_penalty`
    pub presence_penalty: Option<f32>,
    /// `frequency_penalty`
    pub frequency_penalty: Option<f32>,
    /// `max_new_tokens`
    pub max_new_tokens: Option<u32>,
    /// `eos_token_id`: one or several.
    pub eos_token_ids: Vec<u32>,
    /// How recordings are written down. Like `eos_token_ids` it is no default of sampling.
    pub speech: SpeechConfig,
}

/// What generation_config.json says of a model that writes down recordings (Whisper).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeechConfig {
    /// `suppress_tokens`: no text has them.
    pub suppress_tokens: Vec<u32>,
    /// `begin_suppress_tokens`: no text begins with one.
    pub begin_suppress_tokens: Vec<u32>,
    /// `max_initial_timestamp_index`: the latest timestamp that a text may begin with.
    pub max_initial_timestamp_index: Option<u32>,
    /// `is_multilingual`
    pub is_multilingual: Option<bool>,
}

impl GenerationConfig {
    /// Reads generation_config.json of a folder, or what a GGUF file says in its place; a missing
    /// file is an empty one.
    ///
    /// # Errors
    /// The file is no JSON object, or has a value of another type.
    pub fn open(model: &ModelFiles) -> Result<Self, EngineError> {
        let bad = |path: &Path, text| EngineError::Model(format!("{}: {text}", path.display()));
        let folder = match model {
            ModelFiles::Folder(folder) => folder,
            ModelFiles::Gguf(file) => {
                let keys = file.described().generation_config();
                let read = keys.and_then(|keys| Self::from_keys(&keys));
                return read.map_err(|text| bad(file.path(), text));
            }
        };
        let path = folder.join("generation_config.json");
        let bad = |text: String| bad(&path, text);
        let text = match files::read_text(&path, MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(files::unreadable(&path, &error)),
        };
        let keys: Map<String, Value> =
            serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        Self::from_keys(&keys).map_err(bad)
    }

    fn from_keys(keys: &Map<String, Value>) -> Result<Self, String> {
        let value = |key: &str| keys.get(key).filter(|value| !value.is_null());
        let wrong = |key: &str, what: &str, value| {
            format!("`{key}` should be {what}, found {}", shown(value))
        };
        let number = |key: &str| {
            let Some(value) = value(key) else { return Ok(None) };
            let number = value.as_f64().map(|number| number as f32).filter(|n| n.is_finite());
            number.map(Some).ok_or_else(|| wrong(key, "a number", value))
        };
        let count = |key: &str| {
            // -1 is "off" in some files.
            let Some(value) = value(key).filter(|value| **value != -1) else { return Ok(None) };
            let count = value.as_u64().and_then(|value| u32::try_from(value).ok());
            count.map(Some).ok_or_else(|| wrong(key, "a count", value))
        };
        let ids = |key: &str| value(key).map_or(Ok(Vec::new()), |value| token_ids_of(key, value));
        Ok(Self {
            temperature: number("temperature")?,
            top_k: count("top_k")?,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
            presence_penalty: number("presence_penalty")?,
            frequency_penalty: number("frequency_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
            eos_token_ids: value("eos_token_id").map_or(Ok(Vec::new()), token_ids)?,
            speech: SpeechConfig {
                suppress_tokens: ids("suppress_tokens")?,
                begin_suppress_tokens: ids("begin_suppress_tokens")?,
                max_initial_timestamp_index: count("max_initial_timestamp_index")?,
                is_multilingual: value("is_multilingual").and_then(Value::as_bool),
            },
        })
    }
}

/// Most ids of a key. Published models have fewer than twenty that end a text, of which each row
/// has a copy, and some ninety that no transcript has.
const MAX_TOKEN_IDS: usize = 1024;

/// One id or a list of them, each once.
pub(super) fn token_ids(value: &Value) -> Result<Vec<u32>, String> {
    token_ids_of("eos_token_id", value)
}

fn token_ids_of(key: &str, value: &Value) -> Result<Vec<u32>, String> {
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| format!("`{key}` should be token ids, found {}", shown(value)))
    };
    match value.as_array() {
        Some(list) => {
            let mut known = HashSet::new();
            let mut ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
            ids.retain(|id| known.insert(*id));
            match ids.len() > MAX_TOKEN_IDS {
                true => Err(format!(
                    "`{key}` should be at most {MAX_TOKEN_IDS} token ids, found {}",
                    ids.len()
                )),
                false => Ok(ids),
            }
        }
        None => id(value).map(|id| vec![id]),
    }
}
