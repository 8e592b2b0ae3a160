//! Architectures with experts chosen by sigmoids or by a bias, of 2025 and after, and their kin:
//! Trinity, Ling, dots.llm1, ERNIE 4.5, K-EXAONE, Hunyuan, Mellum, MiniMax M2 and M3; and the
//! first DeepSeek with experts.

use super::archs::{Arch, Class, arch};
use super::config::Config;
use super::latent::DEEPSEEK_EXPERTS;
use super::names::{NameTable, Parts, Qkv};
use super::tables::{self, CHOICE_BIAS, EXPERTS, LLAMA_LAYER, PLAIN};

/// By name.
pub(super) const ARCHS: &[Arch] = &[
    arch("afmoe", afmoe),
    arch("bailingmoe2", bailingmoe2),
    arch("deepseek", deepseek),
    arch("dots1", dots1),
    arch("ernie4_5-moe", ernie4_5_moe),
    arch("exaone-moe", exaone_moe),
    arch("hunyuan-moe", hunyuan_moe),
    arch("hy_v3", hy_v3),
    arch("mellum", mellum),
    arch("minimax-m2", minimax_m2),
    arch("minimax-m3", minimax_m3),
];

const AFMOE: NameTable = NameTable {
    inner: &[
        &[
            ("attn_gate", "self_attn.gate_proj"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_mlp_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_gate_inp", "mlp.router.gate"),
            (CHOICE_BIAS, "mlp.expert_bias"),
        ],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

const BAILING: NameTable = NameTable {
    outer: &[
        ("token_embd", "model.word_embeddings"),
        ("output_norm", "model.norm"),
        ("output", "lm_head"),
    ],
    inner: &[
        &[
            ("attn_qkv", "attention.query_key_value"),
            ("attn_output", "attention.dense"),
            ("attn_q_norm", "attention.query_layernorm"),
            ("attn_k_norm", "attention.key_layernorm"),
            (CHOICE_BIAS, "mlp.gate.expert_bias"),
        ],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    further: Some("model.layers."),
    ..PLAIN
};

/// DeepSeek's experts, and layers that predict further tokens.
const WITH_DEEPSEEK_EXPERTS: NameTable = NameTable {
    inner: &[DEEPSEEK_EXPERTS, EXPERTS, LLAMA_LAYER],
    further: Some("model.layers."),
    ..PLAIN
};

const DEEPSEEK: NameTable = NameTable { qkv: Qkv::Pairs, ..WITH_DEEPSEEK_EXPERTS };

const ERNIE: NameTable = NameTable {
    inner: &[
        &[(CHOICE_BIAS, "mlp.moe_statics.e_score_correction_bias")],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

const EXAONE: NameTable = NameTable {
    inner: &[
        &[(CHOICE_BIAS, "mlp.e_score_correction_bias")],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    further: Some("mtp.layers."),
    ..PLAIN
};

/// The MLP of all tokens in Hunyuan's words.
const SHARED_MLP: Parts = &[
    ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
    ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
];

const HUNYUAN: NameTable = NameTable {
    inner: &[
        &[
            ("attn_q_norm", "self_attn.query_layernorm"),
            ("attn_k_norm", "self_attn.key_layernorm"),
            ("ffn_gate_inp", "mlp.gate.wg"),
        ],
        SHARED_MLP,
        EXPERTS,
        LLAMA_LAYER,
    ],
    ..PLAIN
};

const HY_V3: NameTable = NameTable {
    inner: &[
        // The converter leaves the parameter without a suffix.
        &[
            ("ffn_gate_inp", "mlp.router.gate"),
            (CHOICE_BIAS, "mlp.expert_bias"),
            ("exp_probs_b", "mlp.expert_bias"),
        ],
        SHARED_MLP,
        EXPERTS,
        LLAMA_LAYER,
    ],
    further: Some("model.layers."),
    ..PLAIN
};

/// Experts of MiniMax.
const BLOCK_SPARSE_MOE: &[(&str, &str)] = &[
    ("ffn_gate_inp", "block_sparse_moe.gate"),
    (CHOICE_BIAS, "block_sparse_moe.e_score_correction_bias"),
    ("ffn_gate_exps", "block_sparse_moe.experts.*.w1"),
    ("ffn_up_exps", "block_sparse_moe.experts.*.w3"),
    ("ffn_down_exps", "block_sparse_moe.experts.*.w2"),
];

const MINIMAX: NameTable =
    NameTable { inner: &[BLOCK_SPARSE_MOE, LLAMA_LAYER], further: Some("model.layers."), ..PLAIN };

const MINIMAX_M3: NameTable = NameTable {
    inner: &[
        &[
            ("indexer.q_proj", "self_attn.index_q_proj"),
            ("indexer.k_proj", "self_attn.index_k_proj"),
            ("indexer.q_norm", "self_attn.index_q_norm"),
            ("indexer.k_norm", "self_attn.index_k_norm"),
            ("ffn_gate_shexp", "block_sparse_moe.shared_experts.gate_proj"),
            ("ffn_up_shexp", "block_sparse_moe.shared_experts.up_proj"),
            ("ffn_down_shexp", "block_sparse_moe.shared_experts.down_proj"),
        ],
        BLOCK_SPARSE_MOE,
        LLAMA_LAYER,
    ],
    adds_one: true,
    ..PLAIN
};

impl Config<'_> {
    /// Experts chosen by sigmoids, and how wide they are.
    fn sigmoid_experts(&mut self) -> Result<(), String> {
        self.experts()?;
        self.decoder()?;
        self.expect_sigmoids()?;
        self.set("moe_intermediate_size", self.keys.size("expert_feed_forward_length")?);
        Ok(())
    }

    /// The width of the MLP of all tokens, which others say as a number of experts.
    fn expect_shared_width(&self) -> Result<(), String> {
        let width = self.keys.optional_size("expert_shared_feed_forward_length")?;
        let of_one = self.keys.size("expert_feed_forward_length")?;
        let num = self.keys.optional_size("expert_shared_count")?.unwrap_or(1);
        match width {
            Some(width) if of_one.checked_mul(num) != Some(width) => Err(format!(
                "experts of all tokens of {width}, and others of {of_one}, are not supported"
            )),
            _ => Ok(()),
        }
    }
}

/// Which layers slide is in no key, nor that embeddings are multiplied: they are llama.cpp's.
fn afmoe(config: &mut Config<'_>) -> Result<Class, String> {
    config.sigmoid_experts()?;
    config.windows(None, |layer| (layer + 1) % 4 != 0)?;
    config.sizes(&[
        ("expert_shared_count", "num_shared_experts"),
        ("leading_dense_block_count", "num_dense_layers"),
    ])?;
    config.floats(&[("expert_weights_scale", "route_scale")])?;
    let is_share = config.keys.flag("expert_weights_norm")?;
    config.set_some("route_norm", is_share);
    config.set("mup_enabled", true);
    config.keys.ignore(&["expert_group_count", "expert_group_used_count"]);
    Ok(("AfmoeForCausalLM", AFMOE))
}

fn bailingmoe2(config: &mut Config<'_>) -> Result<Class, String> {
    let num_further = config.further_layers()?;
    config.set("num_nextn_predict_layers", num_further);
    config.sigmoid_experts()?;
    config.expect_shared_width()?;
    config.deepseek_experts()?;
    config.set("use_qk_norm", config.keys.has("blk.0.attn_q_norm.weight"));
    config.set("use_qkv_bias", config.keys.has("blk.0.attn_qkv.bias"));
    Ok(("BailingMoeV2ForCausalLM", BAILING))
}

/// Which layers slide is lost: llama.cpp slides none.
fn dots1(config: &mut Config<'_>) -> Result<Class, String> {
    config.sigmoid_experts()?;
    config.deepseek_experts()?;
    config.set("sliding_window", serde_json::Value::Null);
    config.set("attention_bias", config.keys.has("blk.0.attn_q.bias"));
    Ok(("Dots1ForCausalLM", WITH_DEEPSEEK_EXPERTS))
}

/// What experts of all tokens are wide is written of another number than theirs; the tensors say.
fn ernie4_5_moe(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    config.remove("num_experts");
    config.remove("num_experts_per_tok");
    config.sizes(&[
        ("expert_count", "moe_num_experts"),
        ("expert_used_count", "moe_k"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "moe_num_shared_experts"),
        ("interleave_moe_layer_step", "moe_layer_interval"),
        ("leading_dense_block_count", "moe_layer_start_index"),
    ])?;
    config.keys.ignore(&["expert_shared_feed_forward_length"]);
    Ok(("Ernie4_5_MoeForCausalLM", ERNIE))
}

fn exaone_moe(config: &mut Config<'_>) -> Result<Class, String> {
    config.further_layers()?;
    config.sigmoid_experts()?;
    config.expect_shared_width()?;
    let num_experts = config.keys.size("expert_count")?;
    config.deepseek_experts()?;
    config.remove("n_routed_experts");
    let num_shared = config.remove("n_shared_experts");
    config.set_some("num_shared_experts", num_shared);
    config.set("num_experts", num_experts);
    config.windows(None, |layer| (layer + 1) % 4 != 0)?;
    Ok(("ExaoneMoeForCausalLM", EXAONE))
}

/// The width of its one kind of experts is that of a dense MLP.
fn hunyuan_moe(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    let num_of_token = config.remove("num_experts_per_tok");
    config.set_some("moe_topk", num_of_token);
    config.set("intermediate_size", config.keys.size("expert_feed_forward_length")?);
    config.set("num_shared_expert", config.keys.optional_size("expert_shared_count")?.unwrap_or(1));
    config.keys.ignore(&["expert_shared_feed_forward_length"]);
    Ok(("HunYuanMoEV1ForCausalLM", HUNYUAN))
}

fn hy_v3(config: &mut Config<'_>) -> Result<Class, String> {
    let num_further = config.further_layers()?;
    config.set("num_nextn_predict_layers", num_further);
    config.sigmoid_experts()?;
    let shared = config.keys.optional_size("expert_shared_feed_forward_length")?;
    let of_one = config.keys.size("expert_feed_forward_length")?;
    config.set_some("num_shared_experts", shared.and_then(|width| width.checked_div(of_one)));
    config.floats(&[("expert_weights_scale", "router_scaling_factor")])?;
    let is_share = config.keys.flag("expert_weights_norm")?;
    config.set_some("route_norm", is_share);
    // The converter does not write how many layers have no experts: they have no router.
    let num_layers = config.checked_num_layers()?;
    let has_router = |layer: &u64| config.keys.has(&format!("blk.{layer}.ffn_gate_inp.weight"));
    let first = (0..num_layers).find(has_router).unwrap_or(num_layers);
    config.set("first_k_dense_replace", first);
    config.set("attention_bias", config.keys.has("blk.0.attn_q.bias"));
    let of_mlps = [".ffn_down.bias", ".ffn_down_shexp.bias"];
    config.set("mlp_bias", of_mlps.iter().any(|part| config.keys.has_any(part)));
    Ok(("HYV3ForCausalLM", HY_V3))
}

/// Its experts are as wide as a dense MLP would be.
fn minimax_m2(config: &mut Config<'_>) -> Result<Class, String> {
    config.sigmoid_experts()?;
    let inner = config.remove("moe_intermediate_size");
    config.set_some("intermediate_size", inner);
    let num_experts = config.remove("num_experts");
    config.set_some("num_local_experts", num_experts);
    if config.remove("partial_rotary_factor").is_some() {
        config.set("rotary_dim", config.keys.size("rope.dimension_count")?);
    }
    Ok(("MiniMaxM2ForCausalLM", MINIMAX))
}

/// Widths of MLPs and which layers choose are those of tensors; bounds of the activation are
/// llama.cpp's.
fn minimax_m3(config: &mut Config<'_>) -> Result<Class, String> {
    config.sigmoid_experts()?;
    let inner = config.remove("moe_intermediate_size");
    config.set_some("intermediate_size", inner);
    let num_experts = config.remove("num_experts");
    config.set_some("num_local_experts", num_experts);
    config.floats(&[("expert_weights_scale", "routed_scaling_factor")])?;
    if config.keys.flag("expert_weights_norm")? == Some(false) {
        return Err("experts whose weights are no shares are not supported".to_owned());
    }
    config.sizes(&[
        ("attention.indexer.head_count", "index_n_heads"),
        ("attention.indexer.key_length", "index_head_dim"),
        ("attention.indexer.top_k", "index_topk_blocks"),
        ("attention.indexer.block_size", "index_block_size"),
        ("attention.indexer.local_blocks", "index_local_blocks"),
    ])?;
    config.keys.ignore(&["expert_shared_count", "leading_dense_block_count"]);
    let num_layers = config.checked_num_layers()?;
    let has = |part| {
        let of_layer = |layer: u64| format!("blk.{layer}.{part}.weight");
        (0..num_layers).map(of_layer).collect::<Vec<_>>()
    };
    let typed = |config: &Config<'_>, part, types: [&'static str; 2]| -> Vec<&'static str> {
        let names = has(part).into_iter();
        names.map(|name| types[usize::from(config.keys.has(&name))]).collect()
    };
    let types = typed(config, "indexer.q_proj", ["full_attention", "minimax_m3_sparse"]);
    config.set("layer_types", types);
    let types = typed(config, "ffn_gate_inp", ["dense", "sparse"]);
    for (layer, kind) in types.iter().enumerate() {
        let (part, key) = match *kind {
            "dense" => ("ffn_up", "dense_intermediate_size"),
            _ => ("ffn_up_shexp", "shared_intermediate_size"),
        };
        let shape = config.keys.shape(&format!("blk.{layer}.{part}.weight"))?;
        config.set(key, shape[0]);
    }
    config.set("mlp_layer_types", types);
    Ok(("MiniMaxM3SparseForCausalLM", MINIMAX_M3))
}

/// The first DeepSeek with experts: Llama's attention, in Llama's order. Weights are no shares,
/// which no key says.
fn deepseek(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    config.deepseek_experts()?;
    match config.remove("routed_scaling_factor").and_then(|scale| scale.as_f64()) {
        Some(1.0) | None => {}
        Some(scale) => return Err(format!("an expert_weights_scale of {scale} is not supported")),
    }
    config.remove("norm_topk_prob");
    const SOFTMAX: u64 = 1;
    match config.keys.optional_size("expert_gating_func")? {
        None | Some(SOFTMAX) => Ok(("DeepseekForCausalLM", DEEPSEEK)),
        Some(other) => Err(format!("an expert_gating_func of {other} is not supported")),
    }
}

/// Qwen3 with experts in every layer, and windows in most. Weights are shares of a sum, which no
/// key says.
fn mellum(config: &mut Config<'_>) -> Result<Class, String> {
    config.experts()?;
    config.decoder()?;
    config.set("moe_intermediate_size", config.keys.size("expert_feed_forward_length")?);
    config.set("norm_topk_prob", true);
    config.windows(None, |layer| (layer + 1) % 4 != 0)?;
    let of_all = config.keys.float("rope.freq_base")?.unwrap_or(10_000.0);
    let of_windows = config.keys.float("rope.freq_base_swa")?.unwrap_or(of_all);
    let of_type = |base: f64| serde_json::json!({"rope_type": "default", "rope_theta": base});
    if config.remove("rope_scaling").is_some() {
        return Err("stretched positions of Mellum are not supported".to_owned());
    }
    config.remove("rope_theta");
    config.remove("partial_rotary_factor");
    config.set(
        "rope_parameters",
        serde_json::json!({
            "full_attention": of_type(of_all), "sliding_attention": of_type(of_windows)
        }),
    );
    Ok(("MellumForCausalLM", tables::WITH_EXPERTS))
}
