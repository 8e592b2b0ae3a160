//! Aria, the text part: Llama with experts, inputs first in their tensors, and some of all tokens.

use super::experts::{self, Sizes};
use super::llama;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertSpec, ExpertsSpec, SharedExpertSpec};
use vllm_batch_base::EngineError;

/// Llama's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = llama::spec(config)?;
    let (root, bias) = (config.root(), config.mlp_bias()?);
    let sizes = Sizes::read(config, &["moe_num_experts"], "intermediate_size")?;
    let num_shared = root.optional_size("moe_num_shared_experts")?.unwrap_or(2);
    let routing = experts::by_softmax_of_chosen(root.optional_size("moe_topk")?.unwrap_or(2));
    // The class has it for the chosen ones, whatever the others' is.
    root.expect("hidden_act", "silu")?;
    let activation = config.activation()?;
    let stored = |expert: ExpertSpec| ExpertSpec {
        up: expert.up.transposed(),
        down: expert.down.transposed(),
    };
    experts::set(
        &mut spec,
        |_| true,
        |index| {
            let name = |part: &str| format!("model.layers.{index}.mlp.{part}");
            let experts = sizes.stacked(&name("experts.fc1"), &name("experts.fc2"));
            let shared = sizes.shared(&name("shared_experts"), num_shared);
            let with_bias =
                |of: SharedExpertSpec| SharedExpertSpec { mlp: of.mlp.with_bias(bias), ..of };
            ExpertsSpec {
                experts: experts.into_iter().map(stored).collect(),
                shared: shared.map(with_bias),
                ..ExpertsSpec::new(sizes.router(name("router")), routing.clone(), activation)
            }
        },
    );
    Ok(spec)
}
