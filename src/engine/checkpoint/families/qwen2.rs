//! Qwen2 and Qwen2.5: Llama with biases on q, k and v; upper layers may slide.

use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with q, k, v biases and Qwen's windows.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.bias = true;
        attention.out.bias = false;
    }
    set_windows(config, &mut spec)?;
    Ok(spec)
}

/// `layer_types` where the file lists them, else layers from `max_window_layers` on slide; none
/// does unless `use_sliding_window` is set.
pub(super) fn set_windows(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let is_used = root.flag("use_sliding_window")?.unwrap_or(false);
    let window = config.sliding_window()?.filter(|_| is_used);
    let first_sliding = root.optional_size("max_window_layers")?.unwrap_or(28);
    let slides = config.sliding_layers_or(|index| index >= first_sliding)?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    Ok(())
}
