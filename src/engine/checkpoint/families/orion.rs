//! Orion: Llama with LayerNorms.

use super::layer_norm;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with LayerNorms, whose epsilon has the name of the other norms'.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    let eps = config.rms_norm_eps_or(1e-5)?;
    spec.residual_norms_mut().for_each(|norm| norm.eps = eps);
    Ok(spec)
}
