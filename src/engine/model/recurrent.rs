//! Blocks that keep a state of the tokens before: their weights, and what they compute between
//! their first and their last linear layer.

use super::loading::{BlockNormWeights, Loader};
use super::spec::RecurrentSpec;
use crate::engine::EngineError;
use crate::engine::device::{Device, StateLayerMut, Tensor};
use crate::engine::ops::{self, Columns, ConvColumns, ConvTaps, LinearWeight, Step};

/// Weights of a block that keeps a state.
#[derive(Debug)]
pub(super) struct RecurrentWeights {
    pub norms: BlockNormWeights,
    pub inputs: LinearWeight,
    pub taps: ConvTaps,
    pub out: LinearWeight,
}

impl Loader<'_> {
    /// The weights of a block that keeps a state.
    pub(super) fn recurrent(
        &mut self,
        spec: &RecurrentSpec,
    ) -> Result<RecurrentWeights, EngineError> {
        let taps = self.checkpoint.vector(&spec.taps().weight(), 0.3)?;
        let biases = spec.taps().biases().map(|tensor| self.checkpoint.vector(&tensor, 0.01));
        let [inputs, out] = spec.linears();
        Ok(RecurrentWeights {
            norms: self.norms(spec.norms())?,
            inputs: self.layer_linear(inputs)?,
            taps: ConvTaps::new(spec.taps().width, &taps, biases.transpose()?),
            out: self.layer_linear(out)?,
        })
    }
}

impl RecurrentWeights {
    /// mixed = what the block makes of its first products, which are changed on the way, and of its
    /// states.
    pub(super) fn mix(
        &self,
        device: &Device,
        spec: &RecurrentSpec,
        (products, step): (&mut Tensor, Step<'_>),
        states: StateLayerMut<'_>,
        mixed: &mut Tensor,
    ) {
        mixed.reshape(step.num_rows(), spec.linears()[1].k);
        match spec {
            RecurrentSpec::ShortConv(conv) => {
                let width = conv.taps.width;
                let columns =
                    ConvColumns { first: 2 * width, gates: Some([0, width]), activation: None };
                ops::causal_conv(device, (products, step), &self.taps, states, columns);
                let outputs = (&*products, Columns::run(2 * width, width));
                ops::copy_columns(device, outputs, (mixed, Columns::run(0, width)));
            }
        }
    }
}
