//! From the path of a GGUF file to what it says of its model.

use std::path::Path;

use super::{Described, ROPE_VECTORS, Translation};
use crate::engine::EngineError;
use crate::engine::files;
use crate::engine::model::weights::gguf::{GgmlType, Gguf};
use crate::engine::model::weights::mapped_file::MappedFile;

impl Described {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// It cannot be read or is no such file.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let map = MappedFile::open(path).map_err(|error| files::unreadable(path, &error))?;
        let gguf = Gguf::parse(map.bytes()).map_err(|text| bad_file(path, &text))?;
        let mut described = Self { metadata: gguf.metadata, ..Self::default() };
        for tensor in gguf.tensors {
            if ROPE_VECTORS.contains(&tensor.name.as_str()) && tensor.ty == GgmlType::F32 {
                let values = map.bytes()[tensor.range].as_chunks().0.iter();
                let values = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
                described.vectors.insert(tensor.name.clone(), values);
            }
            described.shapes.insert(tensor.name, tensor.shape);
        }
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

fn bad_file(path: &Path, text: &str) -> EngineError {
    EngineError::Model(format!("{}: {text}", path.display()))
}
