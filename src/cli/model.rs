//! From `--model` and `--tokenizer` to folders.

use std::path::PathBuf;

use super::config::ModelSource;
use super::error::CliError;
use super::exit::Exit;
use super::hub::{self, HubEnvironment, HubError, ModelRequest, Need, progress};
use crate::engine::config::LoadFormat;

/// Where the files are.
#[derive(Debug)]
pub struct Folders {
    /// Of the model.
    pub model: PathBuf,
    /// Of the tokenizer, when it is another one.
    pub tokenizer: Option<PathBuf>,
}

/// Finds the folders; downloads what is not there.
///
/// # Errors
/// There is no such model, or it cannot be fetched.
pub fn resolve(
    source: &ModelSource,
    load_format: LoadFormat,
    shows_progress: bool,
) -> Result<Folders, CliError> {
    let environment = HubEnvironment::from_env();
    let mut progress = if shows_progress { progress::on_stderr() } else { Box::new(()) };
    let mut folder = |name: &str, revision: Option<&str>, need: Need| {
        let download_dir = source.download_dir.as_deref();
        let request = ModelRequest { name, revision, download_dir, need };
        hub::resolve(&request, &environment, progress.as_mut()).map_err(rejected)
    };
    let need = Need {
        config: true,
        tokenizer: source.tokenizer.is_none(),
        weights: load_format != LoadFormat::Dummy,
    };
    let model = folder(&source.name, source.revision.as_deref(), need)?;
    let tokenizer = match &source.tokenizer {
        // `--revision` is the model's.
        Some(name) => Some(folder(name, None, Need::TOKENIZER)?),
        None => None,
    };
    Ok(Folders { model, tokenizer })
}

fn rejected(error: HubError) -> CliError {
    let exit = match error.exit_code() {
        7 => Exit::Model,
        5 => Exit::Stopped,
        _ => Exit::Refused,
    };
    CliError::new(exit, error.code(), error.to_string()).help(error.help())
}
