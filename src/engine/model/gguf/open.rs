//! From the path of a GGUF file to what it says of its model, and to its tensors.

use std::path::Path;

use super::{Described, ROPE_VECTORS, Translation};
use crate::engine::EngineError;
use crate::engine::config::OnLostFile;
use crate::engine::model::weights::Checkpoint;
use crate::engine::model::weights::gguf::GgufFiles;

impl Described {
    /// Reads the header of a file; of a split one those of all parts.
    ///
    /// # Errors
    /// It cannot be read or is no such file.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        Self::of(&GgufFiles::open(path, None)?).map_err(|text| bad_file(path, &text))
    }

    fn of(files: &GgufFiles) -> Result<Self, String> {
        let (metadata, types) = (files.metadata().clone(), files.types());
        let mut described = Self { metadata, types, ..Self::default() };
        for name in ROPE_VECTORS {
            let values = files.vector(name)?;
            described.vectors.extend(values.map(|values| (name.to_owned(), values)));
        }
        let shapes = files.tensors().map(|tensor| (tensor.name.clone(), tensor.shape.clone()));
        described.shapes = shapes.collect();
        Ok(described)
    }

    /// `translate`, with the file in its error.
    ///
    /// # Errors
    /// As `translate`.
    pub fn translation(&self, path: &Path) -> Result<Translation, EngineError> {
        self.translate().map_err(|text| bad_file(path, &text))
    }
}

/// The tensors of a file, by transformers' names.
///
/// # Errors
/// It cannot be read, or is of no architecture that is supported.
pub fn checkpoint(
    path: &Path,
    on_lost_file: Option<OnLostFile>,
) -> Result<Checkpoint, EngineError> {
    let files = GgufFiles::open(path, on_lost_file)?;
    let described = Described::of(&files).map_err(|text| bad_file(path, &text))?;
    let names = described.translation(path)?.names;
    Checkpoint::of_gguf(path, files, |tensor| names.translate(tensor))
}

fn bad_file(path: &Path, text: &str) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}
