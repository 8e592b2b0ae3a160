//! Cohere (Command R, Aya): blocks that read the same through one LayerNorm, rotation of
//! neighbours, scaled logits. Command R+ normalizes every q and k head with weights of its own.

use super::{layer_norm, llama};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{DecoderSpec, LayerSpec, NormSpec, QkNormSpec, QkvHeads, RowOrder};
use vllm_batch_base::EngineError;

/// The spec of a Cohere config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = cohere(config, 500_000.0)?;
    let root = config.root();
    let eps = config.layer_norm_eps(1e-5)?;
    let rotary_dim = spec.ropes[0].rotary_dim;
    if root.flag("use_qk_norm")?.unwrap_or(false) {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = config.heads()?;
        let order = |num_heads| RowOrder::heads_in_pairs(num_heads, head_dim, rotary_dim);
        let (q_order, k_order) = (order(num_heads), order(num_kv_heads));
        for (index, attention) in spec.attentions_mut() {
            let norm = |part, num_heads, order: &RowOrder| {
                let name = format!("model.layers.{index}.self_attn.{part}");
                let norm = NormSpec::layer(name, head_dim, eps).with_bias(false);
                NormSpec { shape: vec![num_heads, head_dim], order: order.clone(), ..norm }
            };
            let q = norm("q_norm", num_heads, &q_order);
            let k = norm("k_norm", num_kv_heads, &k_order);
            attention.qk_norm = Some(QkNormSpec::per_head(q, k));
        }
    }
    // Command R's context, of which it has not all in max_position_embeddings (as in vLLM).
    spec.max_model_len = root.optional_size("model_max_length")?.unwrap_or(spec.max_model_len);
    Ok(spec)
}

/// Spec that Cohere and Cohere 2 share.
pub(super) fn cohere(config: &HfConfig, base: f64) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    spec.residual_norms_mut().for_each(|norm| norm.bias = false);
    spec.layers.iter_mut().for_each(LayerSpec::make_parallel);
    spec.ropes = vec![config.rope_of(LayerType::Full, base)?];
    llama::turn_pairs(&mut spec);
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    spec.output.scale = Some(config.root().number("logit_scale")?.unwrap_or(0.0625) as f32);
    Ok(spec)
}
