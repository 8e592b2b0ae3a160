//! Mistral: Llama with a sliding window on every layer (none since v0.2), and never a bias.

use super::llama;
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with the window.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let window = config.sliding_window()?;
    spec.attentions_mut().for_each(|(_, attention)| attention.reach = Reach::of_window(window));
    Ok(spec)
}

/// Ministral: the layers that `layer_types` names slide.
pub(super) fn ministral(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = spec(config)?;
    let Some(types) = config.layer_types()? else {
        return Err(config.error("`layer_types` is missing"));
    };
    for (index, attention) in spec.attentions_mut() {
        if types[index] != LayerType::Sliding {
            attention.reach = Reach::All;
        }
    }
    Ok(spec)
}
