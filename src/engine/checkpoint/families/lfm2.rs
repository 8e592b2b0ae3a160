//! LFM2: short convolutions, and attention in some layers; with MLPs, or with experts after some
//! dense layers.

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use super::mixtral;
use crate::hf_config::HfConfig;
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, ExpertsSpec, LayerSpec, LinearSpec, MlpSpec, NormSpec,
    RecurrentSpec, ShortConvSpec, TapsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ExpertWeight};

/// MLPs whose width follows from another one.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    layers(config, intermediate_size(config)?)
}

/// Experts, chosen by sigmoids and a bias.
pub(super) fn spec_with_experts(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let mut spec = layers(config, config.intermediate_size()?)?;
    let sizes = Sizes::read(config, &["num_experts"], "moe_intermediate_size")?;
    let num_dense = root.optional_size("num_dense_layers")?.unwrap_or(2);
    let has_bias = root.flag("use_expert_bias")?.unwrap_or(true);
    let weight = match root.flag("norm_topk_prob")?.unwrap_or(true) {
        true => ExpertWeight::Share { added: 1e-6, at_least: 0.0 },
        false => ExpertWeight::Score,
    };
    let scale = root.number("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    let routing = experts::by_sigmoid_of_all(experts::num_of_token(config)?, weight, scale);
    experts::set(
        &mut spec,
        |index| index >= num_dense,
        |index| {
            let name = format!("model.layers.{index}.feed_forward");
            let parts = (&routing, Activation::Silu);
            ExpertsSpec {
                choice_bias: has_bias.then(|| (format!("{name}.expert_bias"), vec![sizes.num])),
                ..sizes.block(&name, mixtral::PARTS, parts)
            }
        },
    );
    Ok(spec)
}

/// Names and norms of LFM2's own around Llama's attention and MLP of this inner width.
fn layers(config: &HfConfig, inner: usize) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let eps = root.number("norm_eps")?.map_or(1e-5, |eps| eps as f32);
    let tied = root.flag("tie_embedding")?;
    if let Some(tied) = tied {
        root.expect("tie_word_embeddings", tied)?;
    }
    let defaults = Defaults {
        rope_theta: 1e6,
        rms_norm_eps: eps,
        is_tied: tied.unwrap_or(true),
        ..Defaults::LLAMA
    };
    check_other_keys(config)?;
    let has_attention = layers_with_attention(config)?;
    if has_attention.iter().all(|attends| *attends) {
        // Of convolutions, which no layer has.
        root.ignore(&["conv_L_cache", "conv_bias"]);
    }
    let (hidden, heads) = (config.hidden_size()?, config.heads()?);
    let mut spec = llama::around(config, defaults, |index| {
        let mlp = mlp(llama::mlp(config, defaults, (index, inner))?, (index, hidden, eps));
        if has_attention[index] {
            let block = llama::attention(config, defaults, (index, heads))?;
            return Ok(LayerSpec::new(attention(block, (index, eps)), mlp));
        }
        let conv = short_conv(config, (index, hidden, eps))?;
        let recurrent = Some(RecurrentSpec::ShortConv(Box::new(conv)));
        Ok(LayerSpec { recurrent, feed_forward: Some(mlp.into()), ..LayerSpec::default() })
    })?;
    spec.output.norm = Some(NormSpec::rms("model.embedding_norm", hidden, eps));
    Ok(spec)
}

/// Keys of published files that transformers does not read; they say what its code does anyway.
fn check_other_keys(config: &HfConfig) -> Result<(), EngineError> {
    let (root, hidden) = (config.root(), config.hidden_size()?);
    for key in ["block_dim", "conv_dim", "conv_dim_out"] {
        root.expect(key, hidden)?;
    }
    root.expect("num_heads", config.num_heads()?)?;
    root.expect("block_use_swiglu", true)?;
    root.expect("use_pos_enc", true)?;
    // Of training: what weights begin as. And an epsilon besides `norm_eps`, which is used.
    root.ignore(&[
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
    ]);
    Ok(())
}

/// By `layer_types`, else by `full_attn_idxs`, else all.
fn layers_with_attention(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let numbers = root.numbers("full_attn_idxs")?;
    let by_number = numbers.map(|numbers| {
        let is_listed = |index: usize| numbers.contains(&(index as f64));
        (0..num_layers).map(is_listed).collect::<Vec<_>>()
    });
    let Some(types) = root.texts("layer_types")? else {
        return Ok(by_number.unwrap_or_else(|| vec![true; num_layers]));
    };
    let by_type = config.layers_that_attend(&types, &["full_attention"], &["conv"])?;
    if by_type.len() != num_layers || by_number.is_some_and(|numbers| numbers != by_type) {
        return Err(config.error("`layer_types` disagrees with another key"));
    }
    Ok(by_type)
}

/// Inner width of the MLP: the given one, or what LFM2 makes of it.
fn intermediate_size(config: &HfConfig) -> Result<usize, EngineError> {
    let root = config.root();
    let given = root.size_of(&["block_ff_dim", "intermediate_size"])?;
    let multiplier = root.number("block_ffn_dim_multiplier")?;
    let multiple = root.optional_size("block_multiple_of")?.unwrap_or(256);
    if !root.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(given);
    }
    if multiple == 0 {
        return Err(config.error("`block_multiple_of` of 0 is not supported"));
    }
    let shorter = (2.0 * given as f64 / 3.0) as usize;
    Ok(match multiplier {
        None => shorter,
        Some(multiplier) => ((multiplier * shorter as f64) as usize).next_multiple_of(multiple),
    })
}

fn attention(block: AttentionSpec, (index, eps): (usize, f32)) -> AttentionSpec {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, head_dim) = (block.out.n(), block.heads.head_dim);
    let names = ["q_layernorm", "k_layernorm"];
    AttentionSpec {
        norms: BlockNorms::before(NormSpec::rms(name("operator_norm"), hidden, eps)),
        qk_norm: Some(llama::head_norms(index, names, head_dim, eps)),
        out: LinearSpec::new(name("self_attn.out_proj"), hidden, block.out.k),
        ..block
    }
}

/// The MLP under LFM2's names.
pub(super) fn mlp(block: MlpSpec, (index, hidden, eps): (usize, usize, f32)) -> MlpSpec {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let inner = block.down.k;
    let up = ["feed_forward.w1", "feed_forward.w3"].map(|part| (name(part), inner));
    MlpSpec {
        norms: BlockNorms::before(NormSpec::rms(name("ffn_norm"), hidden, eps)),
        up: LinearSpec::stacked(up, hidden),
        down: LinearSpec::new(name("feed_forward.w2"), hidden, inner),
        ..block
    }
}

/// The short convolution of a layer.
pub(super) fn short_conv(
    config: &HfConfig,
    (index, hidden, eps): (usize, usize, f32),
) -> Result<ShortConvSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let root = config.root();
    let bias = root.flag("conv_bias")?.unwrap_or(false);
    let inputs = LinearSpec::new(name("conv.in_proj"), 3 * hidden, hidden);
    Ok(ShortConvSpec {
        norms: BlockNorms::before(NormSpec::rms(name("operator_norm"), hidden, eps)),
        inputs: inputs.with_bias(bias),
        taps: TapsSpec::new(
            name("conv.conv"),
            hidden,
            root.optional_size("conv_L_cache")?.unwrap_or(3),
        )
        .with_bias(bias),
        out: LinearSpec::new(name("conv.out_proj"), hidden, hidden).with_bias(bias),
    })
}
