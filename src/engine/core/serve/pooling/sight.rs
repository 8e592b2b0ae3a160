//! What a pooling model has of images.

use serde_json::Value;

use super::PoolingSummary;
use crate::load::images::Sight;
use vllm_batch_base::config::ModelConfig;
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_checkpoint as checkpoint;
use vllm_batch_checkpoint::hf_config::HfConfig;
use vllm_batch_checkpoint::spec::{EncoderSpec, ImageText, Parameters, RopeSpec, TowerSpec};

/// The tower of a config whose other keys were read, and the configuration of its image processor
/// where the same file has it; and whether the model has a tower, which may be left out.
///
/// # Errors
/// A key is something else than it should be.
pub(super) fn read(
    hf_config: &HfConfig,
    config: &ModelConfig,
) -> Result<(Option<TowerSpec>, Option<Value>, bool), EngineError> {
    let tower = checkpoint::tower_spec(hf_config)?;
    let sees = tower.is_some();
    let tower = tower.filter(|_| !config.language_model_only);
    Ok((tower, checkpoint::image_processor(hf_config)?, sees))
}

/// Refuses to leave out a tower that is all of a model.
///
/// # Errors
/// It was left out.
pub(super) fn check(spec: &EncoderSpec, tower: Option<&TowerSpec>) -> Result<(), EngineError> {
    if spec.reads_texts || tower.is_some() {
        return Ok(());
    }
    let text = "the model reads images alone, and its tower is left out".to_owned();
    let help = "leave it out, or the limit of 0 images";
    Err(EngineError::setting(Setting::LanguageModelOnly, text, help))
}

impl PoolingSummary {
    /// The tower whose vectors are those of images by themselves, if it has one.
    pub(super) fn picture_tower(&self) -> Option<&TowerSpec> {
        self.tower.as_ref().filter(|tower| tower.text == ImageText::Alone)
    }

    /// The same without a tower where texts are read at once and have no images in them: unless
    /// they are read so because all of their tokens see each other.
    pub(super) fn without_unused_tower(mut self) -> Self {
        let is_whole = self.spec.compares_tokens && self.sparse.is_none();
        if self.cached().is_none() && self.picture_tower().is_none() && !is_whole {
            self.tower = None;
        }
        self
    }

    /// What its files say of images; None: it is run for text alone.
    pub(super) fn sight(&self) -> Option<Sight<'_>> {
        Some(Sight {
            tower: self.tower.as_ref()?,
            processor: self.processor.as_ref(),
            has_axes: self.spec.ropes.iter().any(RopeSpec::has_axes),
            reads_texts: self.spec.reads_texts,
            files: &self.files,
        })
    }

    /// Tokens that a step has room for at least, and those of a prompt whose logits it has.
    pub(super) fn least_step(&self) -> (usize, usize) {
        self.tower.as_ref().map_or((0, 0), |tower| tower.least_step(self.max_model_len))
    }

    /// Number of parameters, those of its tower among them.
    pub(super) fn parameters(&self) -> Parameters {
        let tower = self.tower.as_ref().map_or_else(Parameters::default, TowerSpec::parameters);
        self.spec.parameters() + tower
    }
}
