//! Cohere 2 (Command R7B, Command A): Cohere with three sliding layers to each full one, which has
//! no rotary embedding.

use super::cohere;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Cohere's spec with windows.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = cohere::cohere(config, 10_000.0)?;
    let root = config.root();
    // Keys of the first code, which say what every model of this class computes.
    root.expect("order_of_interleaved_layers", "local_attn_first")?;
    root.expect("position_embedding_type", "rope_gptj")?;
    root.expect("use_embedding_sharing", true)?;
    root.expect("use_gated_activation", true)?;
    root.expect("use_parallel_block", true)?;
    root.expect("use_qk_norm", false)?;
    // How several GPUs shared the table.
    root.ignore(&["use_parallel_embedding"]);
    let keys = ["sliding_window_pattern", "_sliding_window_pattern", "layer_switch"];
    keys.iter().try_for_each(|key| root.optional_size(key).map(drop))?;
    let pattern = root.number_of(&keys)?.unwrap_or(4.0) as usize;
    let window = root.size_or_none("sliding_window", 4096)?;
    let slides = config.sliding_layers(pattern)?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = attention.reach.window().map(|_| 0);
    }
    Ok(spec)
}
