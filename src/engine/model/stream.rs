//! `Stream`: the residual stream, and how blocks read it and add to it. What decoders and encoders
//! have in common.

use super::loading::{BlockNormWeights, MlpWeights};
use super::spec::{BlockNorms, MlpForm, MlpSpec};
use crate::engine::EngineError;
use crate::engine::device::{Device, Precision, Tensor};
use crate::engine::ops;

/// The stream and the buffers of what runs over it, allocated once for the largest step of T
/// tokens. A block leaves what it adds in `delta`; the next one (or the end) adds it, in the same
/// pass as its norm.
#[derive(Debug)]
pub(super) struct Stream {
    /// (T, hidden_size) what blocks add to.
    pub residual: Tensor,
    /// (T, hidden_size) what a block adds.
    pub delta: Tensor,
    /// `delta` is not added yet.
    pub has_delta: bool,
    /// (rows of a block, hidden_size) what a block reads.
    pub normed: Tensor,
    /// (rows of a block, 2 * intermediate_size or intermediate_size)
    up: Tensor,
    /// (rows of a block, intermediate_size), only when gated.
    activated: Option<Tensor>,
}

impl Stream {
    /// Buffers for steps of `num_tokens` tokens.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new<'a>(
        device: &Device,
        (num_tokens, hidden_size): (usize, usize),
        mut norms: impl Iterator<Item = &'a BlockNorms>,
        mlps: impl Iterator<Item = &'a MlpSpec> + Clone,
    ) -> Result<Self, EngineError> {
        let up_width = mlps.clone().map(|mlp| mlp.up.n()).max().unwrap_or(0);
        let gated = mlps.filter(|mlp| mlp.form == MlpForm::Gated);
        let activated = gated.map(|mlp| mlp.down.k).max();
        // A copy of the residual is no input that a GPU's norm rounds.
        let is_normed = norms.all(|norms| norms.before.is_some());
        let block_rows = device.block_rows(num_tokens);
        let linear_input = |width| device.tensor(block_rows, width, Precision::LinearInput);
        let per_row = |width| device.tensor(block_rows, width, Precision::Activation);
        Ok(Self {
            residual: device.tensor(num_tokens, hidden_size, Precision::Full)?,
            delta: device.tensor(num_tokens, hidden_size, Precision::Activation)?,
            has_delta: false,
            normed: match is_normed {
                true => linear_input(hidden_size)?,
                false => per_row(hidden_size)?,
            },
            up: per_row(up_width)?,
            activated: activated.map(linear_input).transpose()?,
        })
    }

    /// Begins a step of so many rows.
    pub(super) fn begin(&mut self, num_rows: usize) {
        self.residual.set_num_rows(num_rows);
        self.delta.set_num_rows(num_rows);
        self.has_delta = false;
    }

    /// (first row, rows): a block at a time where the device has a cache to keep its buffers in.
    pub(super) fn row_blocks(
        &self,
        device: &Device,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let num_rows = self.residual.num_rows();
        let block_rows = device.block_rows(num_rows);
        (0..num_rows)
            .step_by(block_rows)
            .map(move |start| (start, block_rows.min(num_rows - start)))
    }

    /// normed = what the block reads, for some rows; the delta of the block before is added on the
    /// way.
    pub(super) fn block_input(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        (start, num_rows): (usize, usize),
    ) {
        let Self { residual, delta, normed, has_delta, .. } = self;
        normed.set_num_rows(num_rows);
        match &norms.before {
            Some(norm) => {
                let delta = has_delta.then_some(&*delta);
                ops::add_norm_rows(device, (residual, delta), start, norm, normed);
            }
            None => {
                // All rows are added with the first ones.
                if *has_delta && start == 0 {
                    ops::add(device, residual, delta);
                }
                ops::copy_rows(device, residual.rows_from(start), normed);
            }
        }
    }

    /// delta = the feed-forward block of the stream.
    pub(super) fn mlp(&mut self, device: &Device, (spec, weights): (&MlpSpec, &MlpWeights)) {
        let activation = weights.activation;
        for (start, num_rows) in self.row_blocks(device) {
            self.block_input(device, &weights.norms, (start, num_rows));
            let Self { normed, delta, up, activated, .. } = &mut *self;
            let input = normed.rows_from(0);
            let inner = match (spec.form, activated) {
                (MlpForm::Gated, Some(activated)) => {
                    up.reshape(num_rows, spec.up.n());
                    activated.reshape(num_rows, spec.down.k);
                    let weight = (&weights.up, activation);
                    let out = (&mut *up, &mut *activated);
                    ops::linear_activate_and_mul(device, input, weight, out, num_rows);
                    activated
                }
                _ => {
                    up.reshape(num_rows, spec.up.n());
                    ops::linear_rows(device, input, &weights.up, up.rows_from_mut(0), num_rows);
                    ops::activate(device, activation, up);
                    &mut *up
                }
            };
            let (x, out) = (inner.rows_from(0), delta.rows_from_mut(start));
            ops::linear_rows(device, x, &weights.down, out, num_rows);
        }
    }

    /// Normalizes and scales what a block adds, or normalizes the sum. Without a norm of the sum
    /// the block after adds.
    pub(super) fn block_output(
        &mut self,
        device: &Device,
        norms: &BlockNormWeights,
        scale: Option<f32>,
    ) {
        let Self { residual, delta, has_delta, .. } = self;
        if let Some(norm) = &norms.after {
            ops::norm_in_place(device, delta, norm);
        }
        if let Some(scale) = scale {
            ops::scale(device, delta, scale);
        }
        *has_delta = norms.of_sum.is_none();
        if let Some(norm) = &norms.of_sum {
            ops::add(device, residual, delta);
            ops::norm_in_place(device, residual, norm);
        }
    }
}
