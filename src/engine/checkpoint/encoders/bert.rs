//! BERT and what is built like it: learned positions, a norm of the embeddings and after every
//! block, biases everywhere, an MLP without a gate. RoBERTa counts positions from behind its
//! padding id.

use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, EncoderSpec, LayerSpec, LearnedPositions,
    LinearSpec, MlpForm, MlpSpec, NormSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Keys of the construction of TensorFlow's BERT, still present in files of multilingual models.
/// transformers ignores them.
const OF_TENSORFLOW: &[&str] = &[
    "directionality",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
];

/// The spec of a BERT config.
pub(super) fn bert(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    config.root().ignore(OF_TENSORFLOW);
    spec(config, "bert", 0, &["pooler.", "bert.pooler.", "cls."])
}

/// The spec of a RoBERTa, XLM-RoBERTa or CamemBERT config.
pub(super) fn roberta(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let padding = config.root().optional_size("pad_token_id")?.unwrap_or(1);
    spec(config, "roberta", padding + 1, &["pooler.", "roberta.pooler.", "lm_head."])
}

/// `first_position`: row of the first token's position.
fn spec(
    config: &HfConfig,
    prefix: &str,
    first_position: usize,
    of_heads: &'static [&'static str],
) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.expect("position_embedding_type", "absolute")?;
    root.expect("is_decoder", false)?;
    let (hidden, num_positions) = (config.hidden_size()?, config.max_position_embeddings()?);
    let name = |part: &str| format!("{prefix}.embeddings.{part}");
    let table = |part: &str, rows| LinearSpec::new(name(part), rows, hidden);
    let tokens = table("word_embeddings", config.vocab_size()?);
    let layers = (0..config.num_layers()?).map(|index| layer(config, prefix, index));
    let layers = layers.collect::<Result<_, _>>()?;
    Ok(EncoderSpec {
        token_types: token_types(config, name("token_type_embeddings"), 2)?,
        positions: Some(LearnedPositions {
            table: table("position_embeddings", num_positions),
            offset: first_position,
        }),
        embed_norm: Some(norm(config, name("LayerNorm"))?),
        of_heads,
        ..EncoderSpec::new(num_positions.saturating_sub(first_position), tokens, layers)
    })
}

/// The table of segments, with `default` of them where the config does not say.
pub(super) fn token_types(
    config: &HfConfig,
    name: String,
    default: usize,
) -> Result<Option<LinearSpec>, EngineError> {
    let num_types = config.root().optional_size("type_vocab_size")?.unwrap_or(default);
    let hidden = config.hidden_size()?;
    Ok((num_types > 0).then(|| LinearSpec::new(name, num_types, hidden)))
}

/// A norm with BERT's epsilon, where the config does not say another.
pub(super) fn norm(config: &HfConfig, name: String) -> Result<NormSpec, EngineError> {
    Ok(NormSpec::layer(name, config.hidden_size()?, config.layer_norm_eps(1e-12)?))
}

fn layer(config: &HfConfig, prefix: &str, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("{prefix}.encoder.layer.{index}.{part}");
    let mlp = mlp(
        config,
        [name("intermediate.dense"), name("output.dense")],
        norm(config, name("output.LayerNorm"))?,
    )?;
    Ok(LayerSpec::new(attention(config, &name)?, mlp))
}

/// The attention of a layer, whose tensors have these names.
pub(super) fn attention(
    config: &HfConfig,
    name: &dyn Fn(&str) -> String,
) -> Result<AttentionSpec, EngineError> {
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let qkv = ["query", "key", "value"].map(|part| name(&format!("attention.self.{part}")));
    let qkv = LinearSpec::stacked(qkv.map(|part| (part, heads.q_width())), hidden);
    let out = LinearSpec::new(name("attention.output.dense"), hidden, heads.q_width());
    let norms = after_sum(norm(config, name("attention.output.LayerNorm"))?);
    Ok(AttentionSpec::new(norms, heads, qkv.with_bias(true), out.with_bias(true)))
}

/// A norm of what a block and its input sum up to.
pub(super) fn after_sum(norm: NormSpec) -> BlockNorms {
    BlockNorms { of_sum: Some(norm), ..BlockNorms::default() }
}

/// The MLP of `intermediate_size` and `hidden_act`, whose layers have these names.
pub(super) fn mlp(
    config: &HfConfig,
    [up, down]: [String; 2],
    norm: NormSpec,
) -> Result<MlpSpec, EngineError> {
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    Ok(MlpSpec {
        norms: after_sum(norm),
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(config.activation_or(Activation::Gelu)?),
        up: LinearSpec::new(up, inner, hidden).with_bias(true),
        down: LinearSpec::new(down, hidden, inner).with_bias(true),
    })
}
