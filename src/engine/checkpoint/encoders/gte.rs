//! GTE of version 1.5 and later (`NewModel` of its own code, `GteModel` of transformers): BERT with
//! rotary positions and a gated MLP.

use super::bert::{after_sum, norm, token_types};
use crate::hf_config::{HfConfig, LayerType};
use crate::spec::{
    ActivationSpec, AttentionSpec, EncoderSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec,
    RopeScaling, RopeSpec, RowOrder,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Keys for other ways to compute the same.
const OF_OTHERS: &[&str] = &["unpad_inputs", "use_memory_efficient_attention"];

/// The spec of a GTE config.
pub(super) fn spec(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    root.expect("layer_norm_type", "layer_norm")?;
    root.expect("logn_attention_clip1", false)?;
    root.expect("logn_attention_scale", false)?;
    root.expect("pack_qkv", true)?;
    root.expect("position_embedding_type", "rope")?;
    root.ignore(OF_OTHERS);
    let hidden = config.hidden_size()?;
    let name = |part: &str| format!("new.embeddings.{part}");
    let tokens = LinearSpec::new(name("word_embeddings"), config.vocab_size()?, hidden);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    let layers = layers.collect::<Result<_, _>>()?;
    Ok(EncoderSpec {
        token_types: token_types(config, name("token_type_embeddings"), 1)?,
        embed_norm: Some(norm(config, name("LayerNorm"))?),
        ropes: vec![rope(config)?],
        of_heads: &["pooler.", "new.pooler.", "lm_head.", "classifier."],
        ..EncoderSpec::new(config.max_position_embeddings()?, tokens, layers)
    })
}

/// `ntk` is of GTE's own code: a larger base, and all frequencies divided.
fn rope(config: &HfConfig) -> Result<RopeSpec, EngineError> {
    let scaling = config.root().section("rope_scaling")?;
    let is_ntk = |kind: Option<&str>| kind == Some("ntk");
    match scaling {
        Some(scaling) if is_ntk(scaling.text("type")?) => {
            let (base, factor) =
                (config.root().positive("rope_theta")?, scaling.positive("factor")?);
            let rotary_dim = config.head_dim()?;
            let divisor = factor.powf(2.0 / rotary_dim as f64);
            let scaling = RopeScaling::Linear { factor: divisor };
            Ok(RopeSpec { theta: base * factor, rotary_dim, scaling, axes: Vec::new() })
        }
        _ => config.rope_of(LayerType::Full, 160_000.0),
    }
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("new.encoder.layer.{index}.{part}");
    let (hidden, heads) = (config.hidden_size()?, config.equal_heads()?);
    let inner = config.intermediate_size()?;
    let attention = AttentionSpec::new(
        after_sum(norm(config, name("attn_ln"))?),
        heads,
        LinearSpec::new(name("attention.qkv_proj"), heads.qkv_width(), hidden).with_bias(true),
        LinearSpec::new(name("attention.o_proj"), hidden, heads.q_width()).with_bias(true),
    );
    let up = LinearSpec::new(name("mlp.up_gate_proj"), 2 * inner, hidden);
    let mlp = MlpSpec {
        norms: after_sum(norm(config, name("mlp_ln"))?),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(config.activation_or(Activation::Gelu)?),
        up: up.in_order(RowOrder::halves_swapped(2 * inner)),
        down: LinearSpec::new(name("mlp.down_proj"), hidden, inner).with_bias(true),
    };
    Ok(LayerSpec::new(AttentionSpec { rope: Some(0), ..attention }, mlp))
}
