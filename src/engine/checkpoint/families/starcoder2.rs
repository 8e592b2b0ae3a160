//! StarCoder2: Llama with LayerNorm, biases, a plain MLP and a sliding window.

use super::layer_norm;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Reach};

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = layer_norm::spec(config)?;
    let root = config.root();
    // Keys of the first code, which say what every model of this class computes.
    root.expect("mlp_type", "default")?;
    root.expect("norm_type", "layer_norm")?;
    root.expect("scale_attn_weights", true)?;
    let bias = root.flag("use_bias")?.unwrap_or(true);
    let window = config.sliding_window()?;
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = bias;
        attention.out.bias = bias;
        attention.reach = Reach::of_window(window);
    }
    let activation = config.activation_or(Activation::GeluTanh)?;
    layer_norm::set_plain_mlps(&mut spec, ["c_fc", "c_proj"], bias, activation);
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    Ok(spec)
}
