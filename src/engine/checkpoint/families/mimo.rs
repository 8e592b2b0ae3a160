//! MiMo: Qwen2, with layers that predict further tokens, which are left out.

use super::qwen2;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Qwen2's spec.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = qwen2::spec(config)?;
    spec.output.of_further_tokens.push("model.mtp_layers.".to_owned());
    Ok(spec)
}
