//! Llama 2, 3, 3.1 and what shares their class. Most other families start from this spec.

use crate::engine::EngineError;
use crate::engine::model::hf_config::{HfConfig, LayerType};
use crate::engine::model::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec, LinearSpec,
    MlpForm, MlpSpec, NormSpec, OutputSpec,
};

/// Pre-norm RMS, gated MLP, rotary embedding, grouped query heads.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let rope = config.rope(LayerType::Full)?;
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    let norm = NormSpec::rms("model.norm", hidden, config.rms_norm_eps()?);
    Ok(DecoderSpec {
        max_model_len: rope.scaling.context_len(config.max_position_embeddings()?),
        embedding: EmbeddingSpec::of(LinearSpec::new("model.embed_tokens", vocab, hidden)),
        layers: layers.collect::<Result<_, _>>()?,
        ropes: vec![rope],
        output: OutputSpec::new(norm, config.lm_head("lm_head", false)?),
    })
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let (eps, heads) = (config.rms_norm_eps()?, config.heads()?);
    let norm = |part| BlockNorms::before(NormSpec::rms(name(part), hidden, eps));
    let (q, kv) = (heads.q_width(), heads.kv_width());
    let qkv = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)];
    let qkv = LinearSpec::stacked(qkv.map(|(part, n)| (name(part), n)), hidden);
    let out = LinearSpec::new(name("self_attn.o_proj"), hidden, q);
    let up = ["mlp.gate_proj", "mlp.up_proj"].map(|part| (name(part), inner));
    let down = LinearSpec::new(name("mlp.down_proj"), hidden, inner);
    let (bias, mlp_bias) = (config.attention_bias()?, config.mlp_bias()?);
    let attention = AttentionSpec {
        rope: Some(0),
        ..AttentionSpec::new(
            norm("input_layernorm"),
            heads,
            qkv.with_bias(bias),
            out.with_bias(bias),
        )
    };
    let mlp = MlpSpec {
        norms: norm("post_attention_layernorm"),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(config.activation()?),
        up: LinearSpec::stacked(up, hidden).with_bias(mlp_bias),
        down: down.with_bias(mlp_bias),
    };
    Ok(LayerSpec::new(attention, mlp))
}
