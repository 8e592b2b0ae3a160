//! Gemma 3 (text): Gemma 2 with q_norm and k_norm instead of soft caps, and five sliding layers
//! with their own rotary base to each full one.

use super::gemma2;
use super::hf_config::{HfConfig, LayerType};
use super::spec::{DecoderSpec, LayerSpec};
use crate::engine::EngineError;

/// The spec of a Gemma 3 text config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma2::gemma(config)?;
    spec.attention.qk_norm = true;
    spec.attention.soft_cap = config.attn_logit_softcapping()?;
    spec.final_logit_soft_cap = config.final_logit_softcapping()?;
    // max_position_embeddings is the stretched length already.
    spec.max_model_len = config.max_position_embeddings()?;
    spec.ropes = vec![config.rope(LayerType::Full)?, config.rope(LayerType::Sliding)?];
    let window = config.sliding_window()?;
    let types = config.layer_types()?;
    let pattern = config.sliding_window_pattern()?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match &types {
            Some(types) => types[index] == LayerType::Sliding,
            None => !(index + 1).is_multiple_of(pattern),
        };
        let rope = Some(usize::from(slides));
        *layer = LayerSpec { sliding_window: window.filter(|_| slides), rope };
    }
    Ok(spec)
}
