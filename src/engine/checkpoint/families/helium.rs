//! Helium: Llama whose rotary embedding turns neighbours.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with q and k in pairs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 100_000.0, rms_norm_eps: 1e-8, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    llama::turn_pairs(&mut spec);
    spec.attentions_mut().for_each(|(_, attention)| attention.out.bias = false);
    Ok(spec)
}
