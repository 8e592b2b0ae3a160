//! Jina's BERT of version 2: BERT with ALiBi in both directions in place of positions, and a gated
//! MLP.

use super::bert::{after_sum, attention, norm, token_types};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, EncoderSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, alibi_slopes};

/// Keys for other ways to compute the same, and the pooling of training: modules.json has pooling.
const OF_OTHERS: &[&str] = &["attn_implementation", "emb_pooler", "model_max_length"];

/// The spec of a Jina BERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.expect("position_embedding_type", "alibi")?;
    root.ignore(OF_OTHERS);
    let hidden = config.hidden_size()?;
    let name = |part: &str| format!("bert.embeddings.{part}");
    let tokens = LinearSpec::new(name("word_embeddings"), config.vocab_size()?, hidden);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    let layers = layers.collect::<Result<_, _>>()?;
    Ok(EncoderSpec {
        token_types: token_types(config, name("token_type_embeddings"), 2)?,
        embed_norm: Some(norm(config, name("LayerNorm"))?),
        of_heads: &["pooler.", "bert.pooler.", "cls."],
        ..EncoderSpec::new(config.max_position_embeddings()?, tokens, layers)
    })
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("bert.encoder.layer.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let attention = attention(config, &name)?;
    let alibi_slopes = Some(alibi_slopes(attention.heads.num_heads, 8.0));
    let attention = AttentionSpec { alibi_slopes, ..attention };
    let activation = match config.root().text("feed_forward_type")? {
        Some("geglu") => Activation::Gelu,
        Some("reglu") => Activation::Relu,
        _ => return Err(config.error("`feed_forward_type` should be geglu or reglu")),
    };
    config.root().ignore(&["hidden_act"]);
    let mlp = MlpSpec {
        norms: after_sum(norm(config, name("mlp.layernorm"))?),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::new(name("mlp.gated_layers"), 2 * inner, hidden),
        down: LinearSpec::new(name("mlp.wo"), hidden, inner).with_bias(true),
    };
    Ok(LayerSpec::new(attention, mlp))
}
