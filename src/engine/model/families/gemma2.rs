//! Gemma 2: Llama with sandwich norms, `1 + weight`, scaled embeddings, soft caps, and every other
//! layer sliding.

use super::llama;
use crate::engine::EngineError;
use crate::engine::model::hf_config::{HfConfig, LayerType};
use crate::engine::model::spec::{BlockNorms, DecoderSpec, NormSpec};

/// The spec of a Gemma 2 config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma(config)?;
    let window = config.sliding_window()?;
    let types = config.layer_types()?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let slides = match &types {
            Some(types) => types[index] == LayerType::Sliding,
            None => index.is_multiple_of(2),
        };
        layer.attention.sliding_window = window.filter(|_| slides);
    }
    Ok(spec)
}

/// What Gemma 2 and 3 share.
pub(super) fn gemma(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let hidden = spec.hidden_size();
    let norm = |name: &str| {
        let norm = NormSpec::rms(name, hidden, config.rms_norm_eps()?);
        Ok::<_, EngineError>(NormSpec { weight_offset: 1.0, ..norm })
    };
    spec.embedding.scale = Some((hidden as f32).sqrt());
    let scalar = config.query_pre_attn_scalar()?.unwrap_or(256.0);
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let norms = |before, after| {
            let norm = |part| norm(&format!("model.layers.{index}.{part}")).map(Some);
            Ok::<_, EngineError>(BlockNorms {
                before: norm(before)?,
                after: norm(after)?,
                of_sum: None,
            })
        };
        layer.attention.norms = norms("input_layernorm", "post_attention_layernorm")?;
        layer.attention.scale = (1.0 / scalar.sqrt()) as f32;
        layer.attention.soft_cap = config.attn_logit_softcapping()?;
        layer.mlp.norms = norms("pre_feedforward_layernorm", "post_feedforward_layernorm")?;
    }
    spec.output.norm = Some(norm("model.norm")?);
    spec.output.soft_cap = config.final_logit_softcapping()?;
    if config.tie_word_embeddings(true)? {
        spec.output.lm_head = None;
    }
    Ok(spec)
}
