//! GPT-NeoX Japanese: GPT-NeoX whose blocks follow each other, without biases but that of the last
//! layer's attention.

use super::gpt::{Gpt, Names};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{DecoderSpec, RowOrder};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a GPT-NeoX Japanese config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let heads = config.equal_heads()?;
    let base = root.number("rotary_emb_base")?.unwrap_or(10_000.0);
    let rope = config.rope_with(LayerType::Full, RopeDefaults::new(base, 1.0))?;
    let gpt = Gpt {
        names: Names {
            tokens: "gpt_neox_japanese.embed_in",
            layers: "gpt_neox_japanese.layers",
            norms: ["input_layernorm", "post_attention_layernorm"],
            qkv: &["attention.query_key_value"],
            out: "attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            final_norm: "gpt_neox_japanese.final_layer_norm",
        },
        heads,
        inner: config.hidden_size()? * root.size_or("intermediate_multiple_size", 4)?,
        activation: config.activation_or(Activation::Gelu)?,
        biases: [false, false],
        max_model_len: rope.scaling.context_len(config.max_position_embeddings()?),
    };
    let mut spec = gpt.spec(config)?;
    spec.ropes = vec![rope];
    spec.output.lm_head = config.lm_head("embed_out", true)?;
    let order = RowOrder::grouped_qkv(heads);
    for (_, attention) in spec.attentions_mut() {
        attention.rope = Some(0);
        attention.qkv.order = order.clone();
    }
    if let Some((_, last)) = spec.attentions_mut().last() {
        last.out.bias = true;
        // `dense_bias`, beside `dense.weight`.
        last.out.parts.iter_mut().for_each(|part| part.suffixes[1] = "_bias");
    }
    Ok(spec)
}
