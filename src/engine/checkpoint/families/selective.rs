//! Blocks of Mamba 1, which several families have in some layers or in all.

use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{BlockNorms, LinearSpec, NormSpec, RecurrentSpec, SelectiveSpec, TapsSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, SelectiveShape};

/// Values that all blocks of a model share.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Sizes of the scan.
    pub shape: SelectiveShape,
    /// Tokens that a sum is over.
    pub num_taps: usize,
    /// The sums have biases.
    pub has_conv_bias: bool,
    /// The first linear layer and the last one have biases.
    pub has_bias: bool,
    /// Activation of the sums.
    pub activation: Activation,
    /// Norms of what dt is made of, of B and of C, if there are any.
    pub norms: Option<ChoiceNorms>,
}

/// Norms of what chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChoiceNorms {
    /// Their epsilon.
    pub eps: f32,
    /// They have weights.
    pub has_weights: bool,
}

/// The rank of dt: a count, or a sixteenth of the stream's width.
pub(super) fn rank(config: &HfConfig, key: &str, hidden: usize) -> Result<usize, EngineError> {
    let root = config.root();
    match root.value(key).and_then(|value| value.as_str()) {
        Some("auto") => Ok(hidden.div_ceil(16)),
        _ => root.size_or(key, hidden.div_ceil(16)),
    }
}

impl Blocks {
    /// Refuses sizes that no model has.
    pub(super) fn checked(self, config: &HfConfig) -> Result<Self, EngineError> {
        limits::check_selective(self.shape).map_err(|text| config.error(text))?;
        Ok(self)
    }

    /// The block whose tensors have this before their names.
    pub(super) fn block(&self, name: &str, norms: BlockNorms) -> RecurrentSpec {
        let name = |part: &str| format!("{name}.{part}");
        let SelectiveShape { num_channels, rank, state_size, .. } = self.shape;
        let inputs = LinearSpec::new(name("in_proj"), 2 * num_channels, self.hidden);
        let out = LinearSpec::new(name("out_proj"), self.hidden, num_channels);
        let norm = |part: &str, width: usize, form: ChoiceNorms| {
            let norm = NormSpec::rms(name(part), width, form.eps);
            if form.has_weights { norm } else { norm.without_weight() }
        };
        let parts =
            [("dt_layernorm", rank), ("b_layernorm", state_size), ("c_layernorm", state_size)];
        RecurrentSpec::Selective(Box::new(SelectiveSpec {
            norms,
            shape: self.shape,
            inputs: inputs.with_bias(self.has_bias),
            taps: TapsSpec::new(name("conv1d"), num_channels, self.num_taps)
                .with_bias(self.has_conv_bias),
            activation: self.activation,
            choice: LinearSpec::new(name("x_proj"), rank + 2 * state_size, num_channels),
            choice_norms: self.norms.map(|form| parts.map(|(part, n)| norm(part, n, form))),
            dt: LinearSpec::new(name("dt_proj"), num_channels, rank),
            parameters: ["A_log", "D", "dt_proj.bias"].map(name),
            out: out.with_bias(self.has_bias),
        }))
    }
}
