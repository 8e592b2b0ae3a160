//! CTRL: GPT-2's kind with positions that are computed and a bias of its logits.

use super::gpt::{Gpt, Names};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, EmbeddingScale, LinearSpec, Sinusoids};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Epsilon of norms, for which there is no key but for the last one.
const LAYER_NORM_EPS: f32 = 1e-6;

/// The spec of a CTRL config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // What it was trained with; and where it was made.
    root.ignore(&["n_ctx", "from_tf"]);
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.w",
            layers: "transformer.h",
            norms: ["layernorm1", "layernorm2"],
            qkv: &["multi_head_attention.Wq", "multi_head_attention.Wk", "multi_head_attention.Wv"],
            out: "multi_head_attention.dense",
            up: "ffn.0",
            down: "ffn.2",
            final_norm: "transformer.layernorm",
        },
        heads: config.equal_heads()?,
        inner: root.size("dff")?,
        activation: Activation::Relu,
        biases: [true, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    spec.residual_norms_mut().for_each(|norm| norm.eps = LAYER_NORM_EPS);
    let eps = config.layer_norm_eps(LAYER_NORM_EPS)?;
    spec.output.norm.iter_mut().for_each(|norm| norm.eps = eps);
    let (vocab, width) = (spec.vocab_size(), spec.hidden_size());
    if !width.is_multiple_of(2) {
        return Err(config.error("positions of an odd number of values are not supported"));
    }
    let (divisor, offset, zeros) = (width / 2, 0, None);
    spec.embedding.sinusoids = Some(Sinusoids { width, divisor, offset, zeros });
    spec.embedding.scale = Some(EmbeddingScale::root_of(width));
    let head = match config.is_tied(true)? {
        true => LinearSpec::of_table(["transformer.w.weight", "lm_head.bias"], vocab, width),
        false => LinearSpec::new("lm_head", vocab, width),
    };
    spec.output.lm_head = Some(head.with_bias(true));
    Ok(spec)
}
