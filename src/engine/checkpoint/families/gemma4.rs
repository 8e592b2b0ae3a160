//! Gemma 4 (text): local and global layers with heads of two widths, V without a projection or K
//! and V of earlier layers, inputs of each layer, and experts beside the MLP.

use serde_json::{Value, json};

use super::experts::{self, Sizes};
use super::llama::{self, Defaults};
use crate::hf_config::{HfConfig, LayerType, RopeDefaults, Section};
use crate::spec::{
    ApartNorms, AttentionSpec, BlockNorms, DecoderSpec, EmbeddingScale, ExpertSpec, ExpertsSpec,
    FeedForwardSpec, KvSource, LayerInputsSpec, LayerSpec, LinearSpec, NormSpec, QkvHeads,
    SharedExpertSpec, SideBlockSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Reach};

/// Defaults of this class, and of Gemma 3n.
pub(super) const DEFAULTS: Defaults =
    Defaults { is_tied: true, activation: Activation::GeluTanh, ..Defaults::LLAMA };

/// The spec of a Gemma 4 text config.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume(config, (131_072, 512, 256));
    text(config)
}

/// The same of the class without encoders, of 12B.
pub(super) fn unified(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume(config, (262_144, 1024, 0));
    text(config)
}

/// Defaults of a class for keys that the file leaves out: its context, its window and the width of
/// the inputs of layers, and the defaults of both classes.
fn assume(config: &HfConfig, (context, window, inputs): (usize, usize, usize)) {
    config.assume(&[
        ("global_head_dim", json!(512)),
        ("head_dim", json!(256)),
        ("hidden_size_per_layer_input", json!(inputs)),
        ("max_position_embeddings", json!(context)),
        ("num_attention_heads", json!(8)),
        ("num_key_value_heads", json!(4)),
        (
            "rope_parameters",
            json!({
                "full_attention":
                    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }),
        ),
        ("sliding_window", json!(window)),
        ("vocab_size", json!(262_144)),
        ("vocab_size_per_layer_input", json!(262_144)),
    ]);
}

fn text(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    // Of tokens of images, in both directions.
    root.expect("use_bidirectional_attention", "vision")?;
    root.expect("expert_intermediate_size", Value::Null)?;
    let mut slides = config.sliding_layers(6)?;
    // As the class has it, whatever the file says.
    if let Some(last) = slides.last_mut() {
        *last = false;
    }
    let heads = Heads::read(config, slides)?;
    let rope = |layer_type, slides| {
        let head_dim = heads.head_dim(config, slides)?;
        config.rope_with(layer_type, RopeDefaults { head_dim, ..RopeDefaults::new(1e4, 1.0) })
    };
    let ropes = vec![rope(LayerType::Full, false)?, rope(LayerType::Sliding, true)?];
    // max_position_embeddings is the stretched length already.
    let ropes = (ropes, config.max_position_embeddings()?);
    let layer = |index| layer(config, &heads, index);
    let mut spec = llama::around_with(config, DEFAULTS, ropes, layer)?;
    let hidden = spec.hidden_size();
    spec.embedding.scale = Some(scale_of(hidden));
    spec.embedding.of_layers = layer_inputs(config, hidden, spec.layers.len())?;
    spec.output.soft_cap = root.number("final_logit_softcapping")?.map(|cap| cap as f32);
    Ok(spec)
}

/// Embeddings are multiplied by the root of their width.
pub(super) fn scale_of(width: usize) -> EmbeddingScale {
    EmbeddingScale { factor: (width as f32).sqrt(), is_rounded: true }
}

/// Heads of all layers, and where their K and V come from.
pub(super) struct Heads {
    slides: Vec<bool>,
    of_layers: Vec<QkvHeads>,
    sources: Vec<KvSource>,
}

impl Heads {
    /// The same heads in all layers, the last of which take K and V from others of their kind.
    pub(super) fn alike(config: &HfConfig, slides: Vec<bool>) -> Result<Self, EngineError> {
        let sources = sources(config, &slides, false)?;
        Ok(Self { of_layers: vec![config.heads()?; slides.len()], slides, sources })
    }

    fn read(config: &HfConfig, slides: Vec<bool>) -> Result<Self, EngineError> {
        let v_is_k = config.root().flag("attention_k_eq_v")?.unwrap_or(false);
        let sources = sources(config, &slides, v_is_k)?;
        let of_layer = |index: usize| of_layer(config, index, (slides[index], v_is_k));
        let of_layers = (0..slides.len()).map(of_layer).collect::<Result<_, _>>()?;
        let heads = Self { slides, of_layers, sources };
        for (index, source) in heads.sources.iter().enumerate() {
            if let KvSource::OfLayer(source) = *source
                && heads.of_layers[source] != heads.of_layers[index]
            {
                let text = format!("layer {index} takes K and V from {source}, with other heads");
                return Err(config.error(text));
            }
        }
        Ok(heads)
    }

    /// Width of the heads of all layers that slide, or of all others; None: there are none.
    fn head_dim(&self, config: &HfConfig, slides: bool) -> Result<Option<usize>, EngineError> {
        let layers = self.of_layers.iter().zip(&self.slides);
        let mut widths = layers.filter(|(_, of)| **of == slides).map(|(heads, _)| heads.head_dim);
        let first = widths.next();
        match widths.all(|width| Some(width) == first) {
            true => Ok(first),
            false => Err(config.error("layers of one type have heads of several widths")),
        }
    }
}

/// Where K and V of all layers come from: of the last `num_kv_shared_layers` from the last of their
/// kind before.
fn sources(config: &HfConfig, slides: &[bool], v_is_k: bool) -> Result<Vec<KvSource>, EngineError> {
    let num_shared = config.root().optional_size("num_kv_shared_layers")?.unwrap_or(0);
    let num_own = slides.len().saturating_sub(num_shared);
    let source = |index: usize| match (index < num_own, v_is_k && !slides[index]) {
        (true, false) => Ok(KvSource::Own),
        (true, true) => Ok(KvSource::ValuesAreKeys),
        (false, _) => {
            let like = (0..num_own).rev().find(|&own| slides[own] == slides[index]);
            like.map(KvSource::OfLayer).ok_or_else(|| {
                config.error(format!("layer {index} has no layer to take K and V from"))
            })
        }
    };
    (0..slides.len()).map(source).collect()
}

/// Heads of a layer: by `per_layer_config`, as transformers 5 writes it, or by the keys of global
/// layers, as published files have them.
fn of_layer(
    config: &HfConfig,
    index: usize,
    (slides, v_is_k): (bool, bool),
) -> Result<QkvHeads, EngineError> {
    let (root, usual) = (config.root(), config.heads()?);
    let size = |section: &Section<'_>, key, usual| {
        section.optional_size(key).map(|size| size.unwrap_or(usual))
    };
    let (head_dim, num_kv_heads) = match root.section("per_layer_config")? {
        Some(layers) => {
            root.ignore(&["global_head_dim", "num_global_key_value_heads"]);
            // Keys are padded with zeros to the digits of the last one.
            let is_of_layer = |name: &&str| name.parse() == Ok(index);
            let mut names = layers.names().filter(is_of_layer);
            let name = names.next();
            if let (Some(name), Some(other)) = (name, names.next()) {
                let text = format!("`per_layer_config` has `{name}` and `{other}`");
                return Err(config.error(text));
            }
            match name.map(|name| layers.section(name)).transpose()?.flatten() {
                None => (usual.head_dim, usual.num_kv_heads),
                Some(layer) => (
                    size(&layer, "head_dim", usual.head_dim)?,
                    size(&layer, "num_key_value_heads", usual.num_kv_heads)?,
                ),
            }
        }
        None => {
            let head_dim = size(&root, "global_head_dim", usual.head_dim)?;
            let num_kv_heads = size(&root, "num_global_key_value_heads", usual.num_kv_heads)?;
            match (slides, v_is_k) {
                (true, _) => (usual.head_dim, usual.num_kv_heads),
                (false, true) => (head_dim, num_kv_heads),
                (false, false) => (head_dim, usual.num_kv_heads),
            }
        }
    };
    let heads = QkvHeads { num_kv_heads, head_dim, ..usual };
    config.check_kv_heads(heads.num_heads, num_kv_heads)?;
    config.checked(heads)
}

fn layer(config: &HfConfig, heads: &Heads, index: usize) -> Result<LayerSpec, EngineError> {
    let root = config.root();
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let takes_kv = matches!(heads.sources[index], KvSource::OfLayer(_));
    let is_wide = root.flag("use_double_wide_mlp")?.unwrap_or(false) && takes_kv;
    let inner = config.intermediate_size()? * if is_wide { 2 } else { 1 };
    let mut mlp = llama::mlp(config, DEFAULTS, (index, inner))?;
    mlp.norms = sandwich(config, index, OF_FEED_FORWARD)?;
    let width = inputs_width(config)?;
    let side = || side_block(config, index, width);
    let feed_forward: FeedForwardSpec = match root.flag("enable_moe_block")?.unwrap_or(false) {
        true => ExpertsSpec { norms: mlp.norms, ..experts(config, index, inner)? }.into(),
        false => {
            root.ignore(&["moe_intermediate_size", "num_experts", "top_k_experts"]);
            mlp.into()
        }
    };
    let mut attention = attention(config, heads, index)?;
    attention.norms = sandwich(config, index, OF_ATTENTION)?;
    Ok(LayerSpec {
        side: (width > 0).then(side).transpose()?,
        scalar: Some(name("layer_scalar")),
        ..LayerSpec::new(attention, feed_forward)
    })
}

/// Names of the norms before and behind attention.
pub(super) const OF_ATTENTION: [&str; 2] = ["input_layernorm", "post_attention_layernorm"];
/// The same of the feed-forward block.
pub(super) const OF_FEED_FORWARD: [&str; 2] =
    ["pre_feedforward_layernorm", "post_feedforward_layernorm"];

/// Norms before and behind a block of a layer.
pub(super) fn sandwich(
    config: &HfConfig,
    index: usize,
    names: [&str; 2],
) -> Result<BlockNorms, EngineError> {
    let hidden = config.hidden_size()?;
    let norm = |part: &str| norm_of(config, &format!("model.layers.{index}.{part}"), hidden);
    let (before, after) = (Some(norm(names[0])?), Some(norm(names[1])?));
    Ok(BlockNorms { before, after, ..BlockNorms::default() })
}

/// The block of a layer that reads its inputs, of this width.
pub(super) fn side_block(
    config: &HfConfig,
    index: usize,
    width: usize,
) -> Result<SideBlockSpec, EngineError> {
    let hidden = config.hidden_size()?;
    let name = |part: &str| format!("model.layers.{index}.{part}");
    Ok(SideBlockSpec {
        gate: LinearSpec::new(name("per_layer_input_gate"), width, hidden),
        activation: config.activation_or(DEFAULTS.activation)?,
        out: LinearSpec::new(name("per_layer_projection"), hidden, width),
        norm: norm_of(config, &name("post_per_layer_input_norm"), hidden)?,
    })
}

/// A norm of this name.
pub(super) fn norm_of(
    config: &HfConfig,
    name: &str,
    width: usize,
) -> Result<NormSpec, EngineError> {
    Ok(NormSpec::rms(name, width, config.rms_norm_eps()?))
}

/// The attention block of a layer, without its norms.
pub(super) fn attention(
    config: &HfConfig,
    heads: &Heads,
    index: usize,
) -> Result<AttentionSpec, EngineError> {
    let (own, kv, slides) = (heads.of_layers[index], heads.sources[index], heads.slides[index]);
    let mut block = llama::attention(config, DEFAULTS, (index, own))?;
    let name = |part: &str| format!("model.layers.{index}.self_attn.{part}");
    let eps = config.rms_norm_eps()?;
    let mut norms = llama::head_norms(index, ["q_norm", "k_norm"], own.head_dim, eps);
    let v_norm = NormSpec::rms(name("v_norm"), own.head_dim, eps).without_weight();
    block.v_norm = Some(v_norm);
    match kv {
        KvSource::Own => {}
        KvSource::ValuesAreKeys => block.qkv.parts.truncate(2),
        KvSource::OfLayer(_) => {
            block.qkv.parts.truncate(1);
            (block.v_norm, norms.k) = (None, None);
            block.unused = ["k_proj.", "v_proj.", "k_norm."].map(name).into();
        }
    }
    block.kv = kv;
    block.qk_norm = Some(norms);
    block.scale = 1.0;
    block.rope = Some(usize::from(slides));
    block.reach = Reach::of_window(config.sliding_window()?.filter(|_| slides));
    block.is_causal = !slides;
    Ok(block)
}

/// The experts of a layer beside its MLP of this inner width. Norms of the block are still to be
/// named.
fn experts(config: &HfConfig, index: usize, inner: usize) -> Result<ExpertsSpec, EngineError> {
    let sizes = Sizes::read(config, &["num_experts"], "moe_intermediate_size")?;
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let norm = |part: &str| norm_of(config, &name(part), sizes.hidden);
    let router = NormSpec {
        weight_suffix: "",
        weight_factor: 1.0 / (sizes.hidden as f32).sqrt(),
        ..norm("router.scale")?
    };
    let routing = experts::by_softmax(config.root().size("top_k_experts")?, true);
    let activation = config.activation_or(DEFAULTS.activation)?;
    let (gate_up, down) = (name("experts.gate_up_proj"), name("experts.down_proj"));
    let as_parameters = |expert: ExpertSpec| ExpertSpec {
        up: expert.up.as_parameters(),
        down: expert.down.as_parameters(),
    };
    let mlp = experts::shared(&name("mlp"), sizes.hidden, inner);
    Ok(ExpertsSpec {
        weight_factors: Some((name("router.per_expert_scale"), vec![sizes.num])),
        experts: sizes.stacked(&gate_up, &down).into_iter().map(as_parameters).collect(),
        shared: Some(SharedExpertSpec { mlp, gate: None }),
        apart: Some(ApartNorms {
            mlp_after: norm("post_feedforward_layernorm_1")?,
            router,
            experts_before: norm("pre_feedforward_layernorm_2")?,
            experts_after: norm("post_feedforward_layernorm_2")?,
        }),
        ..ExpertsSpec::new(sizes.router(name("router.proj")), routing, activation)
    })
}

/// Width of the inputs of a layer; 0: there are none.
pub(super) fn inputs_width(config: &HfConfig) -> Result<usize, EngineError> {
    Ok(config.root().optional_size("hidden_size_per_layer_input")?.unwrap_or(0))
}

/// The inputs of so many layers, if they have any.
pub(super) fn layer_inputs(
    config: &HfConfig,
    hidden: usize,
    num_layers: usize,
) -> Result<Option<LayerInputsSpec>, EngineError> {
    let rows = config.root().optional_size("vocab_size_per_layer_input")?.unwrap_or(0);
    let width = inputs_width(config)?;
    if width == 0 {
        return Ok(None);
    }
    let all = width.saturating_mul(num_layers);
    Ok(Some(LayerInputsSpec {
        table: LinearSpec::new("model.embed_tokens_per_layer", rows, all),
        first_row_behind: false,
        table_scale: scale_of(width),
        projection: LinearSpec::new("model.per_layer_model_projection", all, hidden),
        projection_scale: 1.0 / (hidden as f32).sqrt(),
        norm: norm_of(config, "model.per_layer_projection_norm", width)?,
        sum_scale: std::f32::consts::FRAC_1_SQRT_2,
    }))
}
