//! Mixtral: Mistral whose layers have experts in place of MLPs.

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// Gate, up and down.
pub(super) const PARTS: [&str; 3] = ["w1", "w3", "w2"];

/// Mistral's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rope_theta: 1e6, rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let window = config.sliding_window()?;
    spec.attentions_mut().for_each(|(_, attention)| attention.reach = Reach::of_window(window));
    // Noise of training.
    config.root().ignore(&["router_jitter_noise"]);
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let routing = experts::by_softmax(experts::num_of_token(config)?, true);
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.block_sparse_moe");
            sizes.block(&name, PARTS, (&routing, activation))
        },
    );
    Ok(spec)
}
