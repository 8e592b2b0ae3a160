//! dots.llm1: Llama with norms of every q and k head, and DeepSeek's experts.

use super::{experts, llama};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with norms and experts; layers from `max_window_layers` on slide.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let (root, eps) = (config.root(), config.rms_norm_eps()?);
    let window = root.size_or_none("sliding_window", 4096)?;
    let first_sliding = root.optional_size("max_window_layers")?.unwrap_or(62);
    let slides = config.sliding_layers_or(|index| index >= first_sliding)?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
    }
    root.expect("scoring_func", "noaux_tc")?;
    let routing = experts::by_sigmoid(config, false)?;
    experts::set_of_deepseek(config, &mut spec, &routing)?;
    Ok(spec)
}
