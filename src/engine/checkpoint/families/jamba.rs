//! Jamba: Llama whose layers have Mamba 1's recurrence, or attention without a rotation, and an MLP
//! or experts.

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use super::mamba;
use super::selective::{self, Blocks, ChoiceNorms};
use crate::hf_config::HfConfig;
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, ExpertsSpec, LayerSpec, LinearSpec, MlpSpec, NormSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, SelectiveShape};

/// Longest context of the class, where no key says it.
const MAX_MODEL_LEN: usize = 1 << 18;

/// Llama's spec around layers of both kinds.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (root, defaults) = (config.root(), Defaults::LLAMA);
    let max_model_len = root.size_or("max_position_embeddings", MAX_MODEL_LEN)?;
    // Of prompts, of what is computed how, and lengths that trainers went by.
    root.ignore(&[
        "calc_logits_for_entire_prompt",
        "n_ctx",
        "num_logits_to_keep",
        "use_associative_scan",
        "use_mamba_kernels",
        "use_mambapy",
    ]);
    root.expect("mamba_inner_layernorms", true)?;
    if let Some(window) = root.value("sliding_window") {
        return Err(config.error(format!("`sliding_window` of {window} is not supported")));
    }
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    let (inner, eps) =
        (config.intermediate_size()?, config.rms_norm_eps_or(defaults.rms_norm_eps)?);
    let blocks = blocks(config, eps)?;
    let attends = layers(config, "attn", [8, 4])?;
    mamba::expect_types(config, &attends, "attn_layer_period")?;
    let mut spec = llama::around_with(config, defaults, (Vec::new(), max_model_len), |index| {
        let mlp = mlp(llama::mlp(config, defaults, (index, inner))?, (index, eps));
        if attends[index] {
            let attention = llama::attention(config, defaults, (index, heads))?;
            return Ok(LayerSpec::new(AttentionSpec { rope: None, ..attention }, mlp));
        }
        let name = |part: &str| format!("model.layers.{index}.{part}");
        let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
        let recurrent = Some(blocks.block(&name("mamba"), norms));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    spec.output.norm = Some(NormSpec::rms("model.final_layernorm", hidden, eps));
    set_experts(config, &mut spec)?;
    Ok(spec)
}

fn blocks(config: &HfConfig, eps: f32) -> Result<Blocks, EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let size = |key, default| root.size_or(key, default);
    Blocks {
        hidden,
        shape: SelectiveShape {
            num_channels: size("mamba_expand", 2)?.saturating_mul(hidden),
            num_groups: 1,
            rank: selective::rank(config, "mamba_dt_rank", hidden)?,
            state_size: size("mamba_d_state", 16)?,
        },
        num_taps: size("mamba_d_conv", 4)?,
        has_conv_bias: root.flag("mamba_conv_bias")?.unwrap_or(true),
        has_bias: root.flag("mamba_proj_bias")?.unwrap_or(false),
        activation: config.activation_or(Activation::Silu)?,
        norms: Some(ChoiceNorms { eps, has_weights: true }),
    }
    .checked(config)
}

/// Which layers are of a kind: one in every `<kind>_layer_period`, from `<kind>_layer_offset` on.
fn layers(config: &HfConfig, kind: &str, defaults: [usize; 2]) -> Result<Vec<bool>, EngineError> {
    let [period, offset] = [format!("{kind}_layer_period"), format!("{kind}_layer_offset")];
    let period = config.root().size_or(&period, defaults[0])?;
    let offset = config.root().optional_size(&offset)?.unwrap_or(defaults[1]);
    if offset >= period {
        return Err(config.error(format!("`{kind}_layer_offset` is not below the period")));
    }
    Ok((0..config.num_layers()?).map(|index| index % period == offset).collect())
}

/// An MLP under Jamba's names.
fn mlp(block: MlpSpec, (index, eps): (usize, f32)) -> MlpSpec {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner) = (block.down.n(), block.down.k);
    let up = ["feed_forward.gate_proj", "feed_forward.up_proj"].map(|part| (name(part), inner));
    MlpSpec {
        norms: BlockNorms::before(NormSpec::rms(name("pre_ff_layernorm"), hidden, eps)),
        up: LinearSpec::stacked(up, hidden),
        down: LinearSpec::new(name("feed_forward.down_proj"), hidden, inner),
        ..block
    }
}

/// Experts by a softmax over all, as it is, in some layers.
fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    config.assume(&[
        ("num_experts", serde_json::json!(16)),
        ("num_experts_per_tok", serde_json::json!(2)),
    ]);
    let is_sparse = layers(config, "expert", [2, 1])?;
    let sizes = Sizes::read(config, &["num_experts", "num_local_experts"], "intermediate_size")?;
    let num_of_token = experts::num_of_token(config)?;
    if sizes.num == 1 {
        return Ok(());
    }
    let (routing, activation) = (experts::by_softmax(num_of_token, false), config.activation()?);
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.feed_forward");
            let router = sizes.router(format!("{name}.router"));
            ExpertsSpec {
                experts: sizes.experts(&format!("{name}.experts"), PROJECTIONS),
                ..ExpertsSpec::new(router, routing.clone(), activation)
            }
        },
    );
    Ok(())
}
