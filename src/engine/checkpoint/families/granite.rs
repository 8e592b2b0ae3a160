//! Granite 3 and 4 (dense): Llama with multipliers of embeddings, scores, residuals and logits.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, EmbeddingScale};
use vllm_batch_base::EngineError;

/// Llama's spec with the multipliers.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    set_multipliers(config, &mut spec)?;
    Ok(spec)
}

/// The multipliers of all Granites.
pub(super) fn set_multipliers(
    config: &HfConfig,
    spec: &mut DecoderSpec,
) -> Result<(), EngineError> {
    let root = config.root();
    let multiplier = |key| root.number(key).map(|number| number.unwrap_or(1.0) as f32);
    let factor = multiplier("embedding_multiplier")?;
    let scores = multiplier("attention_multiplier")?;
    let residual = multiplier("residual_multiplier")?;
    spec.embedding.scale = Some(EmbeddingScale { factor, is_rounded: false });
    spec.attentions_mut().for_each(|(_, attention)| attention.scale = scores);
    spec.layers.iter_mut().for_each(|layer| layer.residual_scale = Some(residual));
    spec.output.scale = Some(1.0 / multiplier("logits_scaling")?);
    Ok(())
}
