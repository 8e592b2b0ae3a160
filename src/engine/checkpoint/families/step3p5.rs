//! Step 3.5: Llama with norms of 1 + w, gates of heads, more heads in layers with a window, rotary
//! embeddings by kind of layers, experts of DeepSeek's kind, and bounds of single layers.

use serde_json::{Value, json};

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{
    ActivationSpec, DecoderSpec, ExpertSpec, ExpertsSpec, GateFunction, GateSpan, LayerSpec,
    LinearSpec, OutputGate, QkNormSpec, QkvHeads, RopeScaling, RopeSpec, SharedExpertSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ExpertWeight, Reach};

const DEFAULTS: Defaults = Defaults { rms_norm_eps: 1e-5, ..Defaults::LLAMA };
const GATE: OutputGate = OutputGate { span: GateSpan::Head, function: GateFunction::Sigmoid };

/// The spec of a Step 3.5 text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume(config)?;
    let root = config.root();
    let num_layers = config.num_layers()?;
    let num_further = root.optional_size("num_nextn_predict_layers")?.unwrap_or(0);
    // Layers that predict further tokens are in its lists too.
    let num_all = num_layers.saturating_add(num_further);
    let slides = slides(config, (num_layers, num_all))?;
    let heads = heads(config, &slides)?;
    let (ropes, max_model_len) = ropes(config, &slides)?;
    let window = root.optional_size("sliding_window")?;
    let limits = [limits(config, "swiglu_limits")?, limits(config, "swiglu_limits_shared")?];
    let scale = root.number("query_pre_attn_scalar")?;
    let mut spec = llama::around_with(config, DEFAULTS, (ropes, max_model_len), |index| {
        let of_layer = heads[usize::from(slides[index])];
        let mut attention = llama::attention(config, DEFAULTS, (index, of_layer))?;
        let eps = config.rms_norm_eps_or(DEFAULTS.rms_norm_eps)?;
        let norms = llama::head_norms(index, ["q_norm", "k_norm"], of_layer.head_dim, eps);
        let k = norms.k.map(|k| k.with_weight_offset(1.0));
        attention.qk_norm = Some(QkNormSpec { q: norms.q.with_weight_offset(1.0), k, ..norms });
        attention.reach = Reach::of_window(window.filter(|_| slides[index]));
        attention.rope = Some(usize::from(slides[index]));
        if let Some(scale) = scale {
            attention.scale = 1.0 / scale.sqrt() as f32;
        }
        attention.gate_by(format!("model.layers.{index}.self_attn.g_proj"), GATE);
        let mut mlp = llama::mlp(config, DEFAULTS, (index, config.intermediate_size()?))?;
        mlp.activation = ActivationSpec::Known(bounded(limits[1][index]));
        Ok(LayerSpec::new(attention, mlp))
    })?;
    spec.residual_norms_mut().for_each(|norm| norm.weight_offset = Some(1.0));
    set_experts(config, &mut spec, &limits)?;
    spec.output.of_further_tokens = experts::further_layers(config, num_further)?;
    Ok(spec)
}

/// Defaults of its class, StepFun's names for what others have too, and words for what every model
/// of it computes.
fn assume(config: &HfConfig) -> Result<(), EngineError> {
    let root = config.root();
    let named = |names: &[&str], default: usize| -> Result<Value, EngineError> {
        Ok(json!(root.number_of(names)?.map_or(default, |number| number as usize)))
    };
    let kv_heads = named(&["num_attention_groups", "num_key_value_heads"], 8)?;
    let chosen = named(&["moe_top_k", "num_experts_per_tok"], 8)?;
    let shared = named(&["share_expert_dims", "share_expert_dim"], 1280)?;
    config.assume(&[
        ("head_dim", json!(128)),
        ("moe_intermediate_size", json!(1280)),
        ("num_experts_per_tok", chosen),
        ("num_key_value_heads", kv_heads),
        ("share_expert_dim", shared),
    ]);
    for (key, expected) in [
        ("att_impl_type", json!("GQA")),
        ("hidden_act", json!("silu")),
        ("moe_every_n_layer", json!(1)),
        ("moe_layer_offset", json!(0)),
        ("moe_router_activation", json!("sigmoid")),
        ("need_fp32_gate", json!(true)),
        ("norm_expert_weight", json!(true)),
        ("use_bidirectional_attention", json!(false)),
        ("use_head_wise_attn_gate", json!(true)),
        ("use_moe", json!(true)),
        ("use_moe_router_bias", json!(true)),
        ("use_qk_norm", json!(true)),
        ("use_rope_layers", json!([])),
        ("yarn_only_types", json!(["full_attention"])),
        ("zero_centered", json!(true)),
        ("gating", json!(true)),
        ("sink", json!(false)),
    ] {
        root.expect(key, expected)?;
    }
    // Of layers that predict further tokens; the same length in other words.
    root.ignore(&["max_seq_len", "mtp_layer_types", "mtp_mlp_layer_types"]);
    Ok(())
}

/// Which layers have a window.
fn slides(
    config: &HfConfig,
    (num_layers, num_all): (usize, usize),
) -> Result<Vec<bool>, EngineError> {
    let Some(types) = config.root().texts("layer_types")? else {
        return Ok(vec![false; num_layers]);
    };
    if ![num_layers, num_all].contains(&types.len()) {
        return Err(config.error("`layer_types` and `num_hidden_layers` disagree"));
    }
    let types = &types[..num_layers];
    config.layers_that_attend(types, &["sliding_attention"], &["full_attention"])
}

/// Heads of full layers, and of those with a window.
fn heads(config: &HfConfig, slides: &[bool]) -> Result<[QkvHeads; 2], EngineError> {
    let (root, full) = (config.root(), config.heads()?);
    let other = root.section("attention_other_setting")?;
    let mut num_heads = root.optional_size("num_sliding_attention_heads")?;
    if let Some(other) = other {
        other.expect("attention_type", "sliding_attention")?;
        other.expect("num_attention_groups", full.num_kv_heads)?;
        other.expect("head_dim", full.head_dim)?;
        other.expect("true_head_dim", full.head_dim)?;
        num_heads = num_heads.or(other.optional_size("num_attention_heads")?);
    }
    let sliding = QkvHeads { num_heads: num_heads.unwrap_or(full.num_heads), ..full };
    // As transformers 5 writes it, beside the number.
    if let Some(layers) = root.section("per_layer_config")? {
        for name in layers.names() {
            let index: Option<usize> = name.parse().ok();
            let slides = index.is_some_and(|index| slides.get(index) == Some(&true));
            let Some(layer) = layers.section(name)?.filter(|_| slides) else {
                let text = format!("`per_layer_config` has `{name}`, no layer with a window");
                return Err(config.error(text));
            };
            layer.expect("num_attention_heads", sliding.num_heads)?;
        }
    }
    config.check_kv_heads(full.num_heads, full.num_kv_heads)?;
    config.check_kv_heads(sliding.num_heads, full.num_kv_heads)?;
    Ok([config.checked(full)?, config.checked(sliding)?])
}

/// Rotary embeddings of full layers, and of those with a window, and the longest context. StepFun's
/// lists have a base and a part of each layer, the same in layers of one kind.
fn ropes(config: &HfConfig, slides: &[bool]) -> Result<(Vec<RopeSpec>, usize), EngineError> {
    let root = config.root();
    let context = config.max_position_embeddings()?;
    let parts = root.numbers("partial_rotary_factors")?;
    let Some(Value::Array(_)) = root.value("rope_theta") else {
        if parts.is_some() {
            return Err(config.error("`partial_rotary_factors` without a list of bases"));
        }
        let rope = |kind| config.rope_with(kind, RopeDefaults::new(10_000.0, 1.0));
        let ropes = vec![rope(LayerType::Full)?, rope(LayerType::Sliding)?];
        let max_model_len = ropes[0].scaling.context_len(context);
        return Ok((ropes, max_model_len));
    };
    let thetas = root.numbers("rope_theta")?.unwrap_or_default();
    let of_kind = |numbers: &[f64], key: &str, slide: bool, default: f64| {
        if numbers.len() < slides.len() {
            return Err(config.error(format!("`{key}` has fewer numbers than there are layers")));
        }
        let mut own = numbers.iter().zip(slides).filter(|(_, of)| **of == slide).map(|(n, _)| *n);
        let first = own.next().unwrap_or(default);
        match own.all(|number| number == first) {
            true => Ok(first),
            false => Err(config.error(format!("`{key}` differs in layers of one kind"))),
        }
    };
    let head_dim = config.head_dim()?;
    let rope = |slide: bool| -> Result<RopeSpec, EngineError> {
        let theta = of_kind(&thetas, "rope_theta", slide, 10_000.0)?;
        let part = match &parts {
            Some(parts) => of_kind(parts, "partial_rotary_factors", slide, 1.0)?,
            None => 1.0,
        };
        let rotary_dim = (head_dim as f64 * part) as usize;
        let rope = RopeSpec { theta, rotary_dim, scaling: RopeScaling::None, axes: Vec::new() };
        match root.section("rope_scaling")?.filter(|_| !slide) {
            Some(section) => config.scaled(&section, rope, RopeDefaults::new(theta, part)),
            None => Ok(rope),
        }
    };
    // max_position_embeddings is the stretched length already.
    Ok((vec![rope(false)?, rope(true)?], context))
}

/// A bound of each layer; 0 and null are none.
fn limits(config: &HfConfig, key: &str) -> Result<Vec<f32>, EngineError> {
    let num_layers = config.num_layers()?;
    let Some(list) = config.root().list(key)? else { return Ok(vec![0.0; num_layers]) };
    let limit = |value: &Value| match value {
        Value::Null => Some(0.0),
        value => value.as_f64().filter(|limit| limit.is_finite() && *limit >= 0.0),
    };
    let limits = list.iter().map(|value| limit(value).map(|limit| limit as f32));
    let limits = limits.collect::<Option<Vec<_>>>().filter(|limits| limits.len() >= num_layers);
    limits.ok_or_else(|| config.error(format!("`{key}` has not one bound per layer")))
}

fn bounded(limit: f32) -> Activation {
    match limit > 0.0 {
        true => Activation::BoundedSilu(limit),
        false => Activation::Silu,
    }
}

/// Layers with experts: by `mlp_layer_types`, or those that `moe_layers_enum` names, or from the
/// fourth on.
fn sparse_layers(config: &HfConfig, num_layers: usize) -> Result<Vec<bool>, EngineError> {
    let root = config.root();
    let named = match root.value("moe_layers_enum") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => {
            let numbers = text.split(',').map(|part| part.trim().parse::<usize>().ok());
            Some(numbers.collect::<Option<Vec<_>>>())
        }
        Some(Value::Array(list)) => {
            Some(list.iter().map(|number| number.as_u64().map(|n| n as usize)).collect())
        }
        Some(_) => Some(None),
    };
    let named = match named {
        Some(None) => return Err(config.error("`moe_layers_enum` should be numbers of layers")),
        Some(Some(list)) => Some(list),
        None => None,
    };
    if let Some(types) = root.texts("mlp_layer_types")? {
        let types = &types[..num_layers.min(types.len())];
        let sparse = config.layers_that_attend(types, &["sparse"], &["dense"])?;
        let agrees = |list: &Vec<usize>| (0..num_layers).all(|i| list.contains(&i) == sparse[i]);
        return match sparse.len() == num_layers && named.as_ref().is_none_or(agrees) {
            true => Ok(sparse),
            false => Err(config.error("`mlp_layer_types` and other keys disagree")),
        };
    }
    let is_sparse = |index: usize| named.as_ref().map_or(index >= 3, |list| list.contains(&index));
    Ok((0..num_layers).map(is_sparse).collect())
}

fn set_experts(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    limits: &[Vec<f32>; 2],
) -> Result<(), EngineError> {
    let root = config.root();
    let num = &["n_routed_experts", "moe_num_experts", "num_local_experts"];
    let sizes = Sizes::read(config, num, "moe_intermediate_size")?;
    let scale = root.number("moe_router_scaling_factor")?.unwrap_or(1.0) as f32;
    let chosen = experts::num_of_token(config)?;
    let routing = experts::by_sigmoid_of_all(chosen, ExpertWeight::SHARE, scale);
    let (shared, bias) = (root.size("share_expert_dim")?, config.mlp_bias()?);
    let is_sparse = sparse_layers(config, spec.layers.len())?;
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = |part: &str| format!("model.layers.{index}.{part}");
            let [gate, up, down] = PROJECTIONS.map(|part| name(&format!("moe.{part}")));
            let expert = |expert| ExpertSpec {
                up: LinearSpec::stacked(
                    [(gate.clone(), sizes.inner), (up.clone(), sizes.inner)],
                    sizes.hidden,
                )
                .sliced(expert, sizes.num),
                down: LinearSpec::new(down.clone(), sizes.hidden, sizes.inner)
                    .sliced(expert, sizes.num),
            };
            let mlp = experts::shared(&name("share_expert"), sizes.hidden, shared).with_bias(bias);
            ExpertsSpec {
                choice_bias: Some((name("moe.router_bias"), vec![sizes.num])),
                experts: (0..sizes.num).map(expert).collect(),
                shared: Some(SharedExpertSpec { mlp, gate: None }),
                shared_activation: Some(bounded(limits[1][index])),
                ..ExpertsSpec::new(
                    sizes.router(name("moe.gate")),
                    routing.clone(),
                    bounded(limits[0][index]),
                )
            }
        },
    );
    Ok(())
}
