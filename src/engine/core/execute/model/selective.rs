//! Blocks of Mamba 1: their weights, and what they compute between their first and their last
//! linear layer.

use super::inner_buffers::InnerBuffers;
use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, Heads, SelectiveShape};
use vllm_batch_checkpoint::spec::SelectiveSpec;
use vllm_batch_device::{Device, StateLayerMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{
    Columns, ConvColumns, ConvTaps, Gate, LinearWeight, NormWeight, SelectiveInputs,
    SelectiveWeights, Step, WeightValues,
};

/// Weights of a block of Mamba 1, beside those of any block with a state.
#[derive(Debug)]
pub(super) struct SelectiveBlock {
    activation: Activation,
    /// To what dt is made of, B and C.
    pub choice: LinearWeight,
    /// Of these three.
    choice_norms: Vec<NormWeight>,
    /// To dt.
    pub dt: LinearWeight,
    scan: SelectiveWeights,
}

impl Loader<'_> {
    /// The weights of a block of Mamba 1.
    pub(super) fn selective(
        &mut self,
        spec: &SelectiveSpec,
    ) -> Result<SelectiveBlock, EngineError> {
        let [a_log, skip, dt_bias] = spec.parameters();
        let a_log = self.checkpoint.vector(&a_log, 0.0)?;
        let SelectiveShape { num_channels, state_size, .. } = spec.shape;
        let rate = |index: usize| a_log[index % num_channels * state_size + index / num_channels];
        let decay = (0..a_log.len()).map(|index| -f64::from(rate(index)).exp() as f32).collect();
        let held = |values| WeightValues::on_device(self.device, values);
        let scan = SelectiveWeights {
            shape: spec.shape,
            decay: held(decay)?,
            skip: held(self.checkpoint.vector(&skip, 1.0)?)?,
            dt_bias: held(self.checkpoint.vector(&dt_bias, -3.0)?)?,
        };
        let norms = spec.choice_norms.iter().flatten().map(|norm| self.the_norm(norm));
        Ok(SelectiveBlock {
            activation: spec.activation,
            choice_norms: norms.collect::<Result<_, _>>()?,
            choice: self.layer_linear(&spec.choice)?,
            dt: self.layer_linear(&spec.dt)?,
            scan,
        })
    }
}

impl SelectiveBlock {
    /// mixed (num_tokens, channels) = what the block makes of its first products, which are changed
    /// on the way, and of its states.
    pub(super) fn mix(
        &self,
        device: &Device,
        taps: &ConvTaps,
        (products, step): (&mut Tensor, Step<'_>),
        mut states: StateLayerMut<'_>,
        (buffers, mixed): (&mut InnerBuffers, &mut Tensor),
    ) {
        let SelectiveShape { num_channels, rank, state_size, .. } = self.scan.shape;
        let activation = Some(self.activation);
        let columns = ConvColumns { first: 0, gates: None, activation };
        ops::causal_conv(device, (products, step), taps, states.reborrow(), columns);
        buffers.product(device, (products, Columns::run(0, num_channels)), &self.choice, 0);
        let starts = [(0, rank), (rank, state_size), (rank + state_size, state_size)];
        for (norm, (start, head_dim)) in self.choice_norms.iter().zip(starts) {
            let all = Heads { start, num_heads: 1, head_dim };
            ops::norm_heads(device, &mut buffers.products[0], all, norm);
        }
        buffers.second_product(device, Columns::run(0, rank), &self.dt);
        let [chosen, dt] = &buffers.products;
        let inputs = SelectiveInputs { x: products, chosen, dt };
        let states = (states, taps.state_len());
        ops::selective_scan(device, (inputs, step), &self.scan, states, mixed);
        ops::gate_columns(device, mixed, (products, num_channels), Gate::Silu);
    }
}
