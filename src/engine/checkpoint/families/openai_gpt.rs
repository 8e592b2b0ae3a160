//! GPT (1): GPT-2 with norms of sums, behind its blocks, and none at the end.

use super::gpt::{Gpt, Names};
use super::gpt2;
use crate::hf_config::HfConfig;
use crate::spec::{BlockNorms, DecoderSpec, FeedForwardSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// The spec of a GPT config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // The context again, and tokens that are in the vocabulary.
    root.ignore(&["n_ctx", "predict_special_tokens"]);
    root.expect("n_special", 0)?;
    // What it calls GELU is the approximation.
    let activation = root.text("afn")?.filter(|name| *name != "gelu");
    let hidden = config.hidden_size()?;
    let gpt = Gpt {
        names: Names {
            tokens: "transformer.tokens_embed",
            layers: "transformer.h",
            norms: ["ln_1", "ln_2"],
            qkv: &["attn.c_attn"],
            out: "attn.c_proj",
            up: "mlp.c_fc",
            down: "mlp.c_proj",
            final_norm: "",
        },
        heads: config.equal_heads()?,
        inner: 4 * hidden,
        activation: config.activation_named_or(activation, Activation::GeluTanh)?,
        biases: [true, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    spec.output.norm = None;
    gpt2::add_positions(&mut spec, "transformer.positions_embed");
    gpt2::transpose(&mut spec);
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    for layer in &mut spec.layers {
        let attention = layer.attention.iter_mut().map(|attention| &mut attention.norms);
        let mlp = layer.feed_forward.iter_mut().map(FeedForwardSpec::norms_mut);
        for norms in attention.chain(mlp) {
            *norms = BlockNorms { of_sum: norms.before.take(), ..BlockNorms::default() };
        }
    }
    Ok(spec)
}
