//! Qwen3: Qwen2 without biases, with RMSNorm on every q and k head.

use super::{llama, qwen2};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{DecoderSpec, NormSpec};

/// Llama's spec with q_norm and k_norm.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let eps = config.rms_norm_eps()?;
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let norm = |part| {
            let name = format!("model.layers.{index}.self_attn.{part}");
            NormSpec::rms(name, layer.attention.head_dim, eps)
        };
        layer.attention.qk_norm = Some((norm("q_norm"), norm("k_norm")));
    }
    qwen2::set_windows(config, &mut spec)?;
    Ok(spec)
}
