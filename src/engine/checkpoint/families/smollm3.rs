//! SmolLM3: Llama with layers that have no rotary embedding; those may slide.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with `no_rope_layers`.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 2_000_000.0, is_tied: true, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    let slides = root.flag("use_sliding_window")?.unwrap_or(false);
    let window = config.sliding_window()?.filter(|_| slides);
    // 1: the layer has a rotary embedding.
    let turns = root.numbers("no_rope_layers")?;
    let interval = root.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    // A leftover of Qwen's files, which nothing reads.
    root.ignore(&["max_window_layers"]);
    if turns.as_ref().is_some_and(|turns| turns.len() < spec.layers.len()) {
        return Err(config.error("`no_rope_layers` has fewer entries than there are layers"));
    }
    let turns = |index: usize| match &turns {
        Some(turns) => turns[index] != 0.0,
        None => interval == 0 || !(index + 1).is_multiple_of(interval),
    };
    let slides = config.sliding_layers_or(|index| !turns(index))?;
    for (index, attention) in spec.attentions_mut() {
        attention.rope = attention.rope.filter(|_| turns(index));
        attention.sliding_window = window.filter(|_| slides[index]);
    }
    Ok(spec)
}
