//! Qwen3-MoE: Qwen3 with experts.

use super::{qwen2_moe, qwen3};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Qwen3's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = qwen3::spec(config)?;
    qwen2_moe::set_experts(config, &mut spec, |_| None)?;
    Ok(spec)
}
