//! From a model's files to what its prompts have for images.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::processor_file;
use crate::serve::input_processor::ImageInput;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::weight_files::PROCESSOR_CONFIGS;
use vllm_batch_checkpoint::gguf::GgufModel;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::spec::{TokenId, TowerSpec};
use vllm_batch_media::{Backend, ImageProcessor, Tower};
use vllm_batch_text::Tokenizer;

/// Bytes that wait for towers, of all requests together.
pub(crate) const MAX_INPUT_BYTES: usize = 256 << 20;

/// What the small files of a model that sees say of images.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// What makes embeddings of them.
    pub tower: &'a TowerSpec,
    /// The configuration of its image processor, where config.json has it.
    pub processor: Option<&'a Value>,
    /// Tokens have positions on several axes.
    pub has_axes: bool,
    /// False: every row is an image.
    pub reads_texts: bool,
    /// Where the model is.
    pub files: &'a ModelFiles,
}

/// What a model's prompts have for images.
///
/// # Errors
/// The tokenizer has no token that stands for an image's.
pub fn image_input(sight: Sight<'_>, tokenizer: &Tokenizer) -> Result<ImageInput, EngineError> {
    let Sight { tower, has_axes, reads_texts, .. } = sight;
    Ok(ImageInput {
        image_token_id: token_id(tower.image_token_id, tokenizer, "an image's")?,
        marks: tower.marks.as_ref().map_or_else(Vec::new, |marks| marks.ids.clone()),
        text: tower.text,
        has_axes,
        reads_texts,
        bidirectional: tower.bidirectional,
        wants_adapter: tower.wants_adapter,
    })
}

/// A token that stands for one of a medium's.
pub(super) fn token_id(
    token: TokenId,
    tokenizer: &Tokenizer,
    whose: &str,
) -> Result<u32, EngineError> {
    token.find(|text| tokenizer.token_id(text)).map_err(|text| {
        EngineError::Model(format!(
            "the tokenizer has no token {text:?}, which stands for {whose}; help: copy \
             tokenizer.json from the model's repository"
        ))
    })
}

/// The image processor of a model.
///
/// # Errors
/// There is no configuration of an image processor, or it is of a kind that is not supported.
pub fn image_processor(sight: Sight<'_>) -> Result<ImageProcessor, EngineError> {
    let Sight { tower, processor, files, .. } = sight;
    let (path, config, backend) = match (files, processor) {
        (ModelFiles::Gguf(file), _) => of_gguf(file)?,
        // What has no class of transformers is resized by Pillow.
        (ModelFiles::Folder(folder), Some(config)) => {
            (folder.join("config.json"), config.clone(), Backend::Pillow)
        }
        (ModelFiles::Folder(folder), None) => {
            let (name, config) = config(folder)?;
            (folder.join(name), config, Backend::Torchvision)
        }
    };
    let sizes = Tower {
        patch_size: tower.patch_size,
        merge_size: tower.merge_size,
        max_tiles: tower.max_tiles,
    };
    ImageProcessor::from_config(&config, sizes, backend)
        .map_err(|error| EngineError::Model(format!("{}: {error}", path.display())))
}

/// What a GGUF file's projector says of images: where that is, and who resizes them.
fn of_gguf(file: &GgufModel) -> Result<(PathBuf, Value, Backend), EngineError> {
    let processor = file.opened()?.processor.expect("a tower of a projector's");
    let path = file.projector_path().unwrap_or(file.path()).to_owned();
    let backend = match processor.is_by_pillow {
        true => Backend::Pillow,
        false => Backend::Torchvision,
    };
    Ok((path, Value::Object(processor.keys), backend))
}

/// What a whole processor says of what stands around its images.
const OF_WHOLE: [&str; 3] =
    ["image_use_col_tokens", "use_single_crop_col_tokens", "use_single_crop_start_token"];

/// The configuration, and the name of its file.
fn config(folder: &Path) -> Result<(&'static str, Value), EngineError> {
    let mut whole = Value::Null;
    for (name, key) in PROCESSOR_CONFIGS {
        let Some(config) = processor_file::read(folder, name)? else { continue };
        match key {
            None => {
                let config = processor_file::of_one_kind(config, false);
                return Ok((name, with_whole(config, &whole)));
            }
            Some(key) if config[key].is_object() => {
                let mut inner = with_whole(config[key].clone(), &config);
                // What the whole processor is decides how some images are cut.
                if inner["processor_class"].is_null() {
                    inner["processor_class"] = config["processor_class"].clone();
                }
                return Ok((name, inner));
            }
            Some(_) => whole = config,
        }
    }
    Err(EngineError::Model(format!(
        "{} has no preprocessor_config.json, which says how its images are resized; copy it there \
         from the model's repository",
        quoted(&folder.display().to_string())
    )))
}

/// The configuration with what the whole processor says.
fn with_whole(mut config: Value, whole: &Value) -> Value {
    if let Some(keys) = config.as_object_mut() {
        let given = OF_WHOLE.into_iter().filter(|key| !whole[key].is_null());
        given.for_each(|key| {
            keys.insert(key.to_owned(), whole[key].clone());
        });
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As transformers 5 writes them: InternVL's whole processor has its images cut.
    #[test]
    fn what_a_whole_processor_is_goes_with_its_images() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("preprocessor_config.json", "{}");
        write(
            "processor_config.json",
            r#"{"image_processor": {"crop_to_patches": false}, "processor_class": "InternVLProcessor"}"#,
        );
        let (name, config) = config(folder.path()).unwrap();
        assert_eq!((name, &config["crop_to_patches"]), ("processor_config.json", &false.into()));
        assert_eq!(config["processor_class"], "InternVLProcessor");
    }
}
