//! Small JSON files of a model's processors.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, unreadable};

/// Most bytes of such a file.
const MAX_BYTES: u64 = 1 << 20;

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
