//! From the path of a GGUF file to what it says of its model, and to its tensors.

use std::path::{Path, PathBuf};

use super::{Described, ROPE_VECTORS, Translation};
use crate::weights::Checkpoint;
use crate::weights::gguf::GgufFiles;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::OnLostFile;

/// A GGUF file with its header read; of a split one those of all parts.
#[derive(Debug)]
pub struct GgufModel {
    path: PathBuf,
    files: GgufFiles,
    described: Described,
}

impl GgufModel {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// It cannot be read or is no such file.
    pub fn open(path: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        let files = GgufFiles::open(path, on_lost_file)?;
        let described = described(&files).map_err(|text| bad_file(path, &text))?;
        Ok(Self { path: path.to_owned(), files, described })
    }

    /// The file that was asked for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it says of its model.
    pub fn described(&self) -> &Described {
        &self.described
    }

    /// `Described::translate`, with the file in its error.
    ///
    /// # Errors
    /// As `translate`.
    pub fn translation(&self) -> Result<Translation, EngineError> {
        self.described.translate().map_err(|text| bad_file(&self.path, &text))
    }

    /// The tensors by transformers' names.
    ///
    /// # Errors
    /// The file is of no architecture that is supported, or has a tensor that is not known.
    pub fn checkpoint(&self) -> Result<Checkpoint, EngineError> {
        let names = self.translation()?.names;
        Checkpoint::of_gguf(&self.path, &self.files, |tensor| names.translate(tensor))
    }
}

fn described(files: &GgufFiles) -> Result<Described, String> {
    let (metadata, types) = (files.metadata().clone(), files.types());
    let mut described = Described { metadata, types, ..Described::default() };
    for name in ROPE_VECTORS {
        let values = files.vector(name)?;
        described.vectors.extend(values.map(|values| (name.to_owned(), values)));
    }
    let shapes = files.tensors().map(|tensor| (tensor.name.clone(), tensor.shape.clone()));
    described.shapes = shapes.collect();
    Ok(described)
}

fn bad_file(path: &Path, text: &str) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}
