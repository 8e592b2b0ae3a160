//! Blocks of Mamba 2, which several families have in some layers or in all: their keys, by the
//! names of each family, and their tensors.

use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    BlockNorms, GateOrder, GatedNormSpec, LinearSpec, MambaSpec, NormSpec, RecurrentSpec, TapsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, ScanShape};

/// Values that all blocks of a model share.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Sizes of the scan.
    pub scan: ScanShape,
    /// Tokens that a sum is over.
    pub num_taps: usize,
    /// The sums have biases.
    pub has_conv_bias: bool,
    /// The first linear layer and the last one have biases.
    pub has_bias: [bool; 2],
    /// Activation of the sums.
    pub activation: Activation,
    /// The least and the most that dt is after its softplus.
    pub dt_bounds: [f32; 2],
    /// The epsilon of the norm of groups, if there is such a norm, and when y is gated.
    pub norm: Option<(f32, GateOrder)>,
}

/// The keys of IBM's families, and of those that took them over: `mamba_n_heads` and its kin.
/// `inner`: values of all heads, where another key says it than `mamba_expand`.
pub(super) fn keys(
    config: &HfConfig,
    inner: Option<usize>,
    eps: f32,
) -> Result<Blocks, EngineError> {
    let root = config.root();
    let size = |key, default| size(config, key, default);
    let hidden = config.hidden_size()?;
    let num_heads = size("mamba_n_heads", 128)?;
    let expanded = size("mamba_expand", 2)?.saturating_mul(hidden);
    let inner = inner.unwrap_or(expanded);
    let head_dim = match root.value("mamba_d_head").and_then(|value| value.as_str()) {
        Some("auto") => inner / num_heads.max(1),
        _ => size("mamba_d_head", inner / num_heads.max(1))?,
    };
    if num_heads.saturating_mul(head_dim) != inner {
        let text = format!("{num_heads} heads of {head_dim} are not the {inner} values of a scan");
        return Err(config.error(text));
    }
    let num_groups = size("mamba_n_groups", 1)?;
    let state_size = size("mamba_d_state", 256)?;
    let has_bias = root.flag("mamba_proj_bias")?.unwrap_or(false);
    // How many tokens transformers takes at once.
    root.ignore(&["mamba_chunk_size"]);
    Blocks {
        hidden,
        scan: ScanShape { num_heads, head_dim, num_groups, state_size },
        num_taps: size("mamba_d_conv", 4)?,
        has_conv_bias: root.flag("mamba_conv_bias")?.unwrap_or(true),
        has_bias: [has_bias; 2],
        activation: config.activation_or(Activation::Silu)?,
        dt_bounds: dt_bounds(config)?,
        norm: Some((eps, GateOrder::BeforeNorm)),
    }
    .checked(config)
}

/// A count, with the family's default.
pub(super) fn size(config: &HfConfig, key: &str, default: usize) -> Result<usize, EngineError> {
    Ok(config.root().optional_size(key)?.unwrap_or(default))
}

/// The list of types of either version of transformers.
const TYPES: [&str; 2] = ["layer_types", "layers_block_type"];

/// Layers with attention, by the list under a key, if there is one.
fn listed(config: &HfConfig, key: &str) -> Result<Option<Vec<bool>>, EngineError> {
    let (attention, others) = (["attention", "full_attention"], ["mamba", "linear_attention"]);
    config.layers_by_type(key, &attention, &others)
}

/// Layers with attention, by the first list that is there; no list means none.
pub(super) fn layers_with_attention(config: &HfConfig) -> Result<Vec<bool>, EngineError> {
    for key in TYPES {
        if let Some(attends) = listed(config, key)? {
            return Ok(attends);
        }
    }
    Ok(vec![false; config.num_layers()?])
}

/// Lists of types agree with the key that says which layers attend.
pub(super) fn expect_types(
    config: &HfConfig,
    attends: &[bool],
    by: &str,
) -> Result<(), EngineError> {
    for key in TYPES {
        if listed(config, key)?.is_some_and(|listed| listed != attends) {
            return Err(config.error(format!("`{key}` disagrees with `{by}`")));
        }
    }
    Ok(())
}

/// `time_step_limit`, which transformers applies to prompts only; here to all tokens, so that an
/// answer does not depend on what is a prompt.
pub(super) fn dt_bounds(config: &HfConfig) -> Result<[f32; 2], EngineError> {
    match config.root().bounds("time_step_limit")? {
        None => Ok([0.0, f32::INFINITY]),
        Some([least, most]) if 0.0 <= least && least <= most => Ok([least as f32, most as f32]),
        Some(_) => Err(config.error("`time_step_limit` is no range of numbers from 0 up")),
    }
}

impl Blocks {
    /// Refuses sizes that no model has.
    pub(super) fn checked(self, config: &HfConfig) -> Result<Self, EngineError> {
        limits::check_scan(self.scan).map_err(|text| config.error(text))?;
        Ok(self)
    }

    /// The block whose tensors have this before their names.
    pub(super) fn block(&self, name: &str, norms: BlockNorms) -> RecurrentSpec {
        let name = |part: &str| format!("{name}.{part}");
        let (scan, hidden) = (self.scan, self.hidden);
        let inner = scan.inner_width();
        let [of_inputs, of_out] = self.has_bias;
        let inputs = LinearSpec::new(name("in_proj"), scan.row_width(), hidden);
        let norm = |(eps, order)| GatedNormSpec {
            norm: NormSpec::rms(name("norm"), inner, eps),
            num_groups: scan.num_groups,
            order,
        };
        RecurrentSpec::Mamba(Box::new(MambaSpec {
            norms,
            scan,
            inputs: inputs.with_bias(of_inputs),
            factors: None,
            taps: TapsSpec::new(name("conv1d"), scan.conv_width(), self.num_taps)
                .with_bias(self.has_conv_bias),
            activation: self.activation,
            parameters: ["A_log", "D", "dt_bias"].map(name),
            dt_bounds: self.dt_bounds,
            gated_norm: self.norm.map(norm),
            out: LinearSpec::new(name("out_proj"), hidden, inner).with_bias(of_out),
        }))
    }
}
