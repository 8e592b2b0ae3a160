//! StableLM: Llama with LayerNorm and a quarter of every head rotated. StableLM 2 12B has blocks
//! that read the same, and normalizes every q and k head with weights of its own.

use super::layer_norm;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, LayerSpec, NormSpec, QkNormSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    let root = config.root();
    root.expect("rotary_scaling_factor", 1.0)?;
    // Every LayerNorm has a bias, whatever this says.
    root.ignore(&["use_norm_bias"]);
    let defaults = RopeDefaults::new(10_000.0, 0.25);
    spec.ropes = vec![config.rope_with(LayerType::Full, defaults)?];
    let bias = root.flag("use_qkv_bias")?.unwrap_or(false);
    let is_qk_normed = root.flag("qk_layernorm")?.unwrap_or(false);
    let eps = config.layer_norm_eps(1e-5)?;
    for (index, attention) in spec.attentions_mut() {
        let heads = attention.heads;
        let norm = |part: &str, num_heads: usize| {
            let name = |head| format!("model.layers.{index}.self_attn.{part}.norms.{head}");
            let norm = NormSpec::layer("", heads.head_dim, eps).with_bias(false);
            NormSpec { parts: (0..num_heads).map(name).collect(), ..norm }
        };
        let norms = || {
            let q = norm("q_layernorm", heads.num_heads);
            QkNormSpec::per_head(q, norm("k_layernorm", heads.num_kv_heads))
        };
        attention.qk_norm = is_qk_normed.then(norms);
        attention.qkv.bias = bias;
        attention.out.bias = false;
    }
    if root.flag("use_parallel_residual")?.unwrap_or(false) {
        spec.layers.iter_mut().for_each(LayerSpec::make_parallel);
    }
    Ok(spec)
}
