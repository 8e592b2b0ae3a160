//! GLM-4 (9B) and GLM-Edge: Llama with biases on q, k and v, gate and up in one tensor, and half of
//! every head rotated, as neighbours.

use super::llama;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, LinearSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    spec_with(config, 0.5)
}

/// The same where the file does not say which part of a head is rotated, and a class has this one.
pub(super) fn spec_with(config: &HfConfig, part: f64) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let root = config.root();
    // Llama's defaults are other ones.
    root.positive("rms_norm_eps")?;
    root.size("head_dim")?;
    root.size("num_key_value_heads")?;
    let defaults = RopeDefaults::new(10_000.0, part);
    spec.ropes = vec![config.rope_with(LayerType::Full, defaults)?];
    llama::turn_pairs(&mut spec);
    let bias = root.flag("attention_bias")?.unwrap_or(true);
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = bias;
        attention.out.bias = false;
    }
    for (index, mlp) in spec.mlps_mut() {
        let name = format!("model.layers.{index}.mlp.gate_up_proj");
        mlp.up = LinearSpec::new(name, mlp.up.n(), mlp.up.k);
        mlp.down.bias = false;
    }
    Ok(spec)
}
