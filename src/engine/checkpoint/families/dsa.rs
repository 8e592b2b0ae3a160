//! DeepSeek V3.2 and GLM-5: DeepSeek V3 whose tokens attend to the best `index_topk` of those up to
//! them, which an indexer finds.

use serde_json::{Value, json};

use super::{deepseek, experts};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    AttentionSpec, ChoiceSpec, ChoiceUnit, DecoderSpec, IndexerSpec, LinearSpec, NormSpec,
    QkvHeads, RowOrder,
};
use vllm_batch_base::EngineError;

/// The epsilon of the norm of keys, whatever `rms_norm_eps` is.
const KEY_EPS: f32 = 1e-6;

/// DeepSeek V3.2.
pub(super) fn deepseek_v32(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let defaults = [("n_group", json!(8)), ("topk_group", json!(4)), ("index_n_heads", json!(64))];
    let mut spec = spec(config, &defaults)?;
    let blocks = Indexers::of(config, false)?;
    spec.attentions_mut().for_each(|(index, attention)| blocks.set(attention, index, true));
    Ok(spec)
}

/// GLM-5, some of whose layers take the choice of one before them.
pub(super) fn glm5(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Layers of further tokens are not computed.
    config.root().ignore(&["index_share_for_mtp_iteration"]);
    let defaults = [
        ("n_group", json!(1)),
        ("topk_group", json!(1)),
        ("index_n_heads", json!(32)),
        ("rms_norm_eps", json!(1e-5)),
    ];
    let mut spec = spec(config, &defaults)?;
    let blocks = Indexers::of(config, true)?;
    let is_full = full_layers(config, spec.layers.len())?;
    if !is_full[0] {
        return Err(config.error("a first layer without an indexer of its own is not supported"));
    }
    let attentions = spec.attentions_mut();
    attentions.for_each(|(index, attention)| blocks.set(attention, index, is_full[index]));
    Ok(spec)
}

/// Of each layer, whether it has an indexer of its own.
fn full_layers(config: &HfConfig, num_layers: usize) -> Result<Vec<bool>, EngineError> {
    let root = config.root();
    let types = root.texts("indexer_types")?;
    let pattern = root.value("index_topk_pattern");
    let every = root.size_or_none("index_topk_freq", 1)?.unwrap_or(1);
    let first = root.size_or_none("index_skip_topk_offset", 2)?.unwrap_or(0);
    let of_pattern = |value: &Value| match value {
        Value::String(letters) => Some(letters.chars().map(|c| c.to_string()).collect()),
        Value::Array(names) => names.iter().map(|name| Some(name.as_str()?.to_owned())).collect(),
        _ => None,
    };
    let names: Vec<String> = match (types, pattern.filter(|value| !value.is_null())) {
        (Some(types), _) => types.into_iter().map(str::to_owned).collect(),
        (None, Some(pattern)) => of_pattern(pattern)
            .ok_or_else(|| config.error(format!("an index_topk_pattern of {pattern}")))?,
        (None, None) => {
            let is_full = |index: usize| (index + 1).saturating_sub(first).is_multiple_of(every);
            return Ok((0..num_layers).map(is_full).collect());
        }
    };
    if names.len() != num_layers {
        let text = format!("indexers of {} layers, there are {num_layers}", names.len());
        return Err(config.error(text));
    }
    let is_full = |name: &String| match name.as_str() {
        "full" | "F" => Ok(true),
        "shared" | "S" => Ok(false),
        other => Err(config.error(format!("an indexer type of `{other}` is not supported"))),
    };
    names.iter().map(is_full).collect()
}

fn spec(config: &HfConfig, defaults: &[(&str, Value)]) -> Result<DecoderSpec, EngineError> {
    let root = config.root();
    let says = experts::says_which_are_sparse(config);
    let first = (!says).then_some(("first_k_dense_replace", json!(3)));
    let of_both = [
        ("index_head_dim", json!(128)),
        ("index_topk", json!(2048)),
        ("n_shared_experts", json!(1)),
        ("routed_scaling_factor", json!(2.5)),
    ];
    config.assume(&of_both.into_iter().chain(first).collect::<Vec<_>>());
    config.assume(defaults);
    // Both classes turn pairs in attention.
    root.expect("rope_interleave", true)?;
    let types = root.texts("layer_types")?.unwrap_or_default();
    if let Some(other) = types.iter().find(|name| **name != "indexed_attention") {
        return Err(config.error(format!("a layer type of `{other}` is not supported")));
    }
    deepseek::v3(config)
}

/// Values that all indexers of a config share.
struct Indexers {
    heads: QkvHeads,
    num_chosen: usize,
    hidden: usize,
    q_rank: usize,
    q_order: RowOrder,
    k_order: RowOrder,
}

impl Indexers {
    /// `in_pairs`: values 2i and 2i + 1 turn together, not i and i + half.
    fn of(config: &HfConfig, in_pairs: bool) -> Result<Self, EngineError> {
        let root = config.root();
        root.expect("indexer_rope_interleave", in_pairs)?;
        let num_heads = root.size("index_n_heads")?;
        let head_dim = root.size("index_head_dim")?;
        let heads = QkvHeads { num_heads, num_kv_heads: 1, head_dim };
        limits::check_heads(heads).map_err(|text| config.error(text))?;
        let num_turning = root.size("qk_rope_head_dim")?;
        if num_turning > head_dim {
            let text = format!("{num_turning} turning values of an index_head_dim of {head_dim}");
            return Err(config.error(text));
        }
        let order = |num_heads| match in_pairs {
            true => RowOrder::heads_in_pairs(num_heads, head_dim, num_turning),
            false => RowOrder::as_stored(),
        };
        Ok(Self {
            heads,
            num_chosen: root.size("index_topk")?,
            hidden: config.hidden_size()?,
            q_rank: root.size("q_lora_rank")?,
            q_order: order(num_heads),
            k_order: order(1),
        })
    }

    /// The layer's tokens attend to what its indexer chooses, or one before it.
    fn set(&self, attention: &mut AttentionSpec, index: usize, is_full: bool) {
        let Self { heads, num_chosen, hidden, q_rank, .. } = *self;
        let module = format!("model.layers.{index}.self_attn.indexer.");
        let QkvHeads { num_heads, head_dim, .. } = heads;
        let name = |part: &str| format!("{module}{part}");
        let inputs = [(name("wk"), head_dim), (name("weights_proj"), num_heads)];
        let order = self.k_order.and(head_dim, (&RowOrder::as_stored(), num_heads));
        let k_norm = NormSpec::layer(name("k_norm"), head_dim, KEY_EPS);
        let indexer = is_full.then(|| IndexerSpec {
            q: Some(
                LinearSpec::new(name("wq_b"), heads.q_width(), q_rank)
                    .in_order(self.q_order.clone()),
            ),
            q_norm: None,
            inputs: LinearSpec::stacked(inputs, hidden).in_order(order),
            k_norm: NormSpec { order: self.k_order.clone(), ..k_norm },
            heads,
            module: module.clone(),
        });
        if !is_full {
            attention.unused.push(module);
        }
        attention.choice = Some(ChoiceSpec { num_chosen, unit: ChoiceUnit::Token, indexer });
    }
}
