//! OPT: learned positions, LayerNorm, plain MLP. OPT-350m normalizes after its blocks and projects
//! its embeddings.

use crate::engine::EngineError;
use crate::engine::model::hf_config::HfConfig;
use crate::engine::model::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec, LearnedPositions, LinearSpec,
    MlpForm, MlpSpec, NormSpec, OutputSpec,
};

/// Rows before position 0: a leftover of fairseq's padding ids.
const POSITION_OFFSET: usize = 2;

/// PyTorch's LayerNorm default; OPT has no key for it.
const LAYER_NORM_EPS: f32 = 1e-5;

/// The spec of an OPT config.
pub fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let name = |part: &str| format!("model.decoder.{part}");
    let max_model_len = config.max_position_embeddings()?;
    let positions =
        LinearSpec::new(name("embed_positions"), max_model_len + POSITION_OFFSET, hidden);
    let width = config.word_embed_proj_dim()?.unwrap_or(hidden);
    let projection = |part, n, k| (width != hidden).then(|| LinearSpec::new(name(part), n, k));
    let has_final_norm = config.do_layer_norm_before()? && !config.remove_final_layer_norm()?;
    let lm_head = match config.tie_word_embeddings(true)? {
        true => None,
        false => Some(LinearSpec::new("lm_head", vocab, width)),
    };
    let layers = (0..config.num_layers()?).map(|index| layer(config, index));
    Ok(DecoderSpec {
        max_model_len,
        embedding: EmbeddingSpec {
            projection: projection("project_in", hidden, width),
            positions: Some(LearnedPositions { table: positions, offset: POSITION_OFFSET }),
            ..EmbeddingSpec::of(LinearSpec::new(name("embed_tokens"), vocab, width))
        },
        layers: layers.collect::<Result<_, _>>()?,
        ropes: Vec::new(),
        output: OutputSpec {
            norm: has_final_norm
                .then(|| NormSpec::layer(name("final_layer_norm"), hidden, LAYER_NORM_EPS)),
            projection: projection("project_out", width, hidden),
            lm_head,
            soft_cap: None,
        },
    })
}

fn layer(config: &HfConfig, index: usize) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.decoder.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let (num_heads, head_dim) = (config.num_heads()?, config.head_dim()?);
    let width = num_heads * head_dim;
    let bias = config.enable_bias()?;
    let is_pre_norm = config.do_layer_norm_before()?;
    let norms = |part: &str| {
        let norm = Some(NormSpec::layer(name(part), hidden, LAYER_NORM_EPS));
        match is_pre_norm {
            true => BlockNorms { before: norm, ..BlockNorms::default() },
            false => BlockNorms { of_sum: norm, ..BlockNorms::default() },
        }
    };
    let qkv =
        ["q_proj", "k_proj", "v_proj"].map(|part| (name(&format!("self_attn.{part}")), width));
    let linear = |part: &str, n, k| LinearSpec::new(name(part), n, k).with_bias(bias);
    Ok(LayerSpec {
        attention: AttentionSpec {
            norms: norms("self_attn_layer_norm"),
            num_heads,
            num_kv_heads: num_heads,
            head_dim,
            qkv: LinearSpec::stacked(qkv, hidden).with_bias(bias),
            qk_norm: None,
            out: linear("self_attn.out_proj", hidden, width),
            scale: 1.0 / (head_dim as f32).sqrt(),
            soft_cap: None,
            sliding_window: None,
            rope: None,
        },
        mlp: MlpSpec {
            norms: norms("final_layer_norm"),
            form: MlpForm::Plain,
            activation: config.activation()?,
            up: linear("fc1", inner, hidden),
            down: linear("fc2", hidden, inner),
        },
    })
}
