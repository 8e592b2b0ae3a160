//! Small JSON files of a model's processors.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, unreadable};

/// Most bytes of such a file.
const MAX_BYTES: u64 = 1 << 20;

/// Keys that say how sounds are read, where one object says how images are, too.
const OF_SOUNDS: [&str; 12] = [
    "chunk_length",
    "dither",
    "feature_extractor_type",
    "feature_size",
    "hop_length",
    "n_fft",
    "n_samples",
    "nb_max_frames",
    "padding_side",
    "padding_value",
    "return_attention_mask",
    "sampling_rate",
];

/// Of an object that says how images and sounds are read: what it says of the one or of the other.
pub(crate) fn of_one_kind(mut config: Value, is_of_sounds: bool) -> Value {
    let types = ["feature_extractor_type", "image_processor_type"];
    if types.iter().all(|name| config[*name].is_string())
        && let Some(keys) = config.as_object_mut()
    {
        keys.retain(|key, _| OF_SOUNDS.contains(&key.as_str()) == is_of_sounds);
    }
    config
}

/// What a file of a model's folder says; None: the folder has no such file.
///
/// # Errors
/// It cannot be read, or is no JSON.
pub(crate) fn read(folder: &Path, name: &str) -> Result<Option<Value>, EngineError> {
    let path = folder.join(name);
    let text = match files::read_text(&path, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(&path, &error)),
    };
    let value = serde_json::from_str(&text);
    value.map(Some).map_err(|error| EngineError::Model(format!("{}: {error}", path.display())))
}
