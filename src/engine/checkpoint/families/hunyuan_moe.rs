//! Hunyuan-A13B: Hunyuan with experts, and one of all tokens.

use serde_json::Value;

use super::experts::{self, PROJECTIONS, Sizes};
use super::hunyuan_dense;
use crate::hf_config::{HfConfig, Section};
use crate::spec::{DecoderSpec, ExpertsSpec};
use vllm_batch_base::EngineError;

/// Hunyuan's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = hunyuan_dense::spec(config)?;
    let root = config.root();
    let sizes = Sizes::read(config, &["num_experts", "num_local_experts"], "intermediate_size")?;
    // transformers' class reads none of these: what they may say is what it computes.
    for (key, expected) in [("moe_intermediate_size", sizes.inner), ("num_shared_expert", 1)] {
        if of_all_layers(&root, key)?.is_some_and(|found| found != expected) {
            return Err(root.error(format!("another `{key}` than {expected} is not supported")));
        }
    }
    root.expect("use_mixed_mlp_moe", true)?;
    root.expect("moe_layer_num_skipped", 0)?;
    root.expect("norm_topk_prob", true)?;
    root.expect("group_limited_greedy", false)?;
    if root.value("routed_scaling_factor") != Some(&Value::Bool(false)) {
        root.expect("routed_scaling_factor", 1.0)?;
    }
    // How tokens are dropped in training.
    root.ignore(&["capacity_factor", "moe_drop_tokens", "moe_random_routing_dropped_token"]);
    // Of groups, which are not used.
    root.ignore(&["n_group", "topk_group"]);
    let key = "moe_topk";
    let Some(num_chosen) = of_all_layers(&root, key)? else {
        return Err(root.error(format!("`{key}` is missing")));
    };
    let routing = experts::by_softmax(num_chosen, true);
    let activation = config.activation()?;
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = format!("model.layers.{index}.mlp");
            let router = sizes.router(format!("{name}.gate.wg"));
            ExpertsSpec {
                router,
                shared: sizes.shared(&format!("{name}.shared_mlp"), 1),
                ..sizes.block(&name, PROJECTIONS, (&routing, activation))
            }
        },
    );
    Ok(spec)
}

/// A count, or a list of equal ones, one for each layer.
fn of_all_layers(root: &Section<'_>, key: &str) -> Result<Option<usize>, EngineError> {
    if !root.value(key).is_some_and(Value::is_array) {
        return root.optional_size(key);
    }
    let counts = root.numbers(key)?.unwrap_or_default();
    match counts.first() {
        Some(first) if *first >= 0.0 && counts.iter().all(|count| count == first) => {
            Ok(Some(*first as usize))
        }
        _ => Err(root.error(format!("`{key}` differs between layers; that is not supported"))),
    }
}
