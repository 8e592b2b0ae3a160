//! The image processor of a projector's file, in the words of preprocessor_config.json.

use serde_json::{Map, Value, json};

use super::super::rope::shortest;
use super::Sight;

/// What a preprocessor_config.json would say.
#[derive(Clone, Debug, Default)]
pub struct ImageProcessorConfig {
    /// Its keys.
    pub keys: Map<String, Value>,
    /// The code that its model came with resizes by Pillow.
    pub is_by_pillow: bool,
}

/// Means and deviations of published models. A file has 32 bits of each number.
const KNOWN: [[f64; 3]; 4] = [
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
    [0.485, 0.456, 0.406],
    [0.229, 0.224, 0.225],
];

impl Sight<'_> {
    /// The class of a processor, with what all files say: means and deviations of colours.
    pub(super) fn set_processor(&mut self, class: &str) -> Result<(), String> {
        self.processor.keys.insert("image_processor_type".to_owned(), json!(class));
        for key in ["image_mean", "image_std"] {
            let numbers = self.keys.floats(&format!("vision.{key}"))?;
            let numbers = numbers.ok_or_else(|| format!("`clip.vision.{key}` is missing"))?;
            let is_known =
                |known: &&[f64; 3]| known.iter().map(|n| *n as f32).eq(numbers.iter().copied());
            let numbers = match KNOWN.iter().find(is_known) {
                Some(known) => json!(known),
                None => json!(shortest(&numbers)),
            };
            self.processor.keys.insert(key.to_owned(), numbers);
        }
        Ok(())
    }

    /// A key of the processor.
    pub(super) fn process(&mut self, key: &str, value: impl Into<Value>) {
        self.processor.keys.insert(key.to_owned(), value.into());
    }

    /// Areas of images, in pixels: as the file says, or these.
    pub(super) fn set_areas(&mut self, [min, max]: [u64; 2]) -> Result<(), String> {
        let least = self.keys.optional_size("vision.image_min_pixels")?.unwrap_or(min);
        let most = self.keys.optional_size("vision.image_max_pixels")?.unwrap_or(max);
        self.process("size", json!({"shortest_edge": least, "longest_edge": most}));
        Ok(())
    }
}
