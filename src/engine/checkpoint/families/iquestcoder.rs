//! IQuest-Coder: Llama whose q, k and v may be bounded.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with `clip_qkv`.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 500_000.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let root = config.root();
    let clip = root.number("clip_qkv")?.map(|clip| clip as f32);
    spec.attentions_mut().for_each(|(_, attention)| attention.clip_qkv = clip);
    root.expect("use_sliding_window", false)?;
    // Without windows these say nothing.
    root.ignore(&["sliding_window", "max_window_layers"]);
    Ok(spec)
}
