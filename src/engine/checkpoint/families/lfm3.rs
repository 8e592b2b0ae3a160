//! LFM3: LFM2 with windows, rotary embeddings by the type of a layer, norms of what blocks add, and
//! gates of heads.

use serde_json::{Value, json};

use super::lfm2;
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, LayerSpec, NormSpec, OutputGate, RecurrentSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

/// What stands at a layer's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Conv,
    Attention(LayerType),
}

/// Rotary embeddings where the file does not say.
fn default_ropes() -> Value {
    json!({
        "full_attention":
            {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    })
}

/// LFM2's names around Llama's attention and MLP.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[
        ("conv_L_cache", json!(7)),
        ("head_dim", json!(128)),
        ("rope_parameters", default_ropes()),
    ]);
    let (root, hidden) = (config.root(), config.hidden_size()?);
    let eps = root.number_of(&["norm_eps", "rms_norm_eps"])?.map_or(1e-5, |eps| eps as f32);
    let defaults = Defaults { rms_norm_eps: eps, is_tied: true, ..Defaults::LLAMA };
    // Of one kind of layers alone.
    root.expect("partial_rotary_factor", Value::Null)?;
    // The class has this one, whatever the file says.
    root.expect("hidden_act", "silu")?;
    let inner = config.intermediate_size()?;
    let operators = operators(config)?;
    let rope = |kind| config.rope_with(kind, RopeDefaults::new(1e4, 1.0));
    let ropes = vec![rope(LayerType::Full)?, rope(LayerType::Sliding)?];
    let max_model_len = config.max_position_embeddings()?;
    let window = root.size_or_none("sliding_window", 256)?;
    let is_gated = root.flag("use_attention_gate")?.unwrap_or(true);
    let adds_normed = root.flag("use_sandwich_norm")?.unwrap_or(true);
    let heads = config.heads()?;
    let mut spec = llama::around_with(config, defaults, (ropes, max_model_len), |index| {
        let norm_after = |part: &str| {
            let name = format!("model.layers.{index}.{part}");
            adds_normed.then(|| NormSpec::rms(name, hidden, eps))
        };
        let mlp = llama::mlp(config, defaults, (index, inner))?;
        let mut mlp = lfm2::mlp(mlp, (index, hidden, eps));
        mlp.norms.after = norm_after("post_ffn_norm");
        let kind = match operators[index] {
            Operator::Attention(kind) => kind,
            Operator::Conv => {
                let mut conv = lfm2::short_conv(config, (index, hidden, eps))?;
                conv.norms.after = norm_after("post_operator_norm");
                let recurrent = Some(RecurrentSpec::ShortConv(Box::new(conv)));
                let feed_forward = Some(mlp.into());
                return Ok(LayerSpec { recurrent, feed_forward, ..LayerSpec::default() });
            }
        };
        let block = llama::attention(config, defaults, (index, heads))?;
        let mut attention = attention(block, (index, eps), is_gated);
        let is_sliding = kind == LayerType::Sliding;
        attention.norms.after = norm_after("post_operator_norm");
        attention.rope = Some(usize::from(is_sliding));
        attention.reach = Reach::of_window(window.filter(|_| is_sliding));
        Ok(LayerSpec::new(attention, mlp))
    })?;
    spec.output.norm = Some(NormSpec::rms("model.embedding_norm", hidden, eps));
    Ok(spec)
}

/// Norms of heads, and perhaps a gate of each.
fn attention(
    mut block: AttentionSpec,
    (index, eps): (usize, f32),
    is_gated: bool,
) -> AttentionSpec {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, heads) = (block.out.n(), block.heads);
    block.norms = BlockNorms::before(NormSpec::rms(name("operator_norm"), hidden, eps));
    block.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], heads.head_dim, eps));
    if is_gated {
        block.gate_by(name("self_attn.gate_proj"), OutputGate::OF_HEADS);
    }
    block
}

/// By `layer_types`, else of every four layers the third is full and the first slides.
fn operators(config: &HfConfig) -> Result<Vec<Operator>, EngineError> {
    let (root, num_layers) = (config.root(), config.num_layers()?);
    let by_turns = |index: usize| match index % 4 {
        2 => Operator::Attention(LayerType::Full),
        0 if index > 0 => Operator::Attention(LayerType::Sliding),
        _ => Operator::Conv,
    };
    let named = |name: &str| match name {
        "conv" => Ok(Operator::Conv),
        "full_attention" => Ok(Operator::Attention(LayerType::Full)),
        "sliding_attention" => Ok(Operator::Attention(LayerType::Sliding)),
        _ => Err(config.error("a layer type that is none of conv and kinds of attention")),
    };
    let operators = match root.texts("layer_types")? {
        None => (0..num_layers).map(by_turns).collect(),
        Some(names) => names.into_iter().map(named).collect::<Result<Vec<_>, _>>()?,
    };
    if operators.len() != num_layers {
        return Err(config.error("`layer_types` has not one type per layer"));
    }
    // Keys of what no layer has.
    if !operators.contains(&Operator::Conv) {
        root.ignore(&["conv_L_cache", "conv_bias"]);
    }
    if operators.iter().all(|operator| *operator == Operator::Conv) {
        root.ignore(&["attention_bias"]);
    }
    Ok(operators)
}
