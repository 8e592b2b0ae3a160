//! Mamba 1 and Falcon Mamba: blocks of the recurrence alone, no attention and no MLP.

use super::mamba2;
use super::selective::{self, Blocks, ChoiceNorms};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, SelectiveShape};

/// The recurrence in every layer.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    with_norms(config, None)
}

/// The same with norms, which have no weights, of what chooses.
pub(super) fn falcon(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let eps = config.root().number("mixer_rms_eps")?.unwrap_or(1e-6) as f32;
    config.root().ignore(&["use_falcon_mambapy"]);
    with_norms(config, Some(ChoiceNorms { eps, has_weights: false }))
}

fn with_norms(config: &HfConfig, norms: Option<ChoiceNorms>) -> Result<DecoderSpec, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let size = |key, default| root.size_or(key, default);
    let eps = config.layer_norm_eps(1e-5)?;
    // Published files may have a width that `expand` does not give, and it counts.
    let expanded = size("expand", 2)?.saturating_mul(hidden);
    let num_channels = size("intermediate_size", expanded)?;
    root.expect("d_inner", num_channels)?;
    root.expect("d_model", hidden)?;
    root.expect("n_layer", config.num_layers()?)?;
    root.expect("rms_norm", true)?;
    // Of training, of how much is computed at once, and of residuals, which are in f32 here; and of
    // the code that the weights were trained by.
    root.ignore(&[
        "fused_add_norm",
        "pad_vocab_size_multiple",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "ssm_cfg",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_max",
        "time_step_min",
        "time_step_scale",
        "use_associative_scan",
        "use_mambapy",
    ]);
    let shape = SelectiveShape {
        num_channels,
        num_groups: 1,
        rank: selective::rank(config, "time_step_rank", hidden)?,
        state_size: size("state_size", 16)?,
    };
    let blocks = Blocks {
        hidden,
        shape,
        num_taps: size("conv_kernel", 4)?,
        has_conv_bias: root.flag("use_conv_bias")?.unwrap_or(true),
        has_bias: root.flag("use_bias")?.unwrap_or(false),
        activation: config.activation_or(Activation::Silu)?,
        norms,
    };
    let blocks = blocks.checked(config)?;
    mamba2::around(config, (eps, true), |name, norms| blocks.block(name, norms))
}
