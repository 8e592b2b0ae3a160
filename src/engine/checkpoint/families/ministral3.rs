//! Ministral 3: Mistral whose queries grow with their position.

use super::mistral;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, PositionScale};
use vllm_batch_base::EngineError;

/// Mistral's spec with the growth that `rope_parameters` has.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = mistral::spec(config)?;
    set_growth(config, &mut spec)?;
    Ok(spec)
}

/// Queries grow with their position, as `rope_parameters` has it.
pub(super) fn set_growth(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let Some(rope) = config.root().section("rope_parameters")? else {
        return Err(config.error("`rope_parameters` is missing"));
    };
    // The whole length, beside the one before it was stretched.
    rope.ignore(&["max_position_embeddings"]);
    let key = "original_max_position_embeddings";
    let original = rope.number(key)?.or(config.root().number(key)?);
    let beta = rope.number("llama_4_scaling_beta")?;
    let scale = beta.zip(original).map(|(beta, original)| PositionScale {
        beta: beta as f32,
        offset: 0.0,
        original_max_position_embeddings: original as f32,
    });
    spec.attentions_mut().for_each(|(_, attention)| attention.position_scale = scale);
    Ok(())
}
