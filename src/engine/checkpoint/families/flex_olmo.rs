//! FlexOlmo: OLMo 2 with OLMoE's experts.

use super::{olmo2, olmoe};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// OLMo 2's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = olmo2::spec(config)?;
    spec.ropes = vec![config.rope_of(LayerType::Full, 500_000.0)?];
    olmoe::set_experts(config, &mut spec)?;
    Ok(spec)
}
