//! Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama with fused tensors, a window and longrope.

use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, LinearSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Llama's spec with fused tensors.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let (root, hidden) = (config.root(), spec.hidden_size());
    // Phi-4-mini's files name what its code does not do.
    root.expect("full_attn_mod", 1)?;
    root.expect("interpolate_factor", 1)?;
    root.expect("lm_head_bias", false)?;
    // Files without longrope have it too.
    root.ignore(&["original_max_position_embeddings"]);
    let window = config.sliding_window()?;
    for (index, attention) in spec.attentions_mut() {
        let name = format!("model.layers.{index}.self_attn.qkv_proj");
        attention.qkv = LinearSpec::new(name, attention.heads.qkv_width(), hidden);
        attention.out.bias = false;
        attention.reach = Reach::of_window(window);
    }
    for (index, mlp) in spec.mlps_mut() {
        let name = format!("model.layers.{index}.mlp.gate_up_proj");
        mlp.up = LinearSpec::new(name, 2 * mlp.down.k, hidden);
        mlp.down.bias = false;
    }
    Ok(spec)
}
