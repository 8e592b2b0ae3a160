//! Gemma 3 (text): Gemma 2 with q_norm and k_norm, and five sliding layers with their own rotary
//! base to each full one.

use super::gemma2;
use crate::engine::EngineError;
use crate::engine::model::hf_config::{HfConfig, LayerType};
use crate::engine::model::spec::{DecoderSpec, NormSpec};

/// The spec of a Gemma 3 text config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma2::gemma(config)?;
    // max_position_embeddings is the stretched length already.
    spec.max_model_len = config.max_position_embeddings()?;
    spec.ropes = vec![config.rope(LayerType::Full)?, config.rope(LayerType::Sliding)?];
    let eps = config.rms_norm_eps()?;
    let window = config.sliding_window()?;
    let types = config.layer_types()?;
    let pattern = config.sliding_window_pattern()?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match &types {
            Some(types) => types[index] == LayerType::Sliding,
            None => !(index + 1).is_multiple_of(pattern),
        };
        let norm = |part| {
            let name = format!("model.layers.{index}.self_attn.{part}");
            let norm = NormSpec::rms(name, layer.attention.head_dim, eps);
            NormSpec { weight_offset: 1.0, ..norm }
        };
        layer.attention.qk_norm = Some((norm("q_norm"), norm("k_norm")));
        layer.attention.sliding_window = window.filter(|_| slides);
        layer.attention.rope = Some(usize::from(slides));
    }
    Ok(spec)
}
