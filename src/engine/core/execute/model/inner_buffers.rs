//! What blocks with states compute with linear layers between their first and their last one.

use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Decay;
use vllm_batch_checkpoint::spec::{DecoderSpec, LinearSpec, RecurrentSpec};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Columns, LinearWeight};

/// What inner linear layers read and give; T tokens. Without such layers they have no columns.
#[derive(Debug)]
pub(super) struct InnerBuffers {
    /// (T, inputs of the layer)
    input: Tensor,
    /// (T, outputs) of the first and of the second layer.
    pub products: [Tensor; 2],
    /// (T, the decay's width) of delta nets whose rows of states decay.
    pub decays: Tensor,
}

impl InnerBuffers {
    /// Buffers for steps of `num_tokens` tokens.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        num_tokens: usize,
    ) -> Result<Self, EngineError> {
        let widest = |of: &dyn Fn(&RecurrentSpec) -> usize| {
            let width = spec.recurrents().map(of).max().unwrap_or(0);
            device.tensor(num_tokens, width, Precision::Activation)
        };
        let outputs =
            |index| widest(&move |block| block.inner_linears().nth(index).map_or(0, LinearSpec::n));
        Ok(Self {
            input: widest(&|block| {
                block.inner_linears().map(|linear| linear.k).max().unwrap_or(0)
            })?,
            products: [outputs(0)?, outputs(1)?],
            decays: device.tensor(
                num_tokens,
                spec.recurrents().map(num_decays).max().unwrap_or(0),
                Precision::Full,
            )?,
        })
    }

    /// products[index] = a layer of these columns.
    pub(super) fn product(
        &mut self,
        device: &Device,
        (x, columns): (&Tensor, Columns),
        layer: &LinearWeight,
        index: usize,
    ) {
        let Self { input, products, .. } = self;
        layer_of_columns(device, (x, columns), layer, (input, &mut products[index]));
    }

    /// products[1] = a layer of these columns of products[0].
    pub(super) fn second_product(
        &mut self,
        device: &Device,
        columns: Columns,
        layer: &LinearWeight,
    ) {
        let Self { input, products: [first, second], .. } = self;
        layer_of_columns(device, (first, columns), layer, (input, second));
    }
}

/// Decays of a token that are values of their own.
fn num_decays(block: &RecurrentSpec) -> usize {
    match block {
        RecurrentSpec::DeltaNet(net) if net.decay != Decay::OfHeads => net.decay.width(net.heads),
        _ => 0,
    }
}

fn layer_of_columns(
    device: &Device,
    (x, columns): (&Tensor, Columns),
    layer: &LinearWeight,
    (input, out): (&mut Tensor, &mut Tensor),
) {
    let (num_rows, num_inputs) = (x.num_rows(), columns.width);
    input.reshape(num_rows, num_inputs);
    out.reshape(num_rows, layer.shape().0);
    ops::copy_columns(device, (x, columns), (input, Columns::run(0, num_inputs)));
    ops::linear(device, input, layer, out);
}
