//! DeepSeek's architecture in GGUF files: V2, V3 and R1, Kimi K2, GLM-4.7-Flash, Youtu-LLM.
//! llama.cpp stores what leads from latents to K and to V apart, for K transposed; older files have
//! one matrix, as transformers.

use serde_json::Value;

use super::archs::Class;
use super::config::Config;
use super::names::{NameTable, Parts};
use super::tables::{CHOICE_BIAS, EXPERTS, LLAMA_LAYER, PLAIN};
use crate::families::latent::LATENT_UPS_APART;

/// The parts of latent attention.
pub(super) const LATENT: Parts = &[
    ("attn_q_a", "self_attn.q_a_proj"),
    ("attn_q_a_norm", "self_attn.q_a_layernorm"),
    ("attn_q_b", "self_attn.q_b_proj"),
    ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
    ("attn_kv_b", "self_attn.kv_b_proj"),
    ("attn_k_b", "self_attn.k_b_proj"),
    ("attn_v_b", "self_attn.v_b_proj"),
];

/// DeepSeek's experts, beside the usual ones: the bias of their choice, and those of all tokens.
pub(super) const DEEPSEEK_EXPERTS: Parts = &[
    (CHOICE_BIAS, "mlp.gate.e_score_correction_bias"),
    ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
    ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
    ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
];

const NAMES: NameTable = NameTable {
    inner: &[LATENT, DEEPSEEK_EXPERTS, EXPERTS, LLAMA_LAYER],
    further: Some("model.layers."),
    ..PLAIN
};

/// Values of `expert_gating_func`.
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;

pub(super) fn deepseek2(config: &mut Config<'_>) -> Result<Class, String> {
    let num_further = config.further_layers()?;
    let has_experts = config.keys.optional_size("expert_count")?.unwrap_or(0) > 0;
    if has_experts {
        config.experts()?;
        config.remove("num_experts");
    }
    config.shape()?;
    config.floats(&[("attention.layer_norm_rms_epsilon", "rms_norm_eps")])?;
    config.set("intermediate_size", config.keys.size("feed_forward_length")?);
    heads(config)?;
    rope(config)?;
    if !has_experts {
        config.keys.ignore(&[
            "expert_feed_forward_length",
            "expert_shared_count",
            "leading_dense_block_count",
        ]);
        return Ok(("YoutuForCausalLM", NAMES));
    }
    config.set("num_nextn_predict_layers", num_further);
    config.deepseek_experts()?;
    let num_groups = config.keys.optional_size("expert_group_count")?.unwrap_or(1);
    // Files without it are of V2, but those of GLM, which llama.cpp knows by the vocabulary.
    const GLM_VOCAB: usize = 154_880;
    let is_glm = config.keys.shape("token_embd.weight")?[0] == GLM_VOCAB;
    let gating = config.keys.optional_size("expert_gating_func")?;
    match gating.unwrap_or(if is_glm { SIGMOID } else { SOFTMAX }) {
        SIGMOID => Ok(("DeepseekV3ForCausalLM", NAMES)),
        SOFTMAX => {
            let method = if num_groups > 1 { "group_limited_greedy" } else { "greedy" };
            config.set("topk_method", method);
            Ok(("DeepseekV2ForCausalLM", NAMES))
        }
        other => Err(format!("an expert_gating_func of {other} is not supported")),
    }
}

impl Config<'_> {
    /// The keys of DeepSeek's experts.
    pub(super) fn deepseek_experts(&mut self) -> Result<(), String> {
        self.remove("num_experts");
        self.sizes(&[
            ("expert_count", "n_routed_experts"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "n_shared_experts"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
        ])?;
        let scale = self.keys.float("expert_weights_scale")?;
        self.set("routed_scaling_factor", scale.unwrap_or(1.0));
        // Written where it is true.
        let is_share = self.keys.flag("expert_weights_norm")?;
        self.set("norm_topk_prob", is_share.unwrap_or(false));
        Ok(())
    }
}

/// Widths of what turns, of what does not, and of values. Attention of the file runs over latents,
/// with one K head.
fn heads(config: &mut Config<'_>) -> Result<(), String> {
    let keys = &config.keys;
    let (num_heads, rope) = (config.num_heads()?, keys.size("rope.dimension_count")?);
    let rank = keys.size("attention.kv_lora_rank")?;
    let [key, value] = ["attention.key_length", "attention.value_length"].map(|key| keys.size(key));
    let (key, value) = (key?, value?);
    let of_head = keys.optional_size("attention.key_length_mla")?;
    let of_head = of_head.zip(keys.optional_size("attention.value_length_mla")?);
    keys.ignore(&["attention.head_count_kv"]);
    if of_head.is_some() && (key, value) != (rank.saturating_add(rope), rank) {
        return Err(format!("heads of {key} and {value} over latents of {rank} are not supported"));
    }
    let (q, v) = of_head.unwrap_or((key, value));
    let Some(nope) = q.checked_sub(rope).filter(|nope| *nope > 0) else {
        return Err(format!("{rope} of {q} values of a head turn; that is not supported"));
    };
    let q_rank = keys.optional_size("attention.q_lora_rank")?.filter(|rank| *rank > 0);
    config.set("num_attention_heads", num_heads);
    config.set("num_key_value_heads", num_heads);
    config.set("q_lora_rank", q_rank);
    config.set("kv_lora_rank", rank);
    config.set("qk_rope_head_dim", rope);
    config.set("qk_nope_head_dim", nope);
    config.set("v_head_dim", v);
    config.set(LATENT_UPS_APART, config.keys.has("blk.0.attn_k_b.weight"));
    Ok(())
}

/// yarn has one factor more, for scores, of which the file has a tenth. Models have the same for
/// sines.
fn rope(config: &mut Config<'_>) -> Result<(), String> {
    let theta = config.keys.float("rope.freq_base")?.unwrap_or(10_000.0);
    config.set("rope_theta", theta);
    let of_scores =
        config.keys.float("rope.scaling.yarn_log_multiplier")?.map(|tenth| 10.0 * tenth);
    if let Some(Value::Object(mut scaling)) = config.rope_scaling(theta)? {
        if let Some(factor) = of_scores {
            scaling.insert("mscale".to_owned(), factor.into());
            scaling.insert("mscale_all_dim".to_owned(), factor.into());
        }
        config.set("rope_scaling", scaling);
    }
    Ok(())
}
