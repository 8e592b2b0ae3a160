//! EXAONE 4: OLMo 2 that normalizes every q and k head. Where layers slide, full ones have no
//! rotary embedding.

use super::{llama, olmo2};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// OLMo 2's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = olmo2::spec(config)?;
    set_attention(config, &mut spec, config.rms_norm_eps()?)?;
    Ok(spec)
}

/// Norms of heads, and windows; K-EXAONE has them too.
pub(super) fn set_attention(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    eps: f32,
) -> Result<(), EngineError> {
    let root = config.root();
    let window = root.size_or_none("sliding_window", 4096)?;
    let pattern = match (root.value("layer_types"), window) {
        // The list counts, whatever the pattern (a count, or `LLLG`).
        (Some(_), _) | (_, None) => {
            root.ignore(&["sliding_window_pattern"]);
            4
        }
        (None, Some(_)) => root.optional_size("sliding_window_pattern")?.unwrap_or(4),
    };
    let slides = config.sliding_layers(pattern)?;
    for (index, attention) in spec.attentions_mut() {
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = (window.is_none() || slides[index]).then_some(0);
    }
    Ok(())
}
