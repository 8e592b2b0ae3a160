//! Llama 4 (text): Llama with rotary pairs and chunks of positions in most layers, queries that
//! grow with the position in the others, and experts that read what the router has weighed.

use serde_json::Value;

use super::experts::{self, EXPERTS_APART, PROJECTIONS, Sizes};
use super::llama::{self, Defaults};
use super::smollm3;
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, DecoderSpec, ExpertSpec, ExpertsSpec, LayerSpec, MlpForm,
    MlpSpec, NormSpec, PositionScale, QkNormOrder, QkNormSpec, SharedExpertSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertWeight, Reach, Routing, Score, TopK, Weighted};

const DEFAULTS: Defaults =
    Defaults { rope_theta: 500_000.0, rms_norm_eps: 1e-5, ..Defaults::LLAMA };

/// The spec of a Llama 4 text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Of training; and how a tool that quantizes has experts.
    root.ignore(&["router_jitter_noise", "for_llm_compressor"]);
    let turns = smollm3::layers_that_turn(config)?;
    let is_chunked = chunked_layers(config, &turns)?;
    let reach = match root.size_or_none("attention_chunk_size", 8192)? {
        Some(len) => Reach::Chunk(len),
        None => Reach::All,
    };
    let growth = growth(config)?;
    let is_normed = root.flag("use_qk_norm")?.unwrap_or(true);
    let (heads, eps) = (config.heads()?, config.rms_norm_eps_or(DEFAULTS.rms_norm_eps)?);
    let norm = || NormSpec::rms("", heads.head_dim, eps).without_weight();
    let norms =
        QkNormSpec { order: QkNormOrder::AfterRotation, ..QkNormSpec::per_head(norm(), norm()) };
    let dense_width = root.size_or("intermediate_size_mlp", 16_384)?;
    let mut spec = llama::around(config, DEFAULTS, |index| {
        let attention = AttentionSpec {
            rope: turns[index].then_some(0),
            reach: if is_chunked[index] { reach } else { Reach::All },
            qk_norm: (is_normed && turns[index]).then(|| norms.clone()),
            position_scale: growth.filter(|_| !turns[index]),
            ..llama::attention(config, DEFAULTS, (index, heads))?
        };
        Ok(LayerSpec::new(attention, mlp(config, (index, dense_width))?))
    })?;
    llama::turn_pairs(&mut spec);
    set_experts(config, &mut spec)?;
    Ok(spec)
}

/// Which layers see their own chunk alone: by `layer_types`, else those that turn.
fn chunked_layers(config: &HfConfig, turns: &[bool]) -> Result<Vec<bool>, EngineError> {
    let Some(types) = config.root().texts("layer_types")? else { return Ok(turns.into()) };
    match types.len() == turns.len() {
        true => config.layers_that_attend(&types, &["chunked_attention"], &["full_attention"]),
        false => Err(config.error("`layer_types` and `num_hidden_layers` disagree")),
    }
}

/// How queries of layers that do not turn grow with the position, if they do.
fn growth(config: &HfConfig) -> Result<Option<PositionScale>, EngineError> {
    let root = config.root();
    let number = |key, default| root.number(key).map(|of| of.unwrap_or(default) as f32);
    let scale = PositionScale {
        beta: number("attn_scale", 0.1)?,
        offset: 1.0,
        original_max_position_embeddings: number("floor_scale", 8192.0)?,
    };
    // Early files have a number in its place.
    let is_on = match root.value("attn_temperature_tuning") {
        None | Some(Value::Bool(true)) => true,
        Some(Value::Bool(false)) => false,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(_) => return Err(config.error("`attn_temperature_tuning` should be true or false")),
    };
    Ok(is_on.then_some(scale))
}

/// The feed-forward block of a layer without experts.
fn mlp(config: &HfConfig, (index, inner): (usize, usize)) -> Result<MlpSpec, EngineError> {
    let name = format!("model.layers.{index}.feed_forward");
    let ExpertSpec { up, down } = experts::shared(&name, config.hidden_size()?, inner);
    Ok(MlpSpec {
        norms: llama::mlp_norms(config, DEFAULTS, index)?,
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(config.activation_or(DEFAULTS.activation)?),
        up,
        down,
    })
}

fn set_experts(config: &HfConfig, spec: &mut DecoderSpec) -> Result<(), EngineError> {
    let root = config.root();
    let num_layers = spec.layers.len();
    let step = root.size_or("interleave_moe_layer_step", 1)?;
    let is_sparse: Vec<bool> = match root.numbers("moe_layers")? {
        Some(list) => (0..num_layers).map(|index| list.contains(&(index as f64))).collect(),
        None if step == 0 => return Err(config.error("experts each 0 layers are not supported")),
        None => (0..num_layers).map(|index| (index + 1).is_multiple_of(step)).collect(),
    };
    let num = root.optional_size("num_experts_per_tok")?.unwrap_or(1);
    let (score, weight) = (Score::Logits, ExpertWeight::Sigmoid);
    let routing = Routing::TopK(TopK { num, score, groups: None, weight, scale: 1.0 });
    let sizes = Sizes::read(config, &["num_local_experts"], "intermediate_size")?;
    let activation = config.activation_or(DEFAULTS.activation)?;
    let are_apart = root.flag(EXPERTS_APART)?.unwrap_or(false);
    let stored = |expert: ExpertSpec| {
        let ExpertSpec { up, down } = expert.as_parameters();
        ExpertSpec { up: up.transposed(), down: down.transposed() }
    };
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = |part: &str| format!("model.layers.{index}.feed_forward.{part}");
            let (gate_up, down) = (name("experts.gate_up_proj"), name("experts.down_proj"));
            let mlp = experts::shared(&name("shared_expert"), sizes.hidden, sizes.inner);
            ExpertsSpec {
                experts: match are_apart {
                    true => sizes.experts(&name("experts"), PROJECTIONS),
                    false => sizes.stacked(&gate_up, &down).into_iter().map(stored).collect(),
                },
                weighted: Weighted::Inputs,
                shared: Some(SharedExpertSpec { mlp, gate: None }),
                ..ExpertsSpec::new(sizes.router(name("router")), routing.clone(), activation)
            }
        },
    );
    Ok(())
}
