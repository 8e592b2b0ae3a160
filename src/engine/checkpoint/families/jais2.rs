//! Jais 2: Llama with LayerNorm, a plain MLP and biases everywhere.

use serde_json::json;

use super::layer_norm;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a Jais 2 config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("attention_bias", json!(true)), ("mlp_bias", json!(true))]);
    let mut spec = layer_norm::spec(config)?;
    let (bias, activation) = (config.mlp_bias()?, config.activation_or(Activation::Relu2)?);
    layer_norm::set_plain_mlps(&mut spec, ["up_proj", "down_proj"], bias, activation);
    Ok(spec)
}
