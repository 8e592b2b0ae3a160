//! OPT: learned positions, LayerNorm, plain MLP. OPT-350m normalizes after its blocks and projects
//! its embeddings.

use super::hf_config::HfConfig;
use super::spec::{
    AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec, LearnedPositions, MlpSpec, NormPlacement,
    NormSpec, TensorNames,
};
use crate::engine::EngineError;
use crate::engine::ops::NormKind;

/// Rows before position 0: a leftover of fairseq's padding ids.
const POSITION_OFFSET: usize = 2;

/// PyTorch's LayerNorm default; OPT has no key for it.
const LAYER_NORM_EPS: f32 = 1e-5;

const NAMES: TensorNames = TensorNames {
    prefix: "model.decoder.",
    final_norm: "final_layer_norm",
    attention_norm: "self_attn_layer_norm",
    attention_post_norm: "",
    mlp_norm: "final_layer_norm",
    mlp_post_norm: "",
    out_proj: "self_attn.out_proj",
    gate_proj: "",
    up_proj: "fc1",
    down_proj: "fc2",
};

/// The spec of an OPT config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let head_dim = config.head_dim()?;
    let hidden_size = config.hidden_size()?;
    let max_model_len = config.max_position_embeddings()?;
    let pre_norm = config.do_layer_norm_before()?;
    let bias = config.enable_bias()?;
    let positions =
        LearnedPositions { num_rows: max_model_len + POSITION_OFFSET, offset: POSITION_OFFSET };
    Ok(DecoderSpec {
        vocab_size: config.vocab_size()?,
        hidden_size,
        intermediate_size: config.intermediate_size()?,
        max_model_len,
        embedding: EmbeddingSpec {
            scaled: false,
            projected_from: config.word_embed_proj_dim()?.filter(|width| *width != hidden_size),
            positions: Some(positions),
        },
        norm: NormSpec { kind: NormKind::Layer, eps: LAYER_NORM_EPS, unit_offset: false },
        norm_placement: if pre_norm { NormPlacement::Pre } else { NormPlacement::Post },
        has_final_norm: pre_norm && !config.remove_final_layer_norm()?,
        attention: AttentionSpec {
            num_heads: config.num_heads()?,
            num_kv_heads: config.num_heads()?,
            head_dim,
            qkv_bias: bias,
            out_bias: bias,
            qk_norm: false,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        },
        mlp: MlpSpec { gated: false, activation: config.activation()?, bias },
        layers: vec![LayerSpec { sliding_window: None, rope: None }; config.num_layers()?],
        ropes: Vec::new(),
        final_logit_soft_cap: None,
        tie_word_embeddings: config.tie_word_embeddings(true)?,
        names: NAMES,
    })
}
