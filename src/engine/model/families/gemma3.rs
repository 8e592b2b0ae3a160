//! Gemma 3 (text): Gemma 2 with q_norm and k_norm, and five sliding layers with their own rotary
//! base to each full one.

use serde_json::json;

use super::gemma2;
use crate::engine::EngineError;
use crate::engine::model::hf_config::{HfConfig, LayerType};
use crate::engine::model::spec::{DecoderSpec, NormSpec, QkNormSpec};

/// The spec of a Gemma 3 text config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // The files of 4B leave out most of what is as in the class.
    config.assume(&[
        ("head_dim", json!(256)),
        ("hidden_activation", json!("gelu_pytorch_tanh")),
        ("max_position_embeddings", json!(131_072)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        ("rope_local_base_freq", json!(10_000.0)),
        ("rope_theta", json!(1_000_000.0)),
        ("sliding_window", json!(4096)),
        ("vocab_size", json!(262_208)),
    ]);
    let mut spec = gemma2::gemma(config)?;
    // max_position_embeddings is the stretched length already.
    spec.max_model_len = config.max_position_embeddings()?;
    spec.ropes = vec![config.rope(LayerType::Full)?, config.rope(LayerType::Sliding)?];
    let eps = config.rms_norm_eps()?;
    let window = config.sliding_window()?;
    let types = config.layer_types()?;
    let root = config.root();
    let pattern = root
        .optional_size("sliding_window_pattern")?
        .or(root.optional_size("_sliding_window_pattern")?);
    let pattern = pattern.unwrap_or(6).max(1);
    root.expect("use_bidirectional_attention", false)?;
    for (index, attention) in spec.attentions_mut() {
        let slides = match &types {
            Some(types) => types[index] == LayerType::Sliding,
            None => !(index + 1).is_multiple_of(pattern),
        };
        let norm = |part| {
            let name = format!("model.layers.{index}.self_attn.{part}");
            NormSpec::rms(name, attention.heads.head_dim, eps).with_weight_offset(1.0)
        };
        attention.qk_norm = Some(QkNormSpec::per_head(norm("q_norm"), norm("k_norm")));
        attention.sliding_window = window.filter(|_| slides);
        attention.rope = Some(usize::from(slides));
    }
    Ok(spec)
}
