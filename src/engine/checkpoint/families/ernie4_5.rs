//! ERNIE 4.5 (dense): Llama whose rotary embedding turns neighbours, with one flag for all biases.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with q and k in pairs, and `use_bias`.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = with_halves(config)?;
    llama::turn_pairs(&mut spec);
    Ok(spec)
}

/// The same where the rotary embedding turns halves of heads (PaddleOCR-VL).
pub(super) fn with_halves(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults =
        Defaults { rope_theta: 500_000.0, rms_norm_eps: 1e-5, is_tied: true, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    let bias = root.flag("use_bias")?.unwrap_or(false);
    // Positions of the first files' own code are divided by this.
    root.expect("compression_ratio", 1.0)?;
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = bias;
        attention.out.bias = bias;
    }
    for (_, mlp) in spec.mlps_mut() {
        mlp.up.bias = bias;
        mlp.down.bias = bias;
    }
    Ok(spec)
}
