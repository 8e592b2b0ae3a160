//! GLM-4-0414 and GLM-Z1: GLM that normalizes what its blocks add as well.

use super::glm;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;

/// GLM's spec with the norms.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = glm::spec(config)?;
    let (hidden, eps) = (spec.hidden_size(), config.rms_norm_eps()?);
    let norm = |index: usize, part: &str| {
        Some(NormSpec::rms(format!("model.layers.{index}.{part}"), hidden, eps))
    };
    for (index, attention) in spec.attentions_mut() {
        attention.norms.after = norm(index, "post_self_attn_layernorm");
    }
    for (index, mlp) in spec.mlps_mut() {
        mlp.norms.after = norm(index, "post_mlp_layernorm");
    }
    Ok(spec)
}
