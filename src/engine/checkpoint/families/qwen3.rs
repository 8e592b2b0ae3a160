//! Qwen3: Qwen2 without biases, with RMSNorm on every q and k head.

use super::{llama, qwen2};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with q_norm and k_norm.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let eps = config.rms_norm_eps()?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
    }
    qwen2::set_windows(config, &mut spec)?;
    Ok(spec)
}
