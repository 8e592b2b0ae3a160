//! Kimi's delta attention, whose states' rows each have their own decay: blocks of Kimi Linear and
//! of Ling 3, between layers of latent attention.

use serde_json::{Value, json};

use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    BlockNorms, DeltaGate, DeltaNetSpec, LinearSpec, LowRankGates, NormSpec, RecurrentSpec,
    TapsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Decay, DecayForm, DeltaHeads};

/// Names of both families for the usual keys.
const ALIASES: [(&str, &str); 4] = [
    ("max_position_embeddings", "model_max_length"),
    ("n_group", "num_expert_group"),
    ("norm_topk_prob", "moe_renormalize"),
    ("num_experts_per_tok", "num_experts_per_token"),
];

/// Values that all blocks of a model share.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Heads of q, k and v, all alike.
    pub heads: DeltaHeads,
    /// Tokens that a sum is over.
    pub num_taps: usize,
    /// The epsilon of norms.
    pub eps: f32,
    /// How rows forget.
    pub decay: DecayForm,
    /// Decays and output gates go through as many values as a head has.
    pub is_low_rank: bool,
    /// The name of the block and of its last linear layer.
    pub names: [&'static str; 2],
    /// Shape of the tensor of rates, but for its heads.
    pub rates_shape: fn(usize) -> Vec<usize>,
}

/// Heads of one width.
pub(super) fn heads(
    config: &HfConfig,
    num_heads: usize,
    head_dim: usize,
) -> Result<DeltaHeads, EngineError> {
    let heads = DeltaHeads {
        num_k_heads: num_heads,
        num_v_heads: num_heads,
        k_dim: head_dim,
        v_dim: head_dim,
    };
    limits::check_delta_heads(heads).map_err(|text| config.error(text))?;
    Ok(heads)
}

/// Lets keys that these files have under names of their own be read by the usual ones; and gives
/// these defaults.
pub(super) fn assume(
    config: &HfConfig,
    defaults: &[(&'static str, Value)],
) -> Result<(), EngineError> {
    let root = config.root();
    let mut assumed = Vec::new();
    for (usual, own) in &ALIASES {
        let Some(value) = root.value(own) else { continue };
        if let Some(other) = root.value(usual) {
            root.expect(own, other.clone())?;
        }
        assumed.push((*usual, value.clone()));
    }
    let is_left = |(key, _): &&(&str, Value)| assumed.iter().all(|(known, _)| known != key);
    let left: Vec<_> = defaults.iter().filter(is_left).cloned().collect();
    assumed.extend(left);
    config.assume(&assumed);
    Ok(())
}

impl Blocks {
    /// The block of a layer.
    pub(super) fn block(&self, index: usize) -> RecurrentSpec {
        let [block, out] = self.names;
        let name = |part: &str| format!("model.layers.{index}.{block}.{part}");
        let Self { hidden, heads, eps, .. } = *self;
        let (width, rank) = (heads.k_width(), heads.k_dim);
        let [a, z] = match self.is_low_rank {
            true => [("f_a_proj", rank), ("g_a_proj", rank)],
            false => [("f_proj", width), ("g_proj", width)],
        };
        let qkv = [("q_proj", width), ("k_proj", width), ("v_proj", width)];
        let inputs = qkv.into_iter().chain([z, ("b_proj", heads.num_v_heads), a]);
        let taps = ["q_conv1d", "k_conv1d", "v_conv1d"].map(|part| (name(part), width));
        let norm = NormSpec::rms(format!("model.layers.{index}.input_layernorm"), hidden, eps);
        RecurrentSpec::DeltaNet(Box::new(DeltaNetSpec {
            norms: BlockNorms::before(norm),
            heads,
            inputs: LinearSpec::stacked(inputs.map(|(part, rows)| (name(part), rows)), hidden),
            low_rank: self.is_low_rank.then(|| LowRankGates {
                a: LinearSpec::new(name("f_b_proj"), width, rank),
                z: LinearSpec::new(name("g_b_proj"), width, rank),
            }),
            taps: TapsSpec { parts: taps.into(), num_taps: self.num_taps, bias: false },
            decay: Decay::OfRows(self.decay),
            a_log: (name("A_log"), (self.rates_shape)(heads.num_v_heads)),
            dt_bias: name("dt_bias"),
            beta_factor: 1.0,
            norm: NormSpec::rms(name("o_norm"), heads.v_dim, eps),
            output_gate: DeltaGate::Sigmoid,
            out: LinearSpec::new(name(out), hidden, width),
        }))
    }
}

/// The keys of experts that both families compute in one way, whatever they are called.
pub(super) fn expect_experts(config: &HfConfig) -> Result<(), EngineError> {
    let root = config.root();
    root.expect("hidden_act", "silu")?;
    root.expect("moe_layer_freq", json!(1))?;
    Ok(())
}
