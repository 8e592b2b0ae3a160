//! Seed-OSS: Llama with biases on q, k and v.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with Seed-OSS's biases.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let bias = config.root().flag("attention_bias")?.unwrap_or(true);
    let out_bias = config.root().flag("attention_out_bias")?.unwrap_or(false);
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = bias;
        attention.out.bias = out_bias;
    }
    Ok(spec)
}
