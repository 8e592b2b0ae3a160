//! Gemma 2: Llama with sandwich norms, `1 + weight`, scaled embeddings, soft caps, and every other
//! layer sliding.

use super::hf_config::{HfConfig, LayerType};
use super::llama;
use super::spec::{DecoderSpec, NormPlacement, TensorNames};
use crate::engine::EngineError;

const NAMES: TensorNames = TensorNames {
    attention_post_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    ..TensorNames::LLAMA
};

/// The spec of a Gemma 2 config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma(config)?;
    spec.attention.soft_cap = config.attn_logit_softcapping()?;
    spec.final_logit_soft_cap = config.final_logit_softcapping()?;
    let window = config.sliding_window()?;
    let types = config.layer_types()?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match &types {
            Some(types) => types[index] == LayerType::Sliding,
            None => index.is_multiple_of(2),
        };
        layer.sliding_window = window.filter(|_| slides);
    }
    Ok(spec)
}

/// What Gemma 2 and 3 share.
pub(super) fn gemma(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    spec.embedding.scaled = true;
    spec.norm.unit_offset = true;
    spec.norm_placement = NormPlacement::Sandwich;
    spec.names = NAMES;
    spec.tie_word_embeddings = config.tie_word_embeddings(true)?;
    let scalar = config.query_pre_attn_scalar()?.unwrap_or(256.0);
    spec.attention.scale = (1.0 / scalar.sqrt()) as f32;
    Ok(spec)
}
