//! `ModelFiles`: where a model is. What a GGUF file says is read once, for all who ask.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::gguf::GgufModel;
use super::weights::Checkpoint;
use vllm_batch_base::config::{LoadFormat, ModelConfig, OnLostFile};
use vllm_batch_base::weight_files::is_gguf_model;
use vllm_batch_base::{EngineError, Setting};

/// The files of a model.
#[derive(Clone, Debug)]
pub enum ModelFiles {
    /// A folder as transformers has it; nothing of it is read yet.
    Folder(PathBuf),
    /// A GGUF file, or all parts of a split one, with its header read.
    Gguf(Arc<GgufModel>),
}

impl ModelFiles {
    /// Finds out what a path is, and reads the header of a GGUF file.
    ///
    /// # Errors
    /// A file cannot be read, or is no GGUF file.
    pub fn open(path: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        Ok(match is_gguf_model(path) {
            true => Self::Gguf(Arc::new(GgufModel::open(path, None, on_lost_file)?)),
            false => Self::Folder(path.to_owned()),
        })
    }

    /// The same of the model that a configuration names, with its projector.
    ///
    /// # Errors
    /// As `open`; or there is a projector, and the model is a folder.
    pub fn of_model(config: &ModelConfig) -> Result<Self, EngineError> {
        let ModelConfig { model_dir, mmproj, on_lost_file, .. } = config;
        let Some(mmproj) = mmproj else { return Self::open(model_dir, *on_lost_file) };
        if !is_gguf_model(model_dir) {
            let text = "a projector goes with a GGUF file, and the model is a folder";
            let help = "leave it out: a folder has its own tower";
            return Err(EngineError::setting(Setting::Mmproj, text, help));
        }
        Ok(Self::Gguf(Arc::new(GgufModel::open(model_dir, Some(mmproj), *on_lost_file)?)))
    }

    /// The tensors, for a look before they are loaded. None: weights are made up, or the files
    /// cannot be opened, which is refused where they are loaded.
    pub fn stored(&self, config: &ModelConfig) -> Option<Checkpoint> {
        match config.load_format {
            LoadFormat::Auto => self.checkpoint(config.on_lost_file).ok(),
            LoadFormat::Dummy => None,
        }
    }

    /// The tensors.
    ///
    /// # Errors
    /// A file of weights is missing or corrupt, or of no architecture that is supported.
    pub fn checkpoint(&self, on_lost_file: Option<OnLostFile>) -> Result<Checkpoint, EngineError> {
        match self {
            Self::Folder(folder) => Checkpoint::open(folder, on_lost_file),
            Self::Gguf(file) => file.checkpoint(),
        }
    }
}
