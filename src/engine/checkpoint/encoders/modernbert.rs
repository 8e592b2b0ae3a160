//! ModernBERT: norms before blocks and at the end, a gated MLP, rotary positions; two layers of
//! three see their neighbourhood alone, with a rotary base of their own.

use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, EncoderSpec, LayerSpec, LinearSpec, MlpForm,
    MlpSpec, NormSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Keys of heads and training alone, or of other ways to compute the same.
const OF_OTHERS: &[&str] = &[
    "classifier_activation",
    "classifier_bias",
    "classifier_pooling",
    "decoder_bias",
    "deterministic_flash_attn",
    "mlp_dropout",
    "position_embedding_type",
    "reference_compile",
    "repad_logits_with_grad",
    "sparse_pred_ignore_index",
    "sparse_prediction",
];

/// The spec of a ModernBERT config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.ignore(OF_OTHERS);
    let hidden = config.hidden_size()?;
    let every = root.optional_size("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    let slides = config.sliding_layers_or(|index| !index.is_multiple_of(every))?;
    // Their names before `rope_parameters`.
    let global = root.number("global_rope_theta")?.unwrap_or(160_000.0);
    let local = root.number("local_rope_theta")?.unwrap_or(10_000.0);
    let reach = root.optional_size("local_attention")?.unwrap_or(128) / 2;
    let layers = slides.iter().enumerate().map(|(index, slides)| {
        let mut layer = layer(config, index)?;
        if let Some(attention) = &mut layer.attention {
            attention.rope = Some(usize::from(*slides));
            attention.sliding_window = slides.then_some(reach);
        }
        Ok(layer)
    });
    let layers = layers.collect::<Result<_, EngineError>>()?;
    let tokens = LinearSpec::new("model.embeddings.tok_embeddings", config.vocab_size()?, hidden);
    Ok(EncoderSpec {
        embed_norm: Some(norm(config, "model.embeddings.norm")?),
        ropes: vec![
            config.rope_of(LayerType::Full, global)?,
            config.rope_of(LayerType::Sliding, local)?,
        ],
        final_norm: Some(norm(config, "model.final_norm")?),
        of_heads: &["head.", "decoder.", "classifier."],
        ..EncoderSpec::new(config.max_position_embeddings()?, tokens, layers)
    })
}

pub(super) fn norm(config: &HfConfig, name: &str) -> Result<NormSpec, EngineError> {
    let (hidden, eps) = (config.hidden_size()?, config.layer_norm_eps(1e-5)?);
    let bias = config.root().flag("norm_bias")?.unwrap_or(false);
    Ok(NormSpec::layer(name, hidden, eps).with_bias(bias))
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let (heads, bias) = (config.equal_heads()?, config.attention_bias()?);
    let norms = match index {
        // The norm of the embeddings is the first layer's.
        0 => BlockNorms::default(),
        _ => BlockNorms::before(norm(config, &name("attn_norm"))?),
    };
    let attention = AttentionSpec::new(
        norms,
        heads,
        LinearSpec::new(name("attn.Wqkv"), 3 * heads.q_width(), hidden).with_bias(bias),
        LinearSpec::new(name("attn.Wo"), hidden, heads.q_width()).with_bias(bias),
    );
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
