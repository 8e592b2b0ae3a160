//! Qwen3-MoE: Qwen3 with experts.

use super::{qwen2_moe, qwen3};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::DecoderSpec;

/// Qwen3's spec with experts.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = qwen3::spec(config)?;
    qwen2_moe::set_experts(config, &mut spec, |_| None)?;
    Ok(spec)
}
