//! ModernBERT as a decoder (Ettin): LayerNorms, of which the embedding has the first layer's, fused
//! gated MLPs, windows with a rotary base of their own, and a layer between the last norm and the
//! output layer.

use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{
    ActivationSpec, AfterProjection, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec,
    LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, OutputSpec, RopeSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Reach};

/// Keys of classifiers, of encoders and of training.
pub(crate) const OF_OTHERS: &[&str] = &[
    "classifier_pooling",
    "deterministic_flash_attn",
    "mlp_dropout",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
];

/// The table of tokens.
const TABLE: &str = "model.embeddings.tok_embeddings";

/// The spec of a ModernBERT decoder's config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    root.ignore(OF_OTHERS);
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let q_width = config.equal_heads()?.q_width();
    let window = root.size_or("local_attention", 128)? / 2;
    root.expect("sliding_window", window)?;
    let every = root.size_or("global_attn_every_n_layers", 3)?;
    let slides = config.sliding_layers_or(|index| !index.is_multiple_of(every))?;
    let ropes = ropes(config)?;
    let max_model_len = ropes[0].scaling.context_len(config.max_position_embeddings()?);
    let mut spec = llama::around_with(config, Defaults::LLAMA, (ropes, max_model_len), |index| {
        let qkv = ["q_proj", "k_proj", "v_proj"];
        let qkv = qkv.map(|part| (format!("model.layers.{index}.attn.{part}"), q_width));
        let mut layer = layer(config, index, LinearSpec::stacked(qkv, hidden))?;
        if let Some(attention) = &mut layer.attention {
            attention.rope = Some(usize::from(slides[index]));
            attention.reach = Reach::of_window(slides[index].then_some(window));
        }
        Ok(layer)
    })?;
    spec.embedding = EmbeddingSpec::of(LinearSpec::new(TABLE, vocab, hidden));
    spec.embedding.norm = Some(norm(config, "model.embeddings.norm")?);
    spec.output = output(config)?;
    Ok(spec)
}

/// Rotary embeddings of full layers and of those with windows.
pub(crate) fn ropes(config: &HfConfig) -> Result<Vec<RopeSpec>, EngineError> {
    let root = config.root();
    // Their names before `rope_parameters`.
    let global = root.number("global_rope_theta")?.unwrap_or(160_000.0);
    let local = root.number("local_rope_theta")?.unwrap_or(10_000.0);
    Ok(vec![config.rope_of(LayerType::Full, global)?, config.rope_of(LayerType::Sliding, local)?])
}

/// A norm of this name.
pub(crate) fn norm(config: &HfConfig, name: &str) -> Result<NormSpec, EngineError> {
    let (hidden, eps) = (config.hidden_size()?, config.layer_norm_eps(1e-5)?);
    let bias = config.root().flag("norm_bias")?.unwrap_or(false);
    Ok(NormSpec::layer(name, hidden, eps).with_bias(bias))
}

/// A layer, whose q, k and v these tensors make.
pub(crate) fn layer(
    config: &HfConfig,
    index: usize,
    qkv: LinearSpec,
) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let (heads, bias) = (config.equal_heads()?, config.attention_bias()?);
    let norms = match index {
        // The norm of the embedding is the first layer's.
        0 => BlockNorms::default(),
        _ => BlockNorms::before(norm(config, &name("attn_norm"))?),
    };
    let out = LinearSpec::new(name("attn.Wo"), hidden, heads.q_width());
    let attention = AttentionSpec::new(norms, heads, qkv.with_bias(bias), out.with_bias(bias));
    let bias = config.mlp_bias()?;
    let mlp = MlpSpec {
        norms: BlockNorms::before(norm(config, &name("mlp_norm"))?),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(config.activation_or(Activation::Gelu)?),
        up: LinearSpec::new(name("mlp.Wi"), 2 * inner, hidden).with_bias(bias),
        down: LinearSpec::new(name("mlp.Wo"), hidden, inner).with_bias(bias),
    };
    Ok(LayerSpec::new(attention, mlp))
}

/// A norm, a layer with an activation and a norm of its own, and logits with a bias.
fn output(config: &HfConfig) -> Result<OutputSpec, EngineError> {
    let root = config.root();
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let has_bias = root.flag("decoder_bias")?.unwrap_or(true);
    let names = ["model.embeddings.tok_embeddings.weight", "decoder.bias"];
    let lm_head = match config.is_tied(true)? {
        true => has_bias.then(|| LinearSpec::of_table(names, vocab, hidden)),
        false => Some(LinearSpec::new("decoder", vocab, hidden).with_bias(has_bias)),
    };
    let bias = root.flag("classifier_bias")?.unwrap_or(false);
    let projection = LinearSpec::new("lm_head.dense", hidden, hidden).with_bias(bias);
    let activation =
        config.activation_named(root.text("classifier_activation")?.unwrap_or("gelu"))?;
    let after_projection = AfterProjection { activation, norm: norm(config, "lm_head.norm")? };
    Ok(OutputSpec {
        projection: Some(projection),
        after_projection: Some(after_projection),
        ..OutputSpec::new(norm(config, "model.final_norm")?, lm_head)
    })
}
