//! From a model's files to what its prompts have for images.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::media_table::MediaTable;
use crate::serve::input_processor::ImageInput;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, quoted, unreadable};
use vllm_batch_base::weight_files::PROCESSOR_CONFIGS;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::spec::{DecoderSpec, TowerSpec};
use vllm_batch_media::{Backend, ImageProcessor, Tower};

/// Patches that wait for a tower, of all requests together.
const MAX_PATCH_BYTES: usize = 256 << 20;

/// Most bytes of such a file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The images of a model with a tower.
///
/// # Errors
/// There is no configuration of an image processor, or it is of a kind that is not supported.
pub fn image_input(
    (decoder, tower): (&DecoderSpec, &TowerSpec),
    files: &ModelFiles,
) -> Result<ImageInput, EngineError> {
    let folder = match files {
        ModelFiles::Folder(folder) => folder,
        ModelFiles::Gguf(_) => unreachable!("a GGUF file has no tower"),
    };
    let (name, config) = config(folder)?;
    let sizes = Tower { patch_size: tower.patch_size, merge_size: tower.merge_size };
    let processor = ImageProcessor::from_config(&config, sizes, Backend::Torchvision);
    let processor = processor
        .map_err(|error| EngineError::Model(format!("{}: {error}", folder.join(name).display())))?;
    Ok(ImageInput {
        table: Arc::new(MediaTable::new(processor, MAX_PATCH_BYTES)),
        image_token_id: tower.image_token_id,
        text: tower.text,
        has_axes: decoder.ropes.iter().any(|rope| !rope.axes.is_empty()),
        are_whole: tower.attends_to_whole,
    })
}

/// The configuration, and the name of its file.
fn config(folder: &Path) -> Result<(&'static str, Value), EngineError> {
    for (name, key) in PROCESSOR_CONFIGS {
        let path = folder.join(name);
        let text = match files::read_text(&path, MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let config: Value = serde_json::from_str(&text)
            .map_err(|error| EngineError::Model(format!("{}: {error}", path.display())))?;
        match key {
            None => return Ok((name, config)),
            Some(key) if config[key].is_object() => {
                let mut inner = config[key].clone();
                // What the whole processor is decides how some images are cut.
                if inner["processor_class"].is_null() {
                    inner["processor_class"] = config["processor_class"].clone();
                }
                return Ok((name, inner));
            }
            Some(_) => {}
        }
    }
    Err(EngineError::Model(format!(
        "{} has no preprocessor_config.json, which says how its images are resized; copy it there \
         from the model's repository",
        quoted(&folder.display().to_string())
    )))
}
