//! MiniMax M3: Llama with `1 + weight` in its norms and gpt-oss's activation, whose tokens attend
//! to the best blocks of those up to them in most layers, and experts chosen by sigmoids.

use serde_json::json;

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use super::mixtral;
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, ChoiceSpec, ChoiceUnit, DecoderSpec, ExpertSpec, ExpertsSpec,
    IndexerSpec, LayerSpec, LinearSpec, MlpForm, MlpSpec, NormSpec, QkvHeads, SharedExpertSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ExpertWeight};

const DEFAULTS: Defaults = Defaults { rope_theta: 5e6, ..Defaults::LLAMA };

/// The spec of a MiniMax M3 text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.assume(&[("head_dim", json!(128)), ("num_key_value_heads", json!(4))]);
    check_other_keys(config)?;
    let activation = activation(config)?;
    let choices = Choices::read(config)?;
    let eps = config.rms_norm_eps_or(DEFAULTS.rms_norm_eps)?;
    let dense_width = config.root().size_or("dense_intermediate_size", 12_288)?;
    let mut spec = llama::around(config, DEFAULTS, |index| {
        let mut attention = llama::attention(config, DEFAULTS, (index, config.heads()?))?;
        let head_dim = attention.heads.head_dim;
        let mut norms = llama::head_norms(index, ["q_norm", "k_norm"], head_dim, eps);
        [&mut norms.q].into_iter().chain(&mut norms.k).for_each(add_one);
        attention.qk_norm = Some(norms);
        choices.set(&mut attention, index);
        Ok(LayerSpec::new(attention, mlp(config, (index, dense_width), activation)?))
    })?;
    let turning = spec.ropes[0].rotary_dim;
    if spec.indexers().any(|indexer| indexer.heads.head_dim < turning) {
        let text = format!("{turning} turning values of an index_head_dim of fewer");
        return Err(config.error(format!("{text} are not supported")));
    }
    set_experts(config, &mut spec, activation)?;
    spec.residual_norms_mut().for_each(add_one);
    spec.output.of_further_tokens.extend(["mtp.", "model.mtp."].map(str::to_owned));
    Ok(spec)
}

/// The MLP of a layer without experts.
fn mlp(
    config: &HfConfig,
    (index, inner): (usize, usize),
    activation: Activation,
) -> Result<MlpSpec, EngineError> {
    let name = format!("model.layers.{index}.mlp");
    let ExpertSpec { up, down } = experts::shared(&name, config.hidden_size()?, inner);
    let norms = llama::mlp_norms(config, DEFAULTS, index)?;
    let activation = ActivationSpec::Known(activation);
    Ok(MlpSpec { norms, form: MlpForm::Gated, activation, up, down })
}

fn add_one(norm: &mut NormSpec) {
    norm.weight_offset = Some(1.0);
}

/// gpt-oss's, whatever `hidden_act` is.
fn activation(config: &HfConfig) -> Result<Activation, EngineError> {
    let root = config.root();
    match root.text("hidden_act")? {
        None | Some("silu" | "swigluoai") => {}
        Some(other) => {
            return Err(config.error(format!("a `hidden_act` of `{other}` is not supported")));
        }
    }
    let number = |key, default| root.number(key).map(|number| number.unwrap_or(default) as f32);
    let (alpha, limit) = (number("swiglu_alpha", 1.702)?, number("swiglu_limit", 7.0)?);
    Ok(Activation::ClampedSwiGlu { alpha, limit })
}

/// Keys that say what every model of the class computes, or nothing.
fn check_other_keys(config: &HfConfig) -> Result<(), EngineError> {
    let root = config.root();
    root.expect("scoring_func", "sigmoid")?;
    root.expect("use_qk_norm", true)?;
    root.expect("qk_norm_type", "per_head")?;
    root.expect("use_gemma_norm", true)?;
    root.expect("use_routing_bias", true)?;
    root.expect("attention_output_gate", false)?;
    // As wide as `shared_intermediate_size`.
    root.expect("n_shared_experts", 1)?;
    // The class turns the part of `rope_parameters`. The others are noise of training, and of
    // layers of further tokens.
    root.ignore(&[
        "rotary_dim",
        "router_jitter_noise",
        "num_mtp_modules",
        "num_nextn_predict_layers",
        "mtp_transformer_layers",
        "use_mtp",
    ]);
    Ok(())
}

/// A list of numbers under a key: which layers' are not 0.
fn layers_by(
    config: &HfConfig,
    section: &Section<'_>,
    key: &str,
) -> Result<Option<Vec<bool>>, EngineError> {
    let Some(list) = section.numbers(key)? else { return Ok(None) };
    match list.len() == config.num_layers()? {
        true => Ok(Some(list.iter().map(|number| *number != 0.0).collect())),
        false => Err(section.error(format!("`{key}` has not one number per layer"))),
    }
}

/// What all layers that choose have in common, and which they are.
struct Choices {
    heads: QkvHeads,
    num_chosen: usize,
    block: usize,
    hidden: usize,
    eps: f32,
    layers: Vec<bool>,
}

impl Choices {
    fn read(config: &HfConfig) -> Result<Self, EngineError> {
        let root = config.root();
        let section = root.section("sparse_attention_config")?;
        let mut of_layers = None;
        if let Some(section) = &section {
            section.expect("use_sparse_attention", true)?;
            section.expect("sparse_score_type", "max")?;
            section.expect("sparse_init_block", 0)?;
            of_layers = layers_by(config, section, "sparse_attention_freq")?;
            let without_values = layers_by(config, section, "sparse_disable_index_value")?;
            if without_values.is_some_and(|list| of_layers.as_ref() != Some(&list)) {
                let text = "indexers that give values are not supported";
                return Err(section.error(format!("`sparse_disable_index_value`: {text}")));
            }
        }
        let types = (["minimax_m3_sparse"], ["full_attention"]);
        let by_type = config.layers_by_type("layer_types", &types.0, &types.1)?;
        // The names that published files have count.
        let size = |key, published, default| -> Result<usize, EngineError> {
            let flat = root.size_or(key, default)?;
            section.as_ref().map_or(Ok(flat), |section| section.size_or(published, flat))
        };
        let num_heads = size("index_n_heads", "sparse_num_index_heads", 4)?;
        let head_dim = size("index_head_dim", "sparse_index_dim", 128)?;
        let block = size("index_block_size", "sparse_block_size", 128)?;
        let num_blocks = size("index_topk_blocks", "sparse_topk_blocks", 16)?;
        if size("index_local_blocks", "sparse_local_block", 1)? != 1 {
            let text = "tokens that attend to more than one block before them in any case";
            return Err(config.error(format!("{text} are not supported")));
        }
        let heads = QkvHeads { num_heads, num_kv_heads: 1, head_dim };
        limits::check_heads(heads).map_err(|text| config.error(text))?;
        let num_layers = config.num_layers()?;
        Ok(Self {
            heads,
            num_chosen: num_blocks.saturating_mul(block),
            block,
            hidden: config.hidden_size()?,
            eps: config.rms_norm_eps_or(DEFAULTS.rms_norm_eps)?,
            layers: by_type.or(of_layers).unwrap_or_else(|| vec![false; num_layers]),
        })
    }

    /// The layer's tokens attend to what its indexer chooses, if it has one.
    fn set(&self, attention: &mut AttentionSpec, index: usize) {
        let Self { heads, num_chosen, block, hidden, eps, .. } = *self;
        if !self.layers[index] {
            return;
        }
        let module = format!("model.layers.{index}.self_attn.index_");
        let name = |part: &str| format!("{module}{part}");
        let inputs = [(name("q_proj"), heads.q_width()), (name("k_proj"), heads.head_dim)];
        let norm = |part| NormSpec {
            weight_offset: Some(1.0),
            ..NormSpec::rms(name(part), heads.head_dim, eps)
        };
        let indexer = IndexerSpec {
            q: None,
            inputs: LinearSpec::stacked(inputs, hidden),
            q_norm: Some(norm("q_norm")),
            k_norm: norm("k_norm"),
            heads,
            module: module.clone(),
        };
        let unit = ChoiceUnit::Block(block);
        attention.choice = Some(ChoiceSpec { num_chosen, unit, indexer: Some(indexer) });
    }
}

fn set_experts(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    activation: Activation,
) -> Result<(), EngineError> {
    let root = config.root();
    let sizes = Sizes::read(config, &["num_local_experts", "num_experts"], "intermediate_size")?;
    let shared_width = root.size_or("shared_intermediate_size", 3072)?;
    let scale = root.number("routed_scaling_factor")?.unwrap_or(2.0) as f32;
    let num = experts::num_of_token(config)?;
    let routing = experts::by_sigmoid_of_all(num, ExpertWeight::SHARE, scale);
    let by_list = layers_by(config, &root, "moe_layer_freq")?;
    let is_sparse =
        experts::sparse_layers(config, |index| by_list.as_ref().is_none_or(|list| list[index]))?;
    experts::set(
        spec,
        |index| is_sparse[index],
        |index| {
            let name = format!("model.layers.{index}.block_sparse_moe");
            let shared = format!("{name}.shared_experts");
            let mlp = experts::shared(&shared, sizes.hidden, shared_width);
            ExpertsSpec {
                choice_bias: Some((format!("{name}.e_score_correction_bias"), vec![sizes.num])),
                shared: Some(SharedExpertSpec { mlp, gate: None }),
                ..sizes.block(&name, mixtral::PARTS, (&routing, activation))
            }
        },
    );
    Ok(())
}
