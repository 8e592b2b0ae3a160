//! Gemma 4 in GGUF files: lists of what differs between layers, and the part of global heads that
//! turns as divisors.

use serde_json::{Map, Value, json};

use super::archs::Class;
use super::config::Config;
use super::names::NameTable;
use super::tables::{LLAMA_LAYER, NORMS_AROUND, PLAIN};

const NAMES: NameTable = NameTable {
    outer: &[
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
        ("per_layer_token_embd", "model.embed_tokens_per_layer"),
        ("per_layer_model_proj", "model.per_layer_model_projection"),
        ("per_layer_proj_norm", "model.per_layer_projection_norm"),
    ],
    inner: &[
        &[
            ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
            ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
            ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
            ("ffn_gate_inp", "router.proj"),
            ("ffn_gate_inp.scale", "router.scale"),
            ("ffn_gate_up_exps.weight", "experts.gate_up_proj"),
            ("ffn_down_exps.weight", "experts.down_proj"),
            ("ffn_down_exps.scale", "router.per_expert_scale"),
            ("inp_gate", "per_layer_input_gate"),
            ("proj", "per_layer_projection"),
            ("post_norm", "post_per_layer_input_norm"),
            ("layer_output_scale.weight", "layer_scalar"),
        ],
        NORMS_AROUND,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

pub(super) fn gemma4(config: &mut Config<'_>) -> Result<Class, String> {
    let num_layers = config.checked_num_layers()?;
    if config.keys.optional_size("expert_count")?.unwrap_or(0) > 0 {
        config.experts()?;
        config.set("enable_moe_block", true);
        config.set("top_k_experts", config.keys.size("expert_used_count")?);
        config.remove("num_experts_per_tok");
        config.set("moe_intermediate_size", config.keys.size("expert_feed_forward_length")?);
    }
    config.shape()?;
    config.floats(&[
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ])?;
    config.set("hidden_activation", "gelu_pytorch_tanh");
    config.windows(None, |layer| (layer + 1) % 6 != 0)?;
    let slides = config.keys.pattern("attention.sliding_window_pattern", num_layers)?;
    let slides = slides.unwrap_or_else(|| (1..=num_layers).map(|n| n % 6 != 0).collect());
    let head_dims = head_dims(config)?;
    heads(config, &slides, head_dims)?;
    rope(config, head_dims)?;
    inner_widths(config, num_layers)?;
    let width = config.keys.optional_size("embedding_length_per_layer_input")?.unwrap_or(0);
    config.set("hidden_size_per_layer_input", width);
    if width > 0 {
        let rows = config.keys.shape("per_layer_token_embd.weight")?[0];
        config.set("vocab_size_per_layer_input", rows);
    }
    Ok(("Gemma4ForCausalLM", NAMES))
}

/// Widths of heads of layers that slide, and of the others.
fn head_dims(config: &Config<'_>) -> Result<[u64; 2], String> {
    let of = |suffix: &str| {
        let [key, value] = ["key_length", "value_length"]
            .map(|name| config.keys.size(&format!("attention.{name}{suffix}")));
        match (key?, value?) {
            (key, value) if key == value && key > 0 => Ok(key),
            (key, value) => {
                Err(format!("heads of K of {key} and of V of {value} are not supported"))
            }
        }
    };
    Ok([of("_swa")?, of("")?])
}

fn heads(config: &mut Config<'_>, slides: &[bool], head_dims: [u64; 2]) -> Result<(), String> {
    let num_heads = config.num_heads()?;
    config.set("num_attention_heads", num_heads);
    let num_kv_heads = config.keys.sizes_by_layer("attention.head_count_kv", slides.len())?;
    let [of_sliding, of_others] = head_dims;
    let usual = slides.iter().zip(&num_kv_heads).find(|(slides, _)| **slides);
    let usual = usual.map_or(num_kv_heads[0], |(_, num)| *num);
    config.set("head_dim", of_sliding);
    config.set("num_key_value_heads", usual);
    let mut others = Map::new();
    for (index, (slides, num)) in slides.iter().zip(num_kv_heads).enumerate() {
        if *slides && num != usual {
            return Err(format!("layers that slide have {usual} and {num} K and V heads"));
        } else if !slides {
            let heads = json!({"head_dim": of_others, "num_key_value_heads": num});
            others.insert(index.to_string(), heads);
        }
    }
    config.set("per_layer_config", others);
    let num_shared = config.keys.optional_size("attention.shared_kv_layers")?.unwrap_or(0);
    config.set("num_kv_shared_layers", num_shared);
    // V of global layers is K where it has no tensor.
    let has = |index: usize, part: &str| config.keys.has(&format!("blk.{index}.{part}.weight"));
    let v_is_k = |index: &usize| has(*index, "attn_k") && !has(*index, "attn_v");
    let v_is_k = (0..slides.len()).filter(|index| !slides[*index]).any(|index| v_is_k(&index));
    config.set("attention_k_eq_v", v_is_k);
    Ok(())
}

/// Layers that slide turn whole heads, the others the part whose divisors are 1.
fn rope(config: &mut Config<'_>, [of_sliding, of_others]: [u64; 2]) -> Result<(), String> {
    let keys = &config.keys;
    for (key, head_dim) in
        [("rope.dimension_count_swa", of_sliding), ("rope.dimension_count", of_others)]
    {
        if keys.optional_size(key)?.is_some_and(|num| num != head_dim) {
            return Err(format!("another {key} than {head_dim} is not supported"));
        }
    }
    keys.ignore(&["rope.scaling.type"]);
    let base = |key, default| Ok::<_, String>(keys.float(key)?.unwrap_or(default));
    let of_full = base("rope.freq_base", 1e6)?;
    let of_local = base("rope.freq_base_swa", 1e4)?;
    let divisors = keys.vector("rope_freqs.weight").unwrap_or(&[]);
    let num_turning = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    // What is divided by so much does not turn.
    let is_still = |divisor: &f32| *divisor >= 1e29;
    let is_known = 2 * divisors.len() as u64 == of_others
        && num_turning > 0
        && divisors[num_turning..].iter().all(is_still);
    if !is_known {
        return Err("rope_freqs.weight is missing, or of another kind".to_owned());
    }
    let part = num_turning as f64 / divisors.len() as f64;
    let parameters: Value = json!({
        "full_attention":
            {"rope_type": "proportional", "partial_rotary_factor": part, "rope_theta": of_full},
        "sliding_attention": {"rope_type": "default", "rope_theta": of_local},
    });
    config.set("rope_parameters", parameters);
    Ok(())
}

/// Layers that share K and V may have MLPs of twice the width.
fn inner_widths(config: &mut Config<'_>, num_layers: u64) -> Result<(), String> {
    let widths = config.keys.sizes_by_layer("feed_forward_length", num_layers as usize)?;
    let num_shared = config.keys.optional_size("attention.shared_kv_layers")?.unwrap_or(0);
    let num_own = num_layers.saturating_sub(num_shared) as usize;
    let (usual, last) = (widths[0], widths[widths.len() - 1]);
    let is_wide = usual.checked_mul(2) == Some(last);
    let (own, shared) = widths.split_at(num_own.min(widths.len()));
    let of_shared = if is_wide { last } else { usual };
    let is_known =
        own.iter().all(|width| *width == usual) && shared.iter().all(|width| *width == of_shared);
    if !is_known {
        return Err("these widths of MLPs are not supported".to_owned());
    }
    config.set("intermediate_size", usual);
    config.set("use_double_wide_mlp", is_wide);
    Ok(())
}
