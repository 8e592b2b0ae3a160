//! BLOOM: ALiBi, a norm of the embeddings, q, k and v stored per head, tied embeddings.

use super::gpt::{Gpt, Names};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, NormSpec, RowOrder};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, alibi_slopes};

/// The context of files that do not say, as in vLLM: ALiBi has no limit of its own.
const CONTEXT_LEN: usize = 2048;

/// The spec of a BLOOM config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let hidden = config.hidden_size()?;
    root.expect("apply_residual_connection_post_layernorm", false)?;
    root.expect("n_inner", 4 * hidden)?;
    // How Megatron and transformers compute the same; only rounding differs.
    root.ignore(&[
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
        "slow_but_exact",
    ]);
    let heads = config.equal_heads()?;
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.word_embeddings",
            layers: "transformer.h",
            norms: ["input_layernorm", "post_attention_layernorm"],
            qkv: &["self_attention.query_key_value"],
            out: "self_attention.dense",
            up: "mlp.dense_h_to_4h",
            down: "mlp.dense_4h_to_h",
            final_norm: "transformer.ln_f",
        },
        heads,
        inner: 4 * hidden,
        activation: Activation::GeluTanh,
        biases: [true, true],
        max_model_len: root.optional_size("seq_length")?.unwrap_or(CONTEXT_LEN),
    };
    let mut spec = gpt.spec(config)?;
    let eps = config.layer_norm_eps(1e-5)?;
    let norm = NormSpec::layer("transformer.word_embeddings_layernorm", hidden, eps);
    spec.embedding.norm = Some(norm);
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    let order = RowOrder::grouped_qkv(heads);
    for (_, attention) in spec.attentions_mut() {
        attention.qkv.order = order.clone();
        attention.alibi_slopes = Some(alibi_slopes(heads.num_heads, 8.0));
    }
    Ok(spec)
}
