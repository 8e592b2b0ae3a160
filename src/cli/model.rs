//! From `--model` and `--tokenizer` to folders.

use std::path::{Path, PathBuf};

use super::config::ModelSource;
use super::error::CliError;
use super::exit::Exit;
use crate::engine::config::LoadFormat;

/// Where the files are.
#[derive(Debug)]
pub struct Folders {
    /// Of the model.
    pub model: PathBuf,
    /// Of the tokenizer, when it is another one.
    pub tokenizer: Option<PathBuf>,
}

/// Finds the folders.
///
/// # Errors
/// There is no such folder.
pub fn resolve(source: &ModelSource, _load_format: LoadFormat) -> Result<Folders, CliError> {
    let folder = |name: &String| match Path::new(name).is_dir() {
        true => Ok(PathBuf::from(name)),
        false => {
            Err(CliError::new(Exit::Refused, "model_not_found", format!("no such folder: {name}")))
        }
    };
    let tokenizer = source.tokenizer.as_ref().map(folder).transpose()?;
    Ok(Folders { model: folder(&source.name)?, tokenizer })
}
