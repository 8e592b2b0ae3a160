//! Jina's BERT of version 2: BERT with ALiBi in both directions in place of positions, and a gated
//! MLP.

use super::bert::after_sum;
use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{
    ActivationSpec, AttentionSpec, EncoderSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec,
};
use crate::engine::ops::{Activation, alibi_slopes};

/// How its code computes the same, and which pooling it was trained with: modules.json says that.
const OF_OTHERS: &[&str] = &["attn_implementation", "emb_pooler", "model_max_length"];

/// The spec of a Jina BERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.expect("position_embedding_type", "alibi")?;
    root.ignore(OF_OTHERS);
    let hidden = config.hidden_size()?;
    let table = |part: &str, rows| LinearSpec::new(format!("bert.embeddings.{part}"), rows, hidden);
    let num_types = root.optional_size("type_vocab_size")?.unwrap_or(2);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    Ok(EncoderSpec {
        max_model_len: config.max_position_embeddings()?,
        tokens: table("word_embeddings", config.vocab_size()?),
        token_types: (num_types > 0).then(|| table("token_type_embeddings", num_types)),
        embed_scale: None,
        positions: None,
        embed_norm: Some(norm(config, "bert.embeddings.LayerNorm")?),
        is_causal: false,
        layers: layers.collect::<Result<_, _>>()?,
        ropes: Vec::new(),
        relative_bias: None,
        final_norm: None,
        of_heads: &["pooler.", "bert.pooler.", "cls."],
        output: None,
    })
}

fn norm(config: &HfConfig, name: &str) -> Result<NormSpec, EngineError> {
    Ok(NormSpec::layer(name, config.hidden_size()?, config.layer_norm_eps(1e-12)?))
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("bert.encoder.layer.{index}.{part}");
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let inner = config.intermediate_size()?;
    let qkv = ["query", "key", "value"].map(|part| name(&format!("attention.self.{part}")));
    let qkv = LinearSpec::stacked(qkv.map(|part| (part, heads.q_width())), hidden);
    let out = LinearSpec::new(name("attention.output.dense"), hidden, heads.q_width());
    let norms = after_sum(norm(config, &name("attention.output.LayerNorm"))?);
    let mut attention = AttentionSpec::new(norms, heads, qkv.with_bias(true), out.with_bias(true));
    attention.alibi_slopes = Some(alibi_slopes(heads.num_heads, 8.0));
    let activation = match config.root().text("feed_forward_type")? {
        Some("geglu") => Activation::Gelu,
        Some("reglu") => Activation::Relu,
        _ => return Err(config.error("`feed_forward_type` should be geglu or reglu")),
    };
    config.root().ignore(&["hidden_act"]);
    let mlp = MlpSpec {
        norms: after_sum(norm(config, &name("mlp.layernorm"))?),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::new(name("mlp.gated_layers"), 2 * inner, hidden),
        down: LinearSpec::new(name("mlp.wo"), hidden, inner).with_bias(true),
    };
    Ok(LayerSpec::new(attention, mlp))
}
