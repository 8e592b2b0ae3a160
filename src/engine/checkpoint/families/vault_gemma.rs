//! VaultGemma: Gemma 2 without norms of what its blocks add.

use super::gemma2;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Gemma 2's spec without these norms.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma2::spec(config)?;
    spec.attentions_mut().for_each(|(_, attention)| attention.norms.after = None);
    spec.mlps_mut().for_each(|(_, mlp)| mlp.norms.after = None);
    Ok(spec)
}
