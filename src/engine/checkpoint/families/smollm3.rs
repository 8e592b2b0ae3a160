//! SmolLM3: Llama with layers that have no rotary embedding; those may slide.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with `no_rope_layers`.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 2_000_000.0, is_tied: true, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    let slides = root.flag("use_sliding_window")?.unwrap_or(false);
    let window = config.sliding_window()?.filter(|_| slides);
    let turns = layers_that_turn(config)?;
    // A leftover of Qwen's files, which nothing reads.
    root.ignore(&["max_window_layers"]);
    let slides = config.sliding_layers_or(|index| !turns[index])?;
    for (index, attention) in spec.attentions_mut() {
        attention.rope = attention.rope.filter(|_| turns[index]);
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    Ok(spec)
}

/// Which layers have a rotary embedding: by `no_rope_layers`, where those have a 1, else all but
/// each last one of `no_rope_layer_interval`.
pub(super) fn layers_that_turn(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let interval = root.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    match root.numbers("no_rope_layers")?.filter(|turns| !turns.is_empty()) {
        Some(turns) if turns.len() < num_layers => {
            Err(config.error("`no_rope_layers` has fewer entries than there are layers"))
        }
        Some(turns) => Ok(turns[..num_layers].iter().map(|turns| *turns != 0.0).collect()),
        None => {
            let turns = |index: usize| interval == 0 || !(index + 1).is_multiple_of(interval);
            Ok((0..num_layers).map(turns).collect())
        }
    }
}
