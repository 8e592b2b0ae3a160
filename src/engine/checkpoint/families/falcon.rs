//! Falcon: 7B with one KV head and one norm for both blocks; 40B, 180B and 11B with groups of heads
//! and one or two norms; RW with ALiBi and one block after the other.

use super::gpt::{Gpt, Names};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{DecoderSpec, QkvHeads, RowOrder, Wiring};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, alibi_slopes};

/// The context of files that do not say, as in transformers.
const CONTEXT_LEN: usize = 2048;

/// The spec of a Falcon config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let flag = |key, default| Ok::<_, EngineError>(root.flag(key)?.unwrap_or(default));
    root.expect("apply_residual_connection_post_layernorm", false)?;
    root.expect("ff_factor", 4)?;
    // The first files of 40B say it by their type alone.
    let is_refined_web = root.text("model_type")? == Some("RefinedWeb");
    let is_new = flag("new_decoder_architecture", is_refined_web)?;
    let is_parallel = flag("parallel_attn", true)? || is_new;
    let num_norms = root.optional_size("num_ln_in_parallel_attn")?;
    let num_norms = num_norms.unwrap_or(if is_new { 2 } else { 1 });
    let norms = match (is_parallel, is_new, num_norms) {
        (false, ..) => ["input_layernorm", "post_attention_layernorm"],
        (true, true, 2) => ["ln_attn", "ln_mlp"],
        (true, _, 1) => ["input_layernorm", "input_layernorm"],
        _ => return Err(root.error(format!("{num_norms} norms of a layer are not supported"))),
    };
    let heads = heads(config, is_new)?;
    let bias = flag("bias", false)?;
    let inner = root.optional_size("ffn_hidden_size")?.unwrap_or(4 * config.hidden_size()?);
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.word_embeddings",
            layers: "transformer.h",
            norms,
            qkv: &["self_attention.query_key_value"],
            out: "self_attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            final_norm: "transformer.ln_f",
        },
        heads,
        inner,
        activation: config.activation_or(Activation::Gelu)?,
        biases: [bias, bias],
        max_model_len: root.optional_size("max_position_embeddings")?.unwrap_or(CONTEXT_LEN),
    };
    let mut spec = gpt.spec(config)?;
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    let order = RowOrder::grouped_qkv(heads);
    spec.attentions_mut().for_each(|(_, attention)| attention.qkv.order = order.clone());
    for layer in spec.layers.iter_mut().filter(|_| is_parallel) {
        layer.wiring = Wiring::Parallel;
    }
    set_positions(config, &mut spec, flag("alibi", false)?)?;
    Ok(spec)
}

fn heads(config: &HfConfig, is_new: bool) -> Result<QkvHeads, EngineError> {
    let root = config.root();
    let heads = config.equal_heads()?;
    let num_heads = heads.num_heads;
    let (new, old) = (root.optional_size("num_kv_heads")?, root.optional_size("n_head_kv")?);
    let num_kv_heads = match (is_new, root.flag("multi_query")?.unwrap_or(true)) {
        (true, _) => new.or(old).unwrap_or(num_heads),
        (false, true) => 1,
        (false, false) => num_heads,
    };
    config.check_kv_heads(num_heads, num_kv_heads)?;
    Ok(QkvHeads { num_kv_heads, ..heads })
}

/// ALiBi, whose slopes are scaled with the scores, or a rotary embedding.
fn set_positions(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    alibi: bool,
) -> Result<(), EngineError> {
    if !alibi {
        let rope = config.rope(LayerType::Full)?;
        spec.max_model_len = rope.scaling.context_len(spec.max_model_len);
        spec.ropes = vec![rope];
    } else {
        config.root().ignore(&["rope_parameters", "rope_scaling", "rope_theta"]);
    }
    for (_, attention) in spec.attentions_mut() {
        attention.rope = (!alibi).then_some(0);
        let slopes = || {
            let slopes = alibi_slopes(attention.heads.num_heads, 8.0).into_iter();
            slopes.map(|slope| slope * attention.scale).collect()
        };
        attention.alibi_slopes = alibi.then(slopes);
    }
    Ok(())
}
