//! Llama 2, 3, 3.1 and what shares their class. The other families start from this spec.

use super::hf_config::{HfConfig, LayerType};
use super::spec::{
    AttentionSpec, DecoderSpec, EmbeddingSpec, LayerSpec, MlpSpec, NormPlacement, NormSpec,
    RopeScaling, TensorNames,
};
use crate::engine::EngineError;
use crate::engine::ops::NormKind;

/// Pre-norm RMS, gated MLP, rotary embedding, grouped query heads.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let head_dim = config.head_dim()?;
    let rope = config.rope(LayerType::Full)?;
    let stretch = match rope.scaling {
        RopeScaling::Linear { factor } => factor,
        // Llama 3.1's max_position_embeddings is the stretched length already.
        RopeScaling::None | RopeScaling::Llama3 { .. } => 1.0,
    };
    Ok(DecoderSpec {
        vocab_size: config.vocab_size()?,
        hidden_size: config.hidden_size()?,
        intermediate_size: config.intermediate_size()?,
        max_model_len: (config.max_position_embeddings()? as f64 * stretch) as usize,
        embedding: EmbeddingSpec::default(),
        norm: NormSpec { kind: NormKind::Rms, eps: config.rms_norm_eps()?, unit_offset: false },
        norm_placement: NormPlacement::Pre,
        has_final_norm: true,
        attention: AttentionSpec {
            num_heads: config.num_heads()?,
            num_kv_heads: config.num_kv_heads()?,
            head_dim,
            qkv_bias: config.attention_bias()?,
            out_bias: config.attention_bias()?,
            qk_norm: false,
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
        },
        mlp: MlpSpec { gated: true, activation: config.activation()?, bias: config.mlp_bias()? },
        layers: vec![LayerSpec { sliding_window: None, rope: Some(0) }; config.num_layers()?],
        ropes: vec![rope],
        final_logit_soft_cap: None,
        tie_word_embeddings: config.tie_word_embeddings(false)?,
        names: TensorNames::LLAMA,
    })
}
