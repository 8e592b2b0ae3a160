//! Qwen3-Next and Qwen3.5 in GGUF files. llama.cpp stores q, k, v and z of delta nets apart, and
//! in Qwen3.5 heads of V by turns, where transformers has those of one K head together.

use std::sync::Arc;

use super::archs::Class;
use super::config::Config;
use super::names::{Moved, NameTable, Parts};
use super::tables::{EXPERTS, LLAMA_LAYER, PLAIN};
use crate::families::qwen3_next::DELTA_INPUTS_APART;
use crate::limits;
use vllm_batch_base::layers::DeltaHeads;

const DELTA_NET: Parts = &[
    ("post_attention_norm", "post_attention_layernorm"),
    ("attn_qkv", "linear_attn.in_proj_qkv"),
    ("attn_gate", "linear_attn.in_proj_z"),
    ("ssm_ba", "linear_attn.in_proj_{}"),
    ("ssm_beta", "linear_attn.in_proj_b"),
    ("ssm_alpha", "linear_attn.in_proj_a"),
    ("ssm_conv1d", "linear_attn.conv1d"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_norm", "linear_attn.norm"),
    ("ssm_out", "linear_attn.out_proj"),
];

const NAMES: NameTable = NameTable {
    inner: &[DELTA_NET, EXPERTS, LLAMA_LAYER],
    adds_one: true,
    further: Some("mtp.layers."),
    ..PLAIN
};

pub(super) fn qwen3next(config: &mut Config<'_>) -> Result<Class, String> {
    let heads = layers(config, true)?;
    config.set(DELTA_INPUTS_APART, true);
    // Of each K head: b of its V heads, then a.
    let per_k = heads.num_v_heads / heads.num_k_heads;
    let of_each = |first: usize| {
        let row = move |head: usize| (head / per_k * 2 * per_k + first + head % per_k) as u32;
        (0..heads.num_v_heads).map(row).collect::<Arc<[u32]>>()
    };
    config.is_moved("ssm_ba", Moved::Split(vec![("b", of_each(0)), ("a", of_each(per_k))]));
    Ok(("Qwen3NextForCausalLM", NAMES))
}

pub(super) fn qwen35(config: &mut Config<'_>) -> Result<Class, String> {
    of_qwen35(config, false)?;
    Ok(("Qwen3_5ForCausalLM", NAMES))
}

/// The same with experts.
pub(super) fn qwen35moe(config: &mut Config<'_>) -> Result<Class, String> {
    of_qwen35(config, true)?;
    Ok(("Qwen3_5MoeForCausalLM", NAMES))
}

fn of_qwen35(config: &mut Config<'_>, has_experts: bool) -> Result<(), String> {
    // In text the axes of positions are equal.
    config.keys.ignore(&["rope.dimension_sections"]);
    let heads = layers(config, has_experts)?;
    let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = heads;
    if num_k_heads == num_v_heads {
        return Ok(());
    }
    // The file has the first V head of every K head, then the second ones.
    let per_k = num_v_heads / num_k_heads;
    let stored = move |head: usize| head % per_k * num_k_heads + head / per_k;
    let heads_of = |width: usize| {
        (0..num_v_heads).flat_map(move |head| {
            let first = stored(head) * width;
            first as u32..(first + width) as u32
        })
    };
    let first_v = 2 * (num_k_heads * k_dim) as u32;
    let qkv: Arc<[u32]> = (0..first_v).chain(heads_of(v_dim).map(|row| first_v + row)).collect();
    for part in ["attn_qkv", "ssm_conv1d"] {
        config.is_moved(part, Moved::Rows(Arc::clone(&qkv)));
    }
    config.is_moved("attn_gate", Moved::Rows(heads_of(v_dim).collect()));
    for part in ["ssm_beta", "ssm_alpha", "ssm_dt.bias", "ssm_a"] {
        config.is_moved(part, Moved::Rows(heads_of(1).collect()));
    }
    config.is_moved("ssm_out", Moved::Columns(heads_of(v_dim).collect()));
    Ok(())
}

/// What all of them have; weights of experts are shares of a sum, which no key says.
fn layers(config: &mut Config<'_>, has_experts: bool) -> Result<DeltaHeads, String> {
    // They stand behind the others.
    let num_further = config.further_layers()?;
    if has_experts {
        config.experts()?;
        config.set("norm_topk_prob", true);
        let inner = config.keys.size("expert_feed_forward_length")?;
        config.set("moe_intermediate_size", inner);
        let shared = config.keys.optional_size("expert_shared_feed_forward_length")?;
        config.set("shared_expert_intermediate_size", shared.unwrap_or(inner));
    }
    config.decoder()?;
    layer_types(config, num_further)?;
    let size = |key: &str| {
        let size = config.keys.size(key)?;
        usize::try_from(size).map_err(|_| format!("{key} is {size}"))
    };
    let (num_v_heads, inner) = (size("ssm.time_step_rank")?, size("ssm.inner_size")?);
    let heads = DeltaHeads {
        num_k_heads: size("ssm.group_count")?,
        num_v_heads,
        k_dim: size("ssm.state_size")?,
        v_dim: inner.checked_div(num_v_heads).unwrap_or(0),
    };
    limits::check_delta_heads(heads)?;
    let num_taps = size("ssm.conv_kernel")?;
    for (key, size) in [
        ("linear_num_key_heads", heads.num_k_heads),
        ("linear_num_value_heads", heads.num_v_heads),
        ("linear_key_head_dim", heads.k_dim),
        ("linear_value_head_dim", heads.v_dim),
        ("linear_conv_kernel_dim", num_taps),
    ] {
        config.set(key, size);
    }
    Ok(heads)
}

/// By the list, which newer files have, else by the interval, which may be wrong beside a list.
fn layer_types(config: &mut Config<'_>, num_further: u64) -> Result<(), String> {
    let num_layers = config.checked_num_layers()?;
    let interval = config.keys.optional_size("full_attention_interval")?.unwrap_or(4);
    let listed = config
        .keys
        .pattern("attention.recurrent_layers", num_layers + num_further.min(num_layers))?;
    let is_recurrent = listed.unwrap_or_else(|| {
        (1..=num_layers).map(|number| !number.is_multiple_of(interval)).collect()
    });
    let name = |recurrent| if recurrent { "linear_attention" } else { "full_attention" };
    let types = is_recurrent.into_iter().take(num_layers as usize);
    let types: Vec<serde_json::Value> = types.map(|recurrent| name(recurrent).into()).collect();
    config.set("layer_types", types);
    Ok(())
}
