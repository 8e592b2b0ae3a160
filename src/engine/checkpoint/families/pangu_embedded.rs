//! openPangu Embedded: Llama with biases on q, k, v and the output of attention, by `bias`.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with the biases.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let root = config.root();
    let bias = root.flag("bias")?.unwrap_or(false) || config.attention_bias()?;
    let of_qkv = root.flag("qkv_bias")?.unwrap_or(bias);
    // Rows of K and V before the first position, which other models of the class have.
    root.expect("param_sink_number", 0)?;
    for (_, attention) in spec.attentions_mut() {
        (attention.qkv.bias, attention.out.bias) = (of_qkv, bias);
    }
    Ok(spec)
}
