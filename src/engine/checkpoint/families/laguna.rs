//! Laguna: Llama with norms of every q and k head, gates of what heads give by softplus, and heads,
//! windows, rotary embeddings and experts by layer.

use serde_json::{Value, json};

use super::experts::{self, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults};
use crate::spec::{
    DecoderSpec, ExpertsSpec, GateFunction, GateSpan, LayerSpec, OutputGate, QkvHeads,
    SharedExpertSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertWeight, Reach};

/// Rotary embeddings where the file does not say.
fn default_ropes() -> Value {
    json!({
        "full_attention":
            {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        "sliding_attention":
            {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    })
}

/// The spec of a Laguna config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("head_dim", json!(128)), ("rope_parameters", default_ropes())]);
    let (root, defaults, eps) = (config.root(), Defaults::LLAMA, config.rms_norm_eps()?);
    // Of one kind of layers alone.
    root.expect("partial_rotary_factor", Value::Null)?;
    let heads = heads(config)?;
    let gate = gate(config)?;
    let rope = |kind| config.rope_with(kind, RopeDefaults::new(defaults.rope_theta, 1.0));
    let ropes = vec![rope(LayerType::Full)?, rope(LayerType::Sliding)?];
    let max_model_len = ropes[0].scaling.context_len(config.max_position_embeddings()?);
    let window = root.size_or("sliding_window", 512)?;
    let slides = config.sliding_layers_or(|_| false)?;
    let mut spec = llama::around_with(config, defaults, (ropes, max_model_len), |index| {
        let mut attention = llama::attention(config, defaults, (index, heads[index]))?;
        let head_dim = attention.heads.head_dim;
        attention.qk_norm = Some(llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps));
        attention.reach = Reach::of_window(slides[index].then_some(window));
        attention.rope = Some(usize::from(slides[index]));
        attention.gate_by(format!("model.layers.{index}.self_attn.g_proj"), gate);
        let inner = config.intermediate_size()?;
        Ok(LayerSpec::new(attention, llama::mlp(config, defaults, (index, inner))?))
    })?;
    set_experts(config, &mut spec)?;
    Ok(spec)
}

/// The heads of each layer.
fn heads(config: &HfConfig) -> Result<Vec<QkvHeads>, EngineError> {
    let (heads, num_layers) = (config.heads()?, config.num_layers()?);
    let Some(list) = config.root().numbers("num_attention_heads_per_layer")? else {
        return Ok(vec![heads; num_layers]);
    };
    if list.len() != num_layers {
        let text = "`num_attention_heads_per_layer` and `num_hidden_layers` disagree";
        return Err(config.error(text));
    }
    let of_layer = |number: &f64| {
        let num_heads = *number as usize;
        if num_heads == 0 || num_heads as f64 != *number {
            return Err(config.error(format!("{number} attention heads are not supported")));
        }
        config.check_kv_heads(num_heads, heads.num_kv_heads)?;
        config.checked(QkvHeads { num_heads, ..heads })
    };
    list.iter().map(of_layer).collect()
}

/// One of each head, or one of each value.
fn gate(config: &HfConfig) -> Result<OutputGate, EngineError> {
    let span = match config.root().value("gating") {
        None | Some(Value::Bool(true)) => GateSpan::Head,
        Some(Value::String(kind)) if kind == "per-head" => GateSpan::Head,
        Some(Value::String(kind)) if kind == "per-element" => GateSpan::Value,
        Some(_) => {
            let text = "`gating` should be true, \"per-head\" or \"per-element\"";
            return Err(config.error(text));
        }
    };
    Ok(OutputGate { span, function: GateFunction::Softplus })
}

fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    root.expect("moe_apply_router_weight_on_input", false)?;
    // A cap of the router's numbers.
    root.expect("moe_router_logit_softcapping", 0.0)?;
    let scale = root.number("moe_routed_scaling_factor")?.unwrap_or(1.0) as f32;
    let num = experts::num_of_token(config)?;
    let routing = experts::by_sigmoid_of_all(num, ExpertWeight::SHARE, scale);
    let sizes = Sizes::read(config, &["num_experts"], "moe_intermediate_size")?;
    let inner = root.size("shared_expert_intermediate_size")?;
    let activation = config.activation()?;
    let is_sparse = experts::sparse_behind(config, 1)?;
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.mlp");
            let bias = format!("{name}.experts.e_score_correction_bias");
            let mlp = experts::shared(&format!("{name}.shared_expert"), sizes.hidden, inner);
            ExpertsSpec {
                choice_bias: Some((bias, vec![sizes.num])),
                shared: Some(SharedExpertSpec { mlp, gate: None }),
                ..sizes.block(&name, PROJECTIONS, (&routing, activation))
            }
        },
    );
    Ok(())
}
