//! Arcee (AFM): Llama whose MLP is relu² without a gate.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Llama's spec without gates.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults =
        Defaults { rms_norm_eps: 1e-5, activation: Activation::Relu2, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    spec.mlps_mut().for_each(|(_, mlp)| llama::without_gate(mlp));
    Ok(spec)
}
