//! Cohere 2 with experts (Command A+): in the place of MLPs, behind some dense layers of their own
//! width that are always rotated.

use super::cohere;
use super::experts::{self, PROJECTIONS, Sizes};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertsSpec, NormSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertWeight, NormKind, Reach};

/// Cohere's spec with windows and experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = cohere::cohere(config, 10_000.0)?;
    let root = config.root();
    if let Some(eps) = root.number("rms_norm_eps")? {
        let as_rms = |norm: &mut NormSpec| (norm.kind, norm.eps) = (NormKind::Rms, eps as f32);
        spec.residual_norms_mut().for_each(as_rms);
    }
    let num_dense = root.optional_size("first_k_dense_replace")?.unwrap_or(0);
    let is_sparse = experts::sparse_behind(config, 0)?;
    let pattern = root.size_or("sliding_window_pattern", 4)?;
    let of_dense = root.size_or("prefix_dense_sliding_window_pattern", 1)?;
    let window = root.size_or_none("sliding_window", 4096)?;
    let slides = config.sliding_layers_or(|index| match index.checked_sub(num_dense) {
        Some(index) => !(index + 1).is_multiple_of(pattern),
        None => !(index + 1).is_multiple_of(of_dense),
    })?;
    for (index, attention) in spec.attentions_mut() {
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        let always_turns = !is_sparse[index] && of_dense == 1;
        let turns = always_turns || attention.reach != Reach::All;
        attention.rope = turns.then_some(0);
    }
    if let Some(inner) = root.optional_size("prefix_dense_intermediate_size")? {
        for (_, mlp) in spec.mlps_mut() {
            mlp.up.parts.iter_mut().for_each(|part| part.rows = inner);
            mlp.down.k = inner;
        }
    }
    set_experts(config, &mut spec, &is_sparse)?;
    Ok(spec)
}

/// Experts, and some of all tokens, which are added to them or averaged with them.
fn set_experts(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    is_sparse: &[bool],
) -> Result<(), EngineError> {
    let root = config.root();
    let num = experts::num_of_token(config)?;
    let is_share = root.flag("norm_topk_prob")?.unwrap_or(true);
    let routing = match root.text("expert_selection_fn")?.unwrap_or("softmax") {
        "softmax" => experts::by_softmax_of_chosen(num),
        "sigmoid" => {
            let weight = if is_share { ExpertWeight::SHARE } else { ExpertWeight::Score };
            experts::by_sigmoid_of_all(num, weight, 1.0)
        }
        _ => return Err(config.error("this `expert_selection_fn` is not supported")),
    };
    let sizes = Sizes::read(config, &["num_experts", "num_local_experts"], "intermediate_size")?;
    let num_shared = root.optional_size("num_shared_experts")?.unwrap_or(0);
    let scale = match root.text("shared_expert_combination_strategy")?.unwrap_or("average") {
        "average" => (num_shared > 0).then_some(0.5),
        "sum" => None,
        _ => {
            let text = "this `shared_expert_combination_strategy` is not supported";
            return Err(config.error(text));
        }
    };
    let activation = config.activation()?;
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            ExpertsSpec {
                shared: sizes.shared(&format!("{name}.shared_experts"), num_shared),
                ..sizes.block(&name, PROJECTIONS, (&routing, activation))
            }
        },
    );
    for layer in spec.layers.iter_mut().filter(|layer| layer.experts().is_some()) {
        layer.scales.feed_forward = scale;
    }
    Ok(())
}
