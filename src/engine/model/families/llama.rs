//! Llama 2, 3, 3.1 and what shares their class. Most other families start from this spec.

use crate::engine::EngineError;
use crate::engine::model::hf_config::{HfConfig, LayerType};
use crate::engine::model::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec,
    NormSpec, OutputSpec, RopeScaling,
};

/// Pre-norm RMS, gated MLP, rotary embedding, grouped query heads.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let rope = config.rope(LayerType::Full)?;
    let stretch = match rope.scaling {
        RopeScaling::Linear { factor } => factor,
        // Llama 3.1's max_position_embeddings is the stretched length already.
        RopeScaling::None | RopeScaling::Llama3 { .. } => 1.0,
    };
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    let lm_head = match config.tie_word_embeddings(false)? {
        true => None,
        false => Some(LinearSpec::new("lm_head", vocab, hidden)),
    };
    Ok(DecoderSpec {
        max_model_len: (config.max_position_embeddings()? as f64 * stretch) as usize,
        embedding: EmbeddingSpec::of(LinearSpec::new("model.embed_tokens", vocab, hidden)),
        layers: layers.collect::<Result<_, _>>()?,
        ropes: vec![rope],
        output: OutputSpec {
            norm: Some(NormSpec::rms("model.norm", hidden, config.rms_norm_eps()?)),
            projection: None,
            lm_head,
            soft_cap: None,
        },
    })
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let eps = config.rms_norm_eps()?;
    let norm = |part| BlockNorms::before(NormSpec::rms(name(part), hidden, eps));
    let (num_heads, num_kv_heads) = (config.num_heads()?, config.num_kv_heads()?);
    let head_dim = config.head_dim()?;
    let (q, kv) = (num_heads * head_dim, num_kv_heads * head_dim);
    let bias = config.attention_bias()?;
    let qkv = [("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)];
    let up = ["mlp.gate_proj", "mlp.up_proj"].map(|part| (name(part), inner));
    Ok(LayerSpec {
        attention: AttentionSpec {
            norms: norm("input_layernorm"),
            num_heads,
            num_kv_heads,
            head_dim,
            qkv: LinearSpec::stacked(qkv.map(|(part, n)| (name(part), n)), hidden).with_bias(bias),
            qk_norm: None,
            out: LinearSpec::new(name("self_attn.o_proj"), hidden, q).with_bias(bias),
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
            sliding_window: None,
            rope: Some(0),
        },
        mlp: MlpSpec {
            norms: norm("post_attention_layernorm"),
            form: MlpForm::Gated,
            activation: config.activation()?,
            up: LinearSpec::stacked(up, hidden).with_bias(config.mlp_bias()?),
            down: LinearSpec::new(name("mlp.down_proj"), hidden, inner)
                .with_bias(config.mlp_bias()?),
        },
    })
}
