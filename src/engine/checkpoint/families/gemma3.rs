//! Gemma 3 (text): Gemma 2 with q_norm and k_norm, and five sliding layers with their own rotary
//! base to each full one.

use serde_json::json;

use super::{gemma2, llama};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{DecoderSpec, QkNormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// The spec of a Gemma 3 text config.
pub(crate) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.root().expect("use_bidirectional_attention", false)?;
    layers(config)
}

/// The same, whose tokens may see those after them too.
pub(crate) fn layers(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
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
    let root = config.root();
    let pattern = root
        .optional_size("sliding_window_pattern")?
        .or(root.optional_size("_sliding_window_pattern")?);
    let slides = config.sliding_layers(pattern.unwrap_or(6).max(1))?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        let norms = llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps);
        let k = norms.k.map(|k| k.with_weight_offset(1.0));
        // Neither transformers nor vLLM bounds scores of this family, whatever its files say.
        attention.soft_cap = None;
        attention.qk_norm = Some(QkNormSpec { q: norms.q.with_weight_offset(1.0), k, ..norms });
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = Some(usize::from(slides[index]));
    }
    Ok(spec)
}
