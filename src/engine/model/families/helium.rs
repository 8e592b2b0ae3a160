//! Helium: Llama whose rotary embedding turns neighbours.

use super::llama::{self, Defaults};
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::DecoderSpec;

/// Llama's spec with q and k in pairs.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 100_000.0, rms_norm_eps: 1e-8, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    llama::turn_pairs(&mut spec);
    spec.attentions_mut().for_each(|(_, attention)| attention.out.bias = false);
    Ok(spec)
}
