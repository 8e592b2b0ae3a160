//! `OpenModel`: a model that is loaded while its files are hashed, whether or not the first row is
//! there. Knows no row.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::Load;
use super::fingerprinted::{self, FileFields};
use super::opened::Session;
use super::row_params::RowParams;
use super::surroundings::ModelFrom;
use crate::config::RunConfig;
use crate::ledger::names::files_of_model;
use crate::ledger::{LedgerError, LockedOutput, Named};
use crate::model::{self, Folders, Summary};
use vllm_batch_base::config::{GenerationConfigSource, SpeculationMethod};
use vllm_batch_base::machine;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::runner::Runner;

/// A model that is loaded.
pub struct OpenModel {
    /// What its small files say.
    pub summary: Arc<Summary>,
    /// What rows override.
    pub base: RowParams,
    /// Hashes its files while it is loaded.
    pub files: JoinHandle<Result<FileFields, CliError>>,
    /// The engine.
    pub loaded: model::Loaded<Runner>,
}

impl OpenModel {
    /// Finds and loads a model where none is there, and says so to whoever waits for it. The
    /// hashes of its files are known where an output was compared with them.
    ///
    /// # Errors
    /// There is no such model, the output would replace a file of it, or it cannot be loaded.
    pub fn open(
        (config, hashed): (&Arc<RunConfig>, Option<FileFields>),
        output: &LockedOutput,
        session: &Session<'_>,
        from: ModelFrom<'_>,
    ) -> Result<Self, CliError> {
        let open = match from {
            ModelFrom::Served(open) => open(config)?,
            ModelFrom::Load(load) => {
                let folders = &model::find(config, session.console)?;
                let read = read_of(config, folders).and_then(|files| output.refuse_read(&files));
                read.map_err(LedgerError::at_start)?;
                let summary = model::summary_for(config, folders)?;
                Self::load(config, folders, summary, hashed, load)?
            }
        };
        session.ready.say(open.loaded.engine.info().max_model_len)?;
        Ok(open)
    }

    /// Loads a model that was found, by its `summary`. `hashed`: its files, where they are known.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn load(
        config: &Arc<RunConfig>,
        folders: &Folders,
        summary: Summary,
        hashed: Option<FileFields>,
        load: Load<'_>,
    ) -> Result<Self, CliError> {
        let summary = Arc::new(summary);
        let base = RowParams::start(config, &summary)?;
        let (of_run, of_model, of_summary) = (config.clone(), folders.clone(), summary.clone());
        // While the engine reads the same files. Its result is dropped if the engine refuses them.
        let files = std::thread::Builder::new().spawn(move || match hashed {
            Some(files) => Ok(files),
            None => fingerprinted::of_files(&of_run, &of_model, &of_summary),
        });
        let files = machine::started(files);
        let loaded = match &*summary {
            _ if model::has_engines(config) => model::load_engines(config, folders, &summary)?,
            Summary::Generate(summary) => load(config, folders, summary)?.into_runner(),
            Summary::Pooling(summary) => model::load_pooling(config, folders, summary)?,
        };
        Ok(Self { summary, base, files, loaded })
    }
}

/// What is read of a model.
fn read_of(config: &RunConfig, folders: &Folders) -> Result<Vec<Named>, LedgerError> {
    let defaults = match &config.engine.model.generation_config {
        GenerationConfigSource::Dir(folder) => Some(folder),
        _ => None,
    };
    let draft = match config.engine.speculation.as_ref().map(|config| &config.method) {
        Some(SpeculationMethod::DraftModel { model_dir }) => Some(model_dir),
        _ => None,
    };
    let mut files = files_of(folders)?;
    for folder in defaults.into_iter().chain(draft) {
        files.extend(files_of_model(folder)?);
    }
    Ok(files)
}

/// The files of a model that was found, of its projector, its tokenizer and its adapters.
///
/// # Errors
/// A folder cannot be listed for want of descriptors.
pub fn files_of(folders: &Folders) -> Result<Vec<Named>, LedgerError> {
    let beside = folders.mmproj.iter().chain(&folders.tokenizer).chain(&folders.loras);
    let mut files = Vec::new();
    for folder in std::iter::once(&folders.model).chain(beside) {
        files.extend(files_of_model(folder)?);
    }
    Ok(files)
}
