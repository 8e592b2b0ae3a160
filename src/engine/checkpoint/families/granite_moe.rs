//! Granite 3 with experts: Granite whose layers have experts in two tensors, and perhaps an MLP of
//! all tokens beside them.

use super::experts::{self, EXPERTS_APART, PROJECTIONS, Sizes};
use super::granite;
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, ExpertSpec, ExpertsSpec, LinearSpec, SharedExpertSpec};
use vllm_batch_base::EngineError;

/// Names of what a block of experts has.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpertNames {
    /// `router.layer`, `input_linear`, `output_linear`.
    Layers,
    /// `router`, `experts.gate_up_proj`, `experts.down_proj`, as transformers has them in memory.
    Parameters,
}

/// Granite's spec with experts.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = granite::spec(config)?;
    set_experts(config, &mut spec, (0, ExpertNames::Layers))?;
    Ok(spec)
}

/// The same with an MLP of all tokens, of `shared_intermediate_size`.
pub(super) fn shared(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    shared_with(config, ExpertNames::Layers)
}

/// The same under these names.
pub(super) fn shared_with(
    config: &HfConfig,
    names: ExpertNames,
) -> Result<DecoderSpec, EngineError> {
    let shared = config.root().optional_size("shared_intermediate_size")?.unwrap_or(0);
    let mut spec = granite::spec(config)?;
    set_experts(config, &mut spec, (shared, names))?;
    Ok(spec)
}

/// The MLP of all tokens of this name, whose gate and up may be apart.
pub(super) fn shared_mlp(
    is_apart: bool,
    name: &str,
    (hidden, inner): (usize, usize),
) -> ExpertSpec {
    match is_apart {
        true => experts::shared(name, hidden, inner),
        false => ExpertSpec {
            up: LinearSpec::new(format!("{name}.input_linear"), 2 * inner, hidden),
            down: LinearSpec::new(format!("{name}.output_linear"), hidden, inner),
        },
    }
}

/// Gives every layer experts, and an MLP of all tokens that is so wide.
pub(super) fn set_experts(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    (shared, names): (usize, ExpertNames),
) -> Result<(), EngineError> {
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let routing = experts::by_softmax_of_chosen(experts::num_of_token(config)?);
    let activation = config.activation()?;
    let are_apart = config.root().flag(EXPERTS_APART)?.unwrap_or(false);
    experts::set(
        spec,
        |_| true,
        |index| {
            let name = |part: &str| format!("model.layers.{index}.{part}");
            let of_block = |part: &str| name(&format!("block_sparse_moe.{part}"));
            let router = match names {
                ExpertNames::Layers => sizes.router(of_block("router.layer")),
                ExpertNames::Parameters => sizes.router(of_block("router")),
            };
            let mlp = shared_mlp(are_apart, &name("shared_mlp"), (sizes.hidden, shared));
            ExpertsSpec {
                experts: match (are_apart, names) {
                    (true, _) => sizes.experts(&of_block("experts"), PROJECTIONS),
                    (false, ExpertNames::Layers) => {
                        sizes.stacked(&of_block("input_linear"), &of_block("output_linear"))
                    }
                    (false, ExpertNames::Parameters) => {
                        let parts = ["experts.gate_up_proj", "experts.down_proj"].map(of_block);
                        let experts = sizes.stacked(&parts[0], &parts[1]).into_iter();
                        experts.map(ExpertSpec::as_parameters).collect()
                    }
                },
                shared: (shared > 0).then_some(SharedExpertSpec { mlp, gate: None }),
                ..ExpertsSpec::new(router, routing.clone(), activation)
            }
        },
    );
    Ok(())
}
