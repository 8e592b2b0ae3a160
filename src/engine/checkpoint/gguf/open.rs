//! From the path of a GGUF file to what it says of its model, and to its tensors.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::projector::{self, ImageProcessorConfig, ProjectorNames};
use super::{Described, Names, ROPE_VECTORS, Translation};
use crate::weights::gguf::{GgufFiles, TensorInfo};
use crate::weights::{Checkpoint, TranslatedFiles};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::OnLostFile;

/// A GGUF file with its header read; of a split one those of all parts.
#[derive(Debug)]
pub struct GgufModel {
    file: GgufFile,
    /// What makes it see.
    projector: Option<GgufFile>,
}

/// A file of a model.
#[derive(Debug)]
struct GgufFile {
    path: PathBuf,
    files: GgufFiles,
    described: Described,
}

impl GgufFile {
    fn open(path: &Path, on_lost_file: Option<OnLostFile>) -> Result<Self, EngineError> {
        let files = GgufFiles::open(path, on_lost_file)?;
        let described = described(&files).map_err(|text| bad_file(path, &text))?;
        Ok(Self { path: path.to_owned(), files, described })
    }
}

/// A model in the words of a folder.
#[derive(Debug)]
pub struct Opened {
    /// What its config.json would say.
    pub config: Map<String, Value>,
    /// What its preprocessor_config.json would say; None: it does not see.
    pub processor: Option<ImageProcessorConfig>,
    names: Names,
    names_of_projector: Option<ProjectorNames>,
}

impl GgufModel {
    /// Maps a file and reads its header; `projector`: the file that makes it see.
    ///
    /// # Errors
    /// A file cannot be read or is no such file.
    pub fn open(
        path: &Path,
        projector: Option<&Path>,
        on_lost_file: Option<OnLostFile>,
    ) -> Result<Self, EngineError> {
        let file = GgufFile::open(path, on_lost_file)?;
        let projector = projector.map(|path| GgufFile::open(path, on_lost_file)).transpose()?;
        Ok(Self { file, projector })
    }

    /// The file that was asked for.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// What it says of its model.
    pub fn described(&self) -> &Described {
        &self.file.described
    }

    /// The file that makes it see.
    pub fn projector_path(&self) -> Option<&Path> {
        self.projector.as_ref().map(|file| file.path.as_path())
    }

    /// How many tensors are of which type, of each file; for people to read.
    pub fn types(&self) -> String {
        let of_text = self.described().types.clone();
        match &self.projector {
            None => of_text,
            Some(file) => format!("{of_text}; projector: {}", file.described.types),
        }
    }

    /// The model in the words of a folder.
    ///
    /// # Errors
    /// A file is of no kind that is supported, or they do not go together; the text names it.
    pub fn opened(&self) -> Result<Opened, EngineError> {
        let GgufFile { path, described, .. } = &self.file;
        let translation = described.translate().map_err(|text| bad_file(path, &text))?;
        let Some(projector) = &self.projector else {
            let Translation { config, names } = translation;
            return Ok(Opened { config, processor: None, names, names_of_projector: None });
        };
        let seeing = projector::combine(described, &translation, &projector.described);
        let seeing = seeing.map_err(|text| bad_file(&projector.path, &text))?;
        Ok(Opened {
            config: seeing.config,
            processor: Some(seeing.processor),
            names: translation.names,
            names_of_projector: Some(seeing.names),
        })
    }

    /// The tensors by transformers' names.
    ///
    /// # Errors
    /// The file is of no architecture that is supported, or has a tensor that is not known.
    pub fn checkpoint(&self) -> Result<Checkpoint, EngineError> {
        let Opened { names, names_of_projector, .. } = self.opened()?;
        let of_text = |tensor: &TensorInfo| names.translate(tensor);
        let of_projector = |tensor: &TensorInfo| match &names_of_projector {
            Some(names) => names.translate(tensor),
            None => Ok(Vec::new()),
        };
        let GgufFile { path, files, .. } = &self.file;
        let mut models = vec![TranslatedFiles { path, files, translate: &of_text }];
        if let Some(GgufFile { path, files, .. }) = &self.projector {
            models.push(TranslatedFiles { path, files, translate: &of_projector });
        }
        Checkpoint::of_gguf(path, &models)
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
