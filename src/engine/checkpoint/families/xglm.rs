//! XGLM: OPT whose positions are computed, with embeddings that are scaled.

use super::gpt::{Gpt, Names};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, EmbeddingScale, Sinusoids};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// PyTorch's LayerNorm default; neither class gives its norms another.
const LAYER_NORM_EPS: f32 = 1e-5;

/// The spec of an XGLM config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = scaled(config, ["model.embed_tokens", "model.layers", "model.layer_norm"])?;
    let width = spec.hidden_size();
    if width < 4 {
        return Err(config.error("positions of fewer than 4 values are not supported"));
    }
    spec.embedding.sinusoids = Some(Sinusoids {
        width,
        divisor: width / 2 - 1,
        offset: 2,
        zeros: config.root().optional_size("pad_token_id")?,
    });
    spec.output.lm_head = config.lm_head("lm_head", true)?;
    Ok(spec)
}

/// A model without positions; names of the table, of what stands before a layer's number, and of
/// the last norm.
pub(super) fn scaled(
    config: &HfConfig,
    [tokens, layers, final_norm]: [&'static str; 3],
) -> Result<DecoderSpec, EngineError> {
    let gpt = Gpt {
        names: Names {
            tokens,
            layers,
            norms: ["self_attn_layer_norm", "final_layer_norm"],
            qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            out: "self_attn.out_proj",
            up: "fc1",
            down: "fc2",
            final_norm,
        },
        heads: config.equal_heads()?,
        inner: config.intermediate_size()?,
        activation: config.activation_or(Activation::Gelu)?,
        biases: [true, true],
        max_model_len: config.max_position_embeddings()?,
    };
    let mut spec = gpt.spec(config)?;
    config.root().ignore(&["layer_norm_eps"]);
    spec.residual_norms_mut().for_each(|norm| norm.eps = LAYER_NORM_EPS);
    let is_scaled = config.root().flag("scale_embedding")?.unwrap_or(true);
    spec.embedding.scale = is_scaled.then(|| EmbeddingScale::root_of(spec.hidden_size()));
    Ok(spec)
}
