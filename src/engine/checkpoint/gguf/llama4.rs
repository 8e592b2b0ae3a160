//! Llama 4's text in GGUF files. Chunks, layers that do not turn and how queries grow are in no
//! key: they are llama.cpp's.

use serde_json::Value;

use super::archs::Class;
use super::config::Config;
use super::names::NameTable;
use super::tables::{FEED_FORWARD, LLAMA_LAYER, PLAIN};
use crate::families::experts::EXPERTS_APART;

const NAMES: NameTable = NameTable {
    inner: &[
        FEED_FORWARD,
        &[
            ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
            ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
            ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
        ],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

/// Experts of Maverick, whose q and k have no norms.
const NUM_EXPERTS_WITHOUT_NORMS: u64 = 128;

pub(super) fn llama4(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    let num_experts = config.keys.size("expert_count")?;
    config.remove("num_experts");
    config.set("num_local_experts", num_experts);
    let dense = config.remove("intermediate_size");
    config.set_some("intermediate_size_mlp", dense);
    config.set("intermediate_size", config.keys.size("expert_feed_forward_length")?);
    let step = config.keys.size("interleave_moe_layer_step")?;
    config.set("interleave_moe_layer_step", step);
    config.set(EXPERTS_APART, true);
    config.set("use_qk_norm", num_experts != NUM_EXPERTS_WITHOUT_NORMS);
    let num_layers = config.checked_num_layers()?;
    // A window of 0 is written where all layers see all.
    let sees_all = config.keys.optional_size("attention.sliding_window")? == Some(0);
    let turns = |layer: u64| u64::from(sees_all || !(layer + 1).is_multiple_of(4));
    config.set("no_rope_layers", (0..num_layers).map(turns).collect::<Vec<_>>());
    match sees_all {
        true => config.set("attention_chunk_size", Value::Null),
        false => config.set("attention_chunk_size", 8192),
    }
    config.set("attn_temperature_tuning", !sees_all);
    config.one_base()?;
    Ok(("Llama4ForCausalLM", NAMES))
}
