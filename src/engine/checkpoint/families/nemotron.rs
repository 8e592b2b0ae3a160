//! Nemotron-4 and Minitron: LayerNorm with a factor of `1 + weight`, half of every head rotated, a
//! plain MLP.

use super::layer_norm;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    spec.residual_norms_mut().for_each(|norm| norm.weight_offset = Some(1.0));
    let defaults = RopeDefaults::new(10_000.0, 0.5);
    spec.ropes = vec![config.rope_with(LayerType::Full, defaults)?];
    let activation = config.activation_or(Activation::Relu2)?;
    let bias = config.mlp_bias()?;
    layer_norm::set_plain_mlps(&mut spec, ["up_proj", "down_proj"], bias, activation);
    Ok(spec)
}
