//! DistilBERT: BERT without segments, under names of its own.

use super::bert::after_sum;
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, EncoderSpec, LayerSpec, LearnedPositions, LinearSpec, MlpForm,
    MlpSpec, NormSpec, QkvHeads,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// DistilBERT has no key for it.
const LAYER_NORM_EPS: f32 = 1e-12;

/// The spec of a DistilBERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    // The files hold the positions either way; the others are of heads, and of training.
    root.ignore(&["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"]);
    let (dim, num_positions) = (root.size("dim")?, config.max_position_embeddings()?);
    let name = |part: &str| format!("distilbert.embeddings.{part}");
    let layers = (0..config.num_layers()?).map(|index| layer(config, dim, index));
    let layers = layers.collect::<Result<_, _>>()?;
    let tokens = LinearSpec::new(name("word_embeddings"), config.vocab_size()?, dim);
    Ok(EncoderSpec {
        positions: Some(LearnedPositions {
            table: LinearSpec::new(name("position_embeddings"), num_positions, dim),
            offset: 0,
        }),
        embed_norm: Some(NormSpec::layer(name("LayerNorm"), dim, LAYER_NORM_EPS)),
        of_heads: &["vocab_"],
        ..EncoderSpec::new(num_positions, tokens, layers)
    })
}

fn layer(config: &HfConfig, dim: usize, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("distilbert.transformer.layer.{index}.{part}");
    let num_heads = config.num_heads()?;
    if !dim.is_multiple_of(num_heads) {
        return Err(config.error(format!("{num_heads} heads cannot share {dim} columns evenly")));
    }
    let heads = QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: dim / num_heads };
    let qkv = ["q_lin", "k_lin", "v_lin"].map(|part| (name(&format!("attention.{part}")), dim));
    let linear = |part: &str, n, k| LinearSpec::new(name(part), n, k).with_bias(true);
    let norms = |part: &str| after_sum(NormSpec::layer(name(part), dim, LAYER_NORM_EPS));
    let attention = AttentionSpec::new(
        norms("sa_layer_norm"),
        heads,
        LinearSpec::stacked(qkv, dim).with_bias(true),
        linear("attention.out_lin", dim, dim),
    );
    let inner = config.root().size("hidden_dim")?;
    let mlp = MlpSpec {
        norms: norms("output_layer_norm"),
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(config.activation_or(Activation::Gelu)?),
        up: linear("ffn.lin1", inner, dim),
        down: linear("ffn.lin2", dim, inner),
    };
    Ok(LayerSpec::new(attention, mlp))
}
