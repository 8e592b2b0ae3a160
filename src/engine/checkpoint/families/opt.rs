//! OPT: learned positions, LayerNorm, plain MLP. OPT-350m normalizes after its blocks and projects
//! its embeddings.

use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingSpec, LayerSpec,
    LearnedPositions, LinearSpec, MlpForm, MlpSpec, NormSpec, OutputSpec, Stage,
};
use vllm_batch_base::EngineError;

/// Rows before position 0: a leftover of fairseq's padding ids.
const POSITION_OFFSET: usize = 2;

/// PyTorch's LayerNorm default; OPT has no key for it.
const LAYER_NORM_EPS: f32 = 1e-5;

/// The spec of an OPT config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let (hidden, vocab) = (config.hidden_size()?, config.vocab_size()?);
    let name = |part: &str| format!("model.decoder.{part}");
    let max_model_len = config.max_position_embeddings()?;
    let num_positions = max_model_len + POSITION_OFFSET;
    let table = LinearSpec::new(name("embed_positions"), num_positions, hidden);
    let width = root.optional_size("word_embed_proj_dim")?.unwrap_or(hidden);
    let projection = |part, n, k| (width != hidden).then(|| LinearSpec::new(name(part), n, k));
    let is_pre_norm = root.flag("do_layer_norm_before")?.unwrap_or(true);
    let is_removed = root.flag("_remove_final_layer_norm")?.unwrap_or(false);
    let norm = NormSpec::layer(name("final_layer_norm"), hidden, LAYER_NORM_EPS);
    let lm_head = config.lm_head("lm_head", true)?.map(|head| LinearSpec { k: width, ..head });
    let output = OutputSpec::new(norm, lm_head);
    let layers = (0..config.num_layers()?).map(|index| layer(config, index, is_pre_norm));
    Ok(DecoderSpec {
        max_model_len,
        embedding: EmbeddingSpec {
            projection: projection("project_in", hidden, width),
            positions: Some(LearnedPositions { table, offset: POSITION_OFFSET }),
            ..EmbeddingSpec::of(LinearSpec::new(name("embed_tokens"), vocab, width))
        },
        layers: layers.collect::<Result<_, _>>()?,
        ropes: Vec::new(),
        output: OutputSpec {
            norm: output.norm.filter(|_| is_pre_norm && !is_removed),
            projection: projection("project_out", width, hidden),
            ..output
        },
        stage: Stage::WHOLE,
    })
}

fn layer(config: &HfConfig, index: usize, is_pre_norm: bool) -> Result<LayerSpec, EngineError> {
    let name = |part: &str| format!("model.decoder.layers.{index}.{part}");
    let (hidden, inner) = (config.hidden_size()?, config.intermediate_size()?);
    let heads = config.equal_heads()?;
    config.root().expect("layer_norm_elementwise_affine", true)?;
    let bias = config.root().flag("enable_bias")?.unwrap_or(true);
    let norms = |part: &str| {
        let norm = NormSpec::layer(name(part), hidden, LAYER_NORM_EPS);
        match is_pre_norm {
            true => BlockNorms::before(norm),
            false => BlockNorms { of_sum: Some(norm), ..BlockNorms::default() },
        }
    };
    let qkv = ["q_proj", "k_proj", "v_proj"].map(|part| format!("self_attn.{part}"));
    let qkv = LinearSpec::stacked(qkv.map(|part| (name(&part), heads.q_width())), hidden);
    let linear = |part: &str, n, k| LinearSpec::new(name(part), n, k).with_bias(bias);
    let out = linear("self_attn.out_proj", hidden, heads.q_width());
    let norms_of_attention = norms("self_attn_layer_norm");
    let attention = AttentionSpec::new(norms_of_attention, heads, qkv.with_bias(bias), out);
    let mlp = MlpSpec {
        norms: norms("final_layer_norm"),
        form: MlpForm::Plain,
        activation: ActivationSpec::Known(config.activation()?),
        up: linear("fc1", inner, hidden),
        down: linear("fc2", hidden, inner),
    };
    Ok(LayerSpec::new(attention, mlp))
}
