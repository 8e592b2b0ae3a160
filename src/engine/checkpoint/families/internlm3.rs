//! InternLM3: Llama with one flag for the biases of q, k and v and one for all others.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with InternLM3's biases.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let qkv_bias = config.root().flag("qkv_bias")?.unwrap_or(false);
    let bias = config.root().flag("bias")?.unwrap_or(false);
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = qkv_bias;
        attention.out.bias = bias;
    }
    for (_, mlp) in spec.mlps_mut() {
        mlp.up.bias = bias;
        mlp.down.bias = bias;
    }
    Ok(spec)
}
