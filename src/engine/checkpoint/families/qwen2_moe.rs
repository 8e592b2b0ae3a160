//! Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B-A14B): Qwen2 with experts, and one of all tokens behind a
//! gate.

use super::experts::{self, PROJECTIONS, Sizes};
use super::qwen2;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertsSpec, LinearSpec, SharedExpertSpec};
use vllm_batch_base::EngineError;

/// Qwen2's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = qwen2::spec(config)?;
    let root = config.root();
    let bias = root.flag("qkv_bias")?.unwrap_or(true);
    spec.attentions_mut().for_each(|(_, attention)| attention.qkv.bias = bias);
    set_experts(config, &mut spec, gated_expert(config)?)?;
    Ok(spec)
}

/// The expert of all tokens, behind a gate, of the block of a name.
pub(super) fn gated_expert(
    config: &HfConfig,
) -> Result<impl Fn(&str) -> Option<SharedExpertSpec> + use<>, EngineError> {
    let hidden = config.hidden_size()?;
    let inner = config.root().size("shared_expert_intermediate_size")?;
    Ok(move |name: &str| {
        let gate = LinearSpec::new(format!("{name}.shared_expert_gate"), 1, hidden);
        let mlp = experts::shared(&format!("{name}.shared_expert"), hidden, inner);
        Some(SharedExpertSpec { mlp, gate: Some(gate) })
    })
}

/// Experts by a softmax in every `decoder_sparse_step`th layer, without those in
/// `mlp_only_layers`; `shared` gives that of all tokens of the block that has this name.
pub(super) fn set_experts(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    shared: impl Fn(&str) -> Option<SharedExpertSpec>,
) -> Result<(), EngineError> {
    let root = config.root();
    // transformers has another rule for these windows than Qwen2's; no published model has any.
    root.expect("use_sliding_window", false)?;
    let keys = ["num_experts", "num_local_experts"];
    let sizes = Sizes::read(config, &keys, "moe_intermediate_size")?;
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(false);
    let routing = experts::by_softmax(experts::num_of_token(config)?, is_share);
    let activation = config.activation()?;
    let step = root.optional_size("decoder_sparse_step")?.unwrap_or(1);
    let dense = root.numbers("mlp_only_layers")?.unwrap_or_default();
    if step == 0 {
        return Err(root.error("`decoder_sparse_step` is 0"));
    }
    let is_sparse =
        |index: usize| (index + 1).is_multiple_of(step) && !dense.contains(&(index as f64));
    experts::set(spec, is_sparse, |index| {
        let name = format!("model.layers.{index}.mlp");
        let shared = shared(&name);
        ExpertsSpec { shared, ..sizes.block(&name, PROJECTIONS, (&routing, activation)) }
    });
    Ok(())
}
