//! Llama 2, 3, 3.1 and what shares their class. Most other families start from this spec.

use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec, LinearSpec,
    MlpForm, MlpSpec, NormSpec, OutputSpec, QkNormSpec, QkvHeads, RopeSpec, RowOrder, Stage,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Defaults of keys that config.json lacks. A family of Llama's shape has its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults {
    /// `rope_theta`
    pub rope_theta: f64,
    /// `rms_norm_eps`
    pub rms_norm_eps: f32,
    /// `tie_word_embeddings`
    pub is_tied: bool,
    /// `hidden_act`
    pub activation: Activation,
}

impl Defaults {
    /// Llama's.
    pub(super) const LLAMA: Self = Self {
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        is_tied: false,
        activation: Activation::Silu,
    };
}

/// Pre-norm RMS, gated MLP, rotary embedding, grouped query heads.
pub(crate) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    spec_with(config, Defaults::LLAMA)
}

/// The same with a family's defaults.
pub(super) fn spec_with(config: &HfConfig, defaults: Defaults) -> Result<DecoderSpec, EngineError> {
    around(config, defaults, |index| {
        let (heads, inner) = (config.heads()?, config.intermediate_size()?);
        let attention = attention(config, defaults, (index, heads))?;
        Ok(LayerSpec::new(attention, mlp(config, defaults, (index, inner))?))
    })
}

/// Layers, each by its number, between the embedding and the output layer.
pub(super) fn around(
    config: &HfConfig,
    defaults: Defaults,
    layer: impl FnMut(usize) -> Result<LayerSpec, EngineError>,
) -> Result<DecoderSpec, EngineError> {
    let rope = config.rope_of(LayerType::Full, defaults.rope_theta)?;
    let max_model_len = rope.scaling.context_len(config.max_position_embeddings()?);
    around_with(config, defaults, (vec![rope], max_model_len), layer)
}

/// The same with rotary embeddings and a context of its own.
pub(super) fn around_with(
    config: &HfConfig,
    defaults: Defaults,
    (ropes, max_model_len): (Vec<RopeSpec>, usize),
    layer: impl FnMut(usize) -> Result<LayerSpec, EngineError>,
) -> Result<DecoderSpec, EngineError> {
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let lm_head = config.lm_head("lm_head", defaults.is_tied)?;
    let layers = (0..config.num_layers()?).map(layer);
    Ok(DecoderSpec {
        max_model_len,
        embedding: EmbeddingSpec::of(LinearSpec::new("model.embed_tokens", vocab, hidden)),
        layers: layers.collect::<Result<_, _>>()?,
        ropes,
        output: OutputSpec::new(NormSpec::rms("model.norm", hidden, eps), lm_head),
        stage: Stage::WHOLE,
    })
}

/// The attention block of a layer.
pub(super) fn attention(
    config: &HfConfig,
    defaults: Defaults,
    (index, heads): (usize, QkvHeads),
) -> Result<AttentionSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let hidden = config.hidden_size()?;
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
    let (q, kv) = (heads.q_width(), heads.kv_width());
    let qkv = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)];
    let qkv = LinearSpec::stacked(qkv.map(|(part, n)| (name(part), n)), hidden);
    let out = LinearSpec::new(name("self_attn.o_proj"), hidden, q);
    let bias = config.attention_bias()?;
    let block = AttentionSpec::new(norms, heads, qkv.with_bias(bias), out.with_bias(bias));
    Ok(AttentionSpec { rope: Some(0), ..block })
}

/// The feed-forward block of a layer, of this inner width.
pub(super) fn mlp(
    config: &HfConfig,
    defaults: Defaults,
    (index, inner): (usize, usize),
) -> Result<MlpSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let hidden = config.hidden_size()?;
    let up = ["mlp.gate_proj", "mlp.up_proj"].map(|part| (name(part), inner));
    let down = LinearSpec::new(name("mlp.down_proj"), hidden, inner);
    let bias = config.mlp_bias()?;
    let activation = match config.root().text("hidden_act")? {
        Some("xielu") => ActivationSpec::XIelu(name("mlp.act_fn")),
        _ => ActivationSpec::Known(config.activation_or(defaults.activation)?),
    };
    Ok(MlpSpec {
        norms: mlp_norms(config, defaults, index)?,
        form: MlpForm::Gated,
        activation,
        up: LinearSpec::stacked(up, hidden).with_bias(bias),
        down: down.with_bias(bias),
    })
}

/// Where the feed-forward block of a layer normalizes.
pub(super) fn mlp_norms(
    config: &HfConfig,
    defaults: Defaults,
    index: usize,
) -> Result<BlockNorms, EngineError> {
    let eps = config.rms_norm_eps_or(defaults.rms_norm_eps)?;
    let name = format!("model.layers.{index}.post_attention_layernorm");
    Ok(BlockNorms::before(NormSpec::rms(name, config.hidden_size()?, eps)))
}

/// The MLP without its gate.
pub(super) fn without_gate(mlp: &mut MlpSpec) {
    mlp.form = MlpForm::Plain;
    mlp.up.parts.remove(0);
}

/// Rotary embeddings turn values 2i and 2i + 1 of every q and k head.
pub(super) fn turn_pairs(spec: &mut DecoderSpec) {
    // One for all layers: it has a value per row.
    let order = RowOrder::rotated_in_pairs(spec.heads(), spec.ropes[0].rotary_dim);
    spec.attentions_mut().for_each(|(_, attention)| attention.qkv.order = order.clone());
}

/// RMSNorm of every q head and every k head, by these names.
pub(super) fn head_norms(index: usize, names: [&str; 2], head_dim: usize, eps: f32) -> QkNormSpec {
    let [q, k] = names
        .map(|part| NormSpec::rms(format!("model.layers.{index}.self_attn.{part}"), head_dim, eps));
    QkNormSpec::per_head(q, k)
}
