//! MiMo V2: Llama whose V heads are narrower than its K heads and scaled, with twice the K and V
//! heads, a sink and a window in most layers, and DeepSeek's experts.

use serde_json::{Value, json};

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults, Section};
use crate::limits;
use crate::spec::{
    AttentionSpec, BlockNorms, DecoderSpec, LayerSpec, LinearSpec, NormSpec, QkvHeads, RopeSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Reach;

const DEFAULTS: Defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };

/// The spec of a MiMo V2 config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume(config)?;
    let root = config.root();
    let slides = layers_by(config, "hybrid_layer_pattern")?;
    let slides = config.sliding_layers_or(|index| match &slides {
        Some(slides) => slides[index],
        None => index != 0 && !(index + 1).is_multiple_of(6),
    })?;
    let ropes = ropes(config)?;
    let max_model_len = ropes[0].scaling.context_len(config.max_position_embeddings()?);
    // Tokens before one that it attends to, where the file says so; else with itself.
    let before = root.optional_size("sliding_window_size")?;
    let window = match before {
        Some(before) => before + 1,
        None => root.size_or("sliding_window", 129)?,
    };
    // The same in other words.
    root.ignore(&["attention_chunk_size", "sliding_window"]);
    let scale = root.number("attention_value_scale")?;
    let mut spec = llama::around_with(config, DEFAULTS, (ropes, max_model_len), |index| {
        let mut attention = attention(config, (index, slides[index]))?;
        attention.reach = Reach::of_window(slides[index].then_some(window));
        attention.rope = Some(usize::from(slides[index]));
        let mlp = llama::mlp(config, DEFAULTS, (index, config.intermediate_size()?))?;
        let mut layer = LayerSpec::new(attention, mlp);
        // Of V; nothing is added behind `out`.
        layer.scales.attention = scale.map(|scale| scale as f32);
        Ok(layer)
    })?;
    set_experts(config, &mut spec)?;
    spec.output.of_further_tokens.push("model.mtp.".to_owned());
    Ok(spec)
}

/// Defaults of its class, and words of Xiaomi's own code for what every model of it computes.
fn assume(config: &HfConfig) -> Result<(), EngineError> {
    let root = config.root();
    let eps = root.number("layernorm_epsilon")?;
    let defaults = [
        ("attention_value_scale", json!(0.707)),
        ("head_dim", json!(192)),
        ("v_head_dim", json!(128)),
    ];
    let eps = eps.map(|eps| ("rms_norm_eps", json!(eps)));
    config.assume(&defaults.into_iter().chain(eps).collect::<Vec<_>>());
    root.expect("topk_method", "noaux_tc")?;
    root.expect("scoring_func", "sigmoid")?;
    root.expect("n_shared_experts", Value::Null)?;
    root.expect("add_swa_attention_sink_bias", true)?;
    root.expect("add_full_attention_sink_bias", false)?;
    root.expect("attention_projection_layout", "split")?;
    root.expect("swa_head_dim", root.size("head_dim")?)?;
    root.expect("swa_v_head_dim", root.size("v_head_dim")?)?;
    root.expect("swa_num_attention_heads", config.num_heads()?)?;
    root.expect("swa_num_key_value_heads", 2 * config.num_kv_heads()?)
}

/// A list of a number for each layer: which of them are not 0.
fn layers_by(config: &HfConfig, key: &str) -> Result<Option<Vec<bool>>, EngineError> {
    let Some(list) = config.root().numbers(key)? else { return Ok(None) };
    match list.len() == config.num_layers()? {
        true => Ok(Some(list.iter().map(|number| *number != 0.0).collect())),
        false => Err(config.error(format!("`{key}` and `num_hidden_layers` disagree"))),
    }
}

/// Of full layers and of those with windows, which have a base of their own.
fn ropes(config: &HfConfig) -> Result<Vec<RopeSpec>, EngineError> {
    let root = config.root();
    let full = config.rope_with(LayerType::Full, RopeDefaults::new(5_000_000.0, 0.334))?;
    let is_nested = |section: &Section<'_>| section.value("sliding_attention").is_some();
    let theta = root.number("swa_rope_theta")?;
    let sliding = match root.section("rope_parameters")?.filter(is_nested) {
        Some(_) => config.rope_with(LayerType::Sliding, RopeDefaults::new(10_000.0, 0.334))?,
        None => RopeSpec { theta: theta.unwrap_or(10_000.0), ..full.clone() },
    };
    Ok(vec![full, sliding])
}

fn attention(
    config: &HfConfig,
    (index, slides): (usize, bool),
) -> Result<AttentionSpec, EngineError> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let (hidden, eps) = (config.hidden_size()?, config.rms_norm_eps_or(1e-5)?);
    let mut heads = config.heads()?;
    if slides {
        heads.num_kv_heads *= 2;
        config.check_kv_heads(heads.num_heads, heads.num_kv_heads)?;
    }
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let v_dim = config.root().size("v_head_dim")?;
    limits::check_heads(QkvHeads { head_dim: v_dim, ..heads })
        .map_err(|text| config.error(text))?;
    if v_dim > head_dim {
        return Err(config.error("V heads that are wider than K heads are not supported"));
    }
    let qkv = [
        (name("self_attn.q_proj"), heads.q_width()),
        (name("self_attn.k_proj"), heads.kv_width()),
        (name("self_attn.v_proj"), num_kv_heads * v_dim),
    ];
    let qkv = LinearSpec::stacked(qkv, hidden).with_bias(config.attention_bias()?);
    let out = LinearSpec::new(name("self_attn.o_proj"), hidden, num_heads * v_dim);
    let norms = BlockNorms::before(NormSpec::rms(name("input_layernorm"), hidden, eps));
    Ok(AttentionSpec {
        narrow_v: (v_dim < head_dim).then_some(v_dim),
        sinks: slides.then(|| name("self_attn.attention_sink_bias")),
        ..AttentionSpec::new(norms, heads, qkv, out)
    })
}

fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let sizes =
        Sizes::read(config, &["n_routed_experts", "num_local_experts"], "moe_intermediate_size")?;
    let routing = experts::by_sigmoid(config, true)?;
    let by_list = layers_by(config, "moe_layer_freq")?;
    let is_sparse = experts::sparse_layers(config, |index| match &by_list {
        Some(is_sparse) => is_sparse[index],
        None => index > 0,
    })?;
    let activation = config.activation()?;
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            sizes.block_of_deepseek(&name, (&routing, activation), 0)
        },
    );
    Ok(())
}
