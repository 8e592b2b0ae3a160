//! OLMoE: Llama with norms of all of q and all of k, and experts in place of MLPs.

use serde_json::Value;

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use super::olmo2;
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;

/// Llama's spec with norms and experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
    let mut spec = llama::spec_with(config, defaults)?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    for (index, attention) in spec.attentions_mut() {
        attention.qk_norm = Some(olmo2::norms_of_all_heads(index, attention.heads, eps));
    }
    // It would bound q and k after their norms. No published model has it.
    config.root().expect("clip_qkv", Value::Null)?;
    set_experts(config, &mut spec)?;
    Ok(spec)
}

/// Experts by a softmax in every layer.
pub(super) fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let keys = ["num_experts", "num_local_experts"];
    let sizes = Sizes::read(config, &keys, "intermediate_size")?;
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(false);
    let routing = experts::by_softmax(experts::num_of_token(config)?, is_share);
    let activation = config.activation()?;
    experts::set(
        spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.mlp");
            sizes.block(&name, PROJECTIONS, (&routing, activation))
        },
    );
    Ok(())
}
