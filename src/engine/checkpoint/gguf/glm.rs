//! GLM in GGUF files: GLM-4 (9B) and GLM-Edge, which llama.cpp calls chatglm, GLM-4-0414 and
//! GLM-4.5; also the texts of GLM-V, whose axes of positions are equal.

use super::archs::Class;
use super::config::Config;
use super::latent::DEEPSEEK_EXPERTS;
use super::names::{Moved, NameTable};
use super::rope::from_halves;
use super::tables::{EXPERTS, LLAMA_LAYER, PLAIN};

const CHATGLM: NameTable = NameTable {
    inner: &[
        // Fused where the file was made of a model in its authors' code.
        &[("attn_qkv", "self_attn.{}_proj"), ("ffn_up", "mlp.gate_up_proj")],
        LLAMA_LAYER,
    ],
    ..PLAIN
};

const GLM_4: NameTable = NameTable {
    inner: &[
        &[
            ("post_attention_norm", "post_self_attn_layernorm"),
            ("post_ffw_norm", "post_mlp_layernorm"),
            ("ffn_up", "mlp.gate_up_proj"),
        ],
        LLAMA_LAYER,
    ],
    further: Some(""),
    ..PLAIN
};

/// DeepSeek's experts, and layers that predict further tokens.
const GLM_4_MOE: NameTable = NameTable {
    inner: &[
        &[("post_attention_norm", "post_attention_layernorm")],
        DEEPSEEK_EXPERTS,
        EXPERTS,
        LLAMA_LAYER,
    ],
    further: Some("model.layers."),
    ..PLAIN
};

/// The converter takes an epsilon by its authors' name, else 1e-5.
pub(super) fn chatglm(config: &mut Config<'_>) -> Result<Class, String> {
    config.decoder()?;
    let parts = ["blk.0.attn_q.bias", "blk.0.attn_qkv.bias"];
    config.set("attention_bias", parts.iter().any(|part| config.keys.has(part)));
    if config.keys.has("blk.0.attn_qkv.weight") {
        let heads = super::heads(config)?;
        let [q, kv] =
            [heads.num_heads, heads.num_kv_heads].map(|num| (num * heads.head_dim) as u32);
        let pieces = [("q", 0..q), ("k", q..q + kv), ("v", q + kv..q + 2 * kv)];
        let pieces = pieces.map(|(name, rows)| (name, rows.collect()));
        config.is_moved("attn_qkv", Moved::Split(pieces.into()));
    }
    Ok(("GlmForCausalLM", CHATGLM))
}

/// Layers that predict further tokens (GLM-OCR) are left out.
pub(super) fn glm4(config: &mut Config<'_>) -> Result<Class, String> {
    config.further_layers()?;
    config.decoder()?;
    config.set("attention_bias", config.keys.has("blk.0.attn_q.bias"));
    if config.keys.is_there("rope.dimension_sections") {
        // GLM-4.1V and GLM-4.6V-Flash: rotary pairs are halves, as of other models with axes.
        let heads = super::heads(config)?;
        let rotary_dim = config.keys.optional_size("rope.dimension_count")?;
        let rotary_dim = rotary_dim.map_or(heads.head_dim, |width| width as usize);
        for (part, moved) in from_halves(heads, rotary_dim.min(heads.head_dim)) {
            config.is_moved(part, moved);
        }
    }
    Ok(("Glm4ForCausalLM", GLM_4))
}

/// Layers that predict further tokens are counted with the others.
pub(super) fn glm4moe(config: &mut Config<'_>) -> Result<Class, String> {
    config.keys.ignore(&["rope.dimension_sections"]);
    let num_further = config.further_layers()?;
    config.set("num_nextn_predict_layers", num_further);
    config.experts()?;
    config.decoder()?;
    config.expect_sigmoids()?;
    config.deepseek_experts()?;
    config.set("attention_bias", config.keys.has("blk.0.attn_q.bias"));
    config.set("use_qk_norm", config.keys.has("blk.0.attn_q_norm.weight"));
    Ok(("Glm4MoeForCausalLM", GLM_4_MOE))
}
