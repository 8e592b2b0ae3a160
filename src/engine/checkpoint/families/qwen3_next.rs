//! Qwen3-Next: gated delta nets, gated attention in some layers, experts and one of all tokens.

use serde_json::json;

use super::llama::{self, Defaults};
use super::qwen2_moe;
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::limits;
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, DeltaGate, DeltaNetSpec, LayerSpec, LinearSpec,
    NormSpec, OutputGate, RecurrentSpec, RowOrder, TapsSpec, grouped_delta_inputs,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Decay, DeltaHeads};

/// True where q, k, v and z have tensors of their own, and b and a: as GGUF files are read.
pub(crate) const DELTA_INPUTS_APART: &str = "delta_inputs_apart";

/// How files store what delta nets and experts are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inputs {
    /// `in_proj_qkvz` and `in_proj_ba`, by groups of key heads.
    Grouped,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a`.
    Apart,
}

/// The spec of a Qwen3-Next config.
pub(crate) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let inputs = match config.root().flag(DELTA_INPUTS_APART)?.unwrap_or(false) {
        true => Inputs::Apart,
        false => Inputs::Grouped,
    };
    let mut spec = layers(config, inputs, config.intermediate_size()?)?;
    qwen2_moe::set_experts(config, &mut spec, qwen2_moe::gated_expert(config)?)?;
    Ok(spec)
}

/// Delta nets and attention, each with an MLP of this inner width.
pub(super) fn layers(
    config: &HfConfig,
    inputs: Inputs,
    inner: usize,
) -> Result<DecoderSpec, EngineError> {
    config.assume(&[
        ("head_dim", json!(256)),
        ("linear_conv_kernel_dim", json!(4)),
        ("linear_key_head_dim", json!(128)),
        ("linear_num_key_heads", json!(16)),
        ("linear_num_value_heads", json!(32)),
        ("linear_value_head_dim", json!(128)),
        ("norm_topk_prob", json!(true)),
    ]);
    let (defaults, heads) = (Defaults::LLAMA, config.heads()?);
    let has_attention = layers_with_attention(config)?;
    // One for all layers: they have a value per row.
    let (delta_heads, q_and_gates) =
        (delta_heads(config, [None; 2])?, RowOrder::with_gates_of_heads(heads));
    let grouped = match inputs {
        Inputs::Grouped => Some(grouped_delta_inputs(delta_heads)),
        Inputs::Apart => None,
    };
    let mut spec = llama::around(config, defaults, |index| {
        let mlp = llama::mlp(config, defaults, (index, inner))?;
        if has_attention[index] {
            let block = llama::attention(config, defaults, (index, heads))?;
            return Ok(LayerSpec::new(gated(config, block, (index, &q_and_gates))?, mlp));
        }
        let net = delta_net(config, (delta_heads, grouped.as_ref()), index)?;
        let feed_forward = Some(mlp.into());
        Ok(LayerSpec {
            recurrent: Some(RecurrentSpec::DeltaNet(Box::new(net))),
            feed_forward,
            ..LayerSpec::default()
        })
    })?;
    let of_rope = RopeDefaults::new(defaults.rope_theta, 0.25);
    spec.ropes = vec![config.rope_with(LayerType::Full, of_rope)?];
    spec.residual_norms_mut().for_each(|norm| norm.weight_offset = Some(1.0));
    // Published files have layers that predict further tokens.
    spec.output.of_further_tokens = vec!["mtp.".to_owned()];
    Ok(spec)
}

/// By `layer_types`, which `full_attention_interval` agrees with, else by that.
fn layers_with_attention(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let types = root.texts("layer_types")?;
    let interval = root.optional_size("full_attention_interval")?;
    if interval == Some(0) {
        return Err(config.error("`full_attention_interval` is 0"));
    }
    let by_interval = |interval: usize| {
        (1..=num_layers).map(move |number| number.is_multiple_of(interval)).collect::<Vec<_>>()
    };
    let Some(types) = types else { return Ok(by_interval(interval.unwrap_or(4))) };
    let by_type = config.layers_that_attend(&types, &["full_attention"], &["linear_attention"])?;
    if by_type.len() != num_layers || interval.is_some_and(|i| by_interval(i) != by_type) {
        return Err(config.error("`layer_types` disagrees with another key"));
    }
    Ok(by_type)
}

/// Llama's attention with norms of q and k, and a gate beside each q head, in this order of rows.
fn gated(
    config: &HfConfig,
    mut block: AttentionSpec,
    (index, q_and_gates): (usize, &RowOrder),
) -> Result<AttentionSpec, EngineError> {
    let (heads, eps) = (block.heads, config.rms_norm_eps()?);
    let mut norms = llama::head_norms(index, ["q_norm", "k_norm"], heads.head_dim, eps);
    for norm in [Some(&mut norms.q), norms.k.as_mut()].into_iter().flatten() {
        norm.weight_offset = Some(1.0);
    }
    block.qk_norm = Some(norms);
    block.qkv.parts[0].rows *= 2;
    block.qkv.order = q_and_gates.clone();
    block.gate = Some(OutputGate::OF_VALUES);
    Ok(block)
}

/// Heads of the delta nets; widths of k and of v heads where the file has none.
pub(super) fn delta_heads(
    config: &HfConfig,
    widths: [Option<usize>; 2],
) -> Result<DeltaHeads, EngineError> {
    let root = config.root();
    let width = |key, default: Option<usize>| match default {
        Some(default) => root.size_or(key, default),
        None => root.size(key),
    };
    let heads = DeltaHeads {
        num_k_heads: root.size("linear_num_key_heads")?,
        num_v_heads: root.size("linear_num_value_heads")?,
        k_dim: width("linear_key_head_dim", widths[0])?,
        v_dim: width("linear_value_head_dim", widths[1])?,
    };
    limits::check_delta_heads(heads).map_err(|text| config.error(text))?;
    Ok(heads)
}

/// The delta net of a layer; `grouped`: in which order its fused inputs are stored.
fn delta_net(
    config: &HfConfig,
    (heads, grouped): (DeltaHeads, Option<&RowOrder>),
    index: usize,
) -> Result<DeltaNetSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, eps) = (config.hidden_size()?, config.rms_norm_eps()?);
    let part = |part: &str, rows: usize| (name(&format!("linear_attn.{part}")), rows);
    let (qkv, v, gates) = (heads.qkv_width(), heads.v_width(), heads.num_v_heads);
    let inputs = match grouped {
        Some(order) => {
            let parts = [part("in_proj_qkvz", qkv + v), part("in_proj_ba", 2 * gates)];
            LinearSpec::stacked(parts, hidden).in_order(order.clone())
        }
        None => {
            let gates = [part("in_proj_b", gates), part("in_proj_a", gates)];
            let parts = [part("in_proj_qkv", qkv), part("in_proj_z", v)].into_iter().chain(gates);
            LinearSpec::stacked(parts, hidden)
        }
    };
    let num_taps = config.root().size("linear_conv_kernel_dim")?;
    Ok(DeltaNetSpec {
        norms: BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps)),
        heads,
        inputs,
        low_rank: None,
        taps: TapsSpec::new(name("linear_attn.conv1d"), qkv, num_taps),
        decay: Decay::OfHeads,
        a_log: (name("linear_attn.A_log"), vec![heads.num_v_heads]),
        dt_bias: name("linear_attn.dt_bias"),
        beta_factor: 1.0,
        norm: NormSpec::rms(name("linear_attn.norm"), heads.v_dim, eps),
        output_gate: DeltaGate::Silu,
        out: LinearSpec::new(name("linear_attn.out_proj"), hidden, v),
    })
}
