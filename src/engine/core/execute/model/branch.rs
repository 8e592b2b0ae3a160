//! A branch beside attention, of what attention reads: made before it, added behind it.

use super::loading::{BlockNormWeights, Loader};
use super::stream::Stream;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{BranchSpec, LayerSpec};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{LinearWeight, NormWeight};

/// Weights of a branch.
#[derive(Debug)]
pub(super) struct BranchWeights {
    left: LinearWeight,
    right: LinearWeight,
    norm: NormWeight,
    scale: f32,
}

impl BranchWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        [&self.left, &self.right].into_iter()
    }
}

impl Loader<'_> {
    /// The weights of a branch.
    pub(super) fn branch(&mut self, spec: &BranchSpec) -> Result<BranchWeights, EngineError> {
        Ok(BranchWeights {
            left: self.layer_linear(&spec.left)?,
            right: self.layer_linear(&spec.right)?,
            norm: self.the_norm(&spec.norm)?,
            scale: spec.scale,
        })
    }
}

/// What branches work in, for steps of T tokens.
#[derive(Debug)]
pub(super) struct Branch {
    /// (T, hidden_size) what attention reads.
    input: Tensor,
    /// (T, rank)
    narrow: Tensor,
    /// (T, hidden_size) what is added.
    added: Tensor,
}

impl Branch {
    /// Room for the branches of these layers; None: they have none.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub(super) fn new(
        device: &Device,
        (num_tokens, hidden_size): (usize, usize),
        layers: &[LayerSpec],
    ) -> Result<Option<Self>, EngineError> {
        let ranks = layers.iter().filter_map(|layer| Some(layer.branch.as_ref()?.left.n()));
        let Some(rank) = ranks.max() else { return Ok(None) };
        let per_token = |width| device.tensor(num_tokens, width, Precision::Activation);
        let (input, added) = (per_token(hidden_size)?, per_token(hidden_size)?);
        Ok(Some(Self { input, narrow: per_token(rank)?, added }))
    }
}

impl Stream {
    /// Makes what the branch adds, of the stream as attention is to read it.
    pub(super) fn begin_branch(
        &mut self,
        device: &Device,
        weights: &BranchWeights,
        norms: &BlockNormWeights,
    ) {
        self.settle(device);
        let Self { residual, branch, .. } = self;
        let Some(Branch { input, narrow, added }) = branch else {
            unreachable!("made where there are branches")
        };
        let norm = norms.before.as_ref().expect("attention beside a branch normalizes before");
        ops::add_norm(device, residual, None, norm, input);
        narrow.reshape(residual.num_rows(), weights.left.shape().0);
        added.set_num_rows(residual.num_rows());
        ops::linear(device, input, &weights.left, narrow);
        ops::linear(device, narrow, &weights.right, added);
        ops::norm_in_place(device, added, &weights.norm);
        ops::add(device, added, input);
    }

    /// Adds that and what attention gives, and scales the sum.
    pub(super) fn end_branch(&mut self, device: &Device, weights: &BranchWeights) {
        self.settle(device);
        if let Some(branch) = &self.branch {
            ops::add(device, &mut self.residual, &branch.added);
            ops::scale(device, &mut self.residual, weights.scale);
        }
    }
}
