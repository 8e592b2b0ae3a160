//! MPT: ALiBi, LayerNorm without biases, q, k and v that may be bounded, no biases at all.

use super::gpt::{Gpt, Names};
use crate::hf_config::HfConfig;
use crate::spec::DecoderSpec;
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::{Activation, alibi_slopes};

/// The spec of an MPT config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.expect("no_bias", true)?;
    // transformers computes no other.
    root.expect("expansion_ratio", 4)?;
    root.expect("logit_scale", serde_json::Value::Null)?;
    if let Some(other) = root.text("norm_type")?.filter(|name| !NORM_TYPES.contains(name)) {
        return Err(root.error(format!("`norm_type` {} is not supported", quoted(other))));
    }
    // Positions are learned where there is no ALiBi; the rest is about training.
    root.ignore(&[
        "embedding_fraction",
        "init_config",
        "init_device",
        "learned_pos_emb",
        "tokenizer_name",
        "verbose",
    ]);
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.wte",
            layers: "transformer.blocks",
            norms: ["norm_1", "norm_2"],
            qkv: &["attn.Wqkv"],
            out: "attn.out_proj",
            up: "ffn.up_proj",
            down: "ffn.down_proj",
            final_norm: "transformer.norm_f",
        },
        heads,
        inner: 4 * hidden,
        activation: Activation::Gelu,
        biases: [false, false],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    set_attention(config, &mut spec)?;
    spec.residual_norms_mut().for_each(|norm| norm.bias = false);
    Ok(spec)
}

/// They differ in the precision of training.
const NORM_TYPES: &[&str] = &["layernorm", "low_precision_layernorm"];

/// Reads `attn_config`.
fn set_attention(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let (mut scale, mut clip, mut max_bias) = (None, None, None);
    if let Some(section) = config.root().section("attn_config")? {
        section.expect("alibi", true)?;
        section.expect("attn_type", "multihead_attention")?;
        section.expect("attn_uses_sequence_id", false)?;
        section.expect("prefix_lm", false)?;
        section.expect("qk_ln", false)?;
        section.ignore(&["attn_impl", "attn_pdrop", "model_type"]);
        scale = section.number("softmax_scale")?;
        clip = section.number("clip_qkv")?.filter(|clip| *clip != 0.0);
        max_bias = section.number("alibi_bias_max")?;
    }
    for (_, attention) in spec.attentions_mut() {
        let slopes = alibi_slopes(attention.heads.num_heads, max_bias.unwrap_or(8.0));
        attention.alibi_slopes = Some(slopes);
        attention.clip_qkv = clip.map(|clip| clip as f32);
        attention.scale = scale.map_or(attention.scale, |scale| scale as f32);
    }
    Ok(())
}
