//! GLM-4-0414 and GLM-Z1: GLM that normalizes what its blocks add as well.

use super::glm;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;

/// GLM's spec with the norms.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    normalized(config, glm::spec(config)?)
}

/// GLM's spec of a class that rotates whole heads, with the norms.
pub(super) fn spec_of_whole_heads(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    normalized(config, glm::spec_with(config, 1.0)?)
}

fn normalized(config: &HfConfig, mut spec: DecoderSpec) -> Result<DecoderSpec, EngineError> {
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
