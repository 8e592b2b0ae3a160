//! Phi-3.5-MoE: Llama with LayerNorms, biases, longrope, and experts that are weighed one by one.

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use super::mixtral;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{NormKind, Reach, Routing};

/// Llama's spec with what differs.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 1e6, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    for norm in spec.residual_norms_mut() {
        *norm = NormSpec { kind: NormKind::Layer, bias: true, ..norm.clone() };
    }
    let window = config.sliding_window()?;
    spec.attentions_mut().for_each(|(_, attention)| attention.reach = Reach::of_window(window));
    let root = config.root();
    let bias = root.flag("lm_head_bias")?.unwrap_or(false);
    match &mut spec.output.lm_head {
        Some(head) => head.bias = bias,
        None => root.expect("lm_head_bias", false)?,
    }
    // Files without longrope have it too.
    root.ignore(&["original_max_position_embeddings"]);
    // Noise of training.
    root.ignore(&["input_jitter_noise"]);
    root.expect("num_experts_per_tok", 2)?;
    let jitter = root.number("router_jitter_noise")?.unwrap_or(0.01) as f32;
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.block_sparse_moe");
            sizes.block(&name, mixtral::PARTS, (&Routing::SparseMixer { jitter }, activation))
        },
    );
    Ok(spec)
}
