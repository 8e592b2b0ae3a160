//! Code World Model: Llama with three sliding layers after each full one.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with windows.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.expect_rope_scaling()?;
    let defaults = Defaults { rope_theta: 1_000_000.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let window = config.sliding_window()?.filter(|window| *window != 0);
    let slides = config.sliding_layers_or(|index| !index.is_multiple_of(4))?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    Ok(spec)
}
