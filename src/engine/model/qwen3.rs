//! Qwen3: Qwen2 without biases, with RMSNorm on every q and k head.

use super::hf_config::HfConfig;
use super::spec::DecoderSpec;
use super::{llama, qwen2};
use crate::engine::EngineError;

/// Llama's spec with q_norm and k_norm.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    spec.attention.qk_norm = true;
    qwen2::set_windows(config, &mut spec)?;
    Ok(spec)
}
