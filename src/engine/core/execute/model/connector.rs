//! `Connector`: runs a `ConnectorSpec`, from rows of a vision tower's stream to embeddings of a
//! decoder's tokens, a tile at a time.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::{ConnectorSpec, ConnectorStep};
use vllm_batch_device::{Device, Precision, RowsMut, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Activation, LinearWeight, NormWeight};

/// A loaded connector.
#[derive(Debug)]
pub(super) struct Connector {
    /// Patches of a token.
    num_merged: usize,
    steps: Vec<Step>,
    /// (the decoder's hidden_size, width of the steps' rows)
    last: LinearWeight,
}

/// A step, in the spec's terms.
#[derive(Debug)]
enum Step {
    Norm(NormWeight),
    Merge,
    MeanPool,
    /// (outputs, inputs)
    Linear(LinearWeight),
    Activate(Activation),
}

/// What its steps work in, for tiles of up to T patches.
#[derive(Debug)]
pub(super) struct ConnectorBuffers {
    /// (T, width): patches of a tile by tokens.
    patches: Tensor,
    /// (T, outputs) of each product but the last, and of means; (T / patches of a token, outputs)
    /// where those are one row.
    outputs: Vec<Tensor>,
}

impl Connector {
    /// `merge_size`: patches of the side of a token.
    pub(super) fn load(
        loader: &mut Loader<'_>,
        spec: &ConnectorSpec,
        merge_size: usize,
    ) -> Result<Self, EngineError> {
        let steps = spec.steps.iter().map(|step| {
            Ok(match step {
                ConnectorStep::Norm(norm) => Step::Norm(loader.one_norm(norm)?),
                ConnectorStep::Merge => Step::Merge,
                ConnectorStep::MeanPool => Step::MeanPool,
                ConnectorStep::Linear(linear) => Step::Linear(loader.linear(linear)?),
                ConnectorStep::Activate(activation) => Step::Activate(*activation),
            })
        });
        let steps = steps.collect::<Result<_, EngineError>>()?;
        Ok(Self { num_merged: merge_size * merge_size, steps, last: loader.linear(&spec.last)? })
    }

    /// Rows of `out` = embeddings of the tokens whose patches these rows of the stream are, one
    /// token after the other.
    pub(super) fn run(
        &self,
        device: &Device,
        (stream, by_token): (&Tensor, &[u32]),
        buffers: &mut ConnectorBuffers,
        out: RowsMut<'_>,
    ) {
        let ConnectorBuffers { patches, outputs } = buffers;
        let mut outputs = outputs.iter_mut();
        patches.reshape(by_token.len(), stream.width());
        ops::gather_rows(device, stream, by_token.into(), patches);
        let mut x = patches;
        for step in &self.steps {
            match step {
                Step::Norm(norm) => ops::norm_in_place(device, x, norm),
                Step::Merge => {
                    x.reshape(x.num_rows() / self.num_merged, x.width() * self.num_merged);
                }
                Step::MeanPool => {
                    let Some(means) = outputs.next() else { unreachable!("one for each") };
                    means.reshape(x.num_rows() / self.num_merged, x.width());
                    ops::mean_rows(device, x, means);
                    x = means;
                }
                Step::Linear(weight) => {
                    let Some(product) = outputs.next() else { unreachable!("one for each") };
                    product.reshape(x.num_rows(), weight.shape().0);
                    ops::linear(device, x, weight, product);
                    x = product;
                }
                Step::Activate(activation) => ops::activate(device, *activation, x),
            }
        }
        ops::linear_rows(device, x.rows_from(0), &self.last, out, x.num_rows());
    }
}

impl ConnectorBuffers {
    /// Buffers for tiles of so many patches, rows of this width.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        connector: &Connector,
        (max_num_patches, width): (usize, usize),
    ) -> Result<Self, EngineError> {
        let mut num_rows = max_num_patches;
        let mut outputs = Vec::new();
        for step in &connector.steps {
            match step {
                Step::Merge => num_rows /= connector.num_merged,
                Step::MeanPool => {
                    num_rows /= connector.num_merged;
                    outputs.push(device.tensor(num_rows, width, Precision::Full)?);
                }
                Step::Linear(weight) => {
                    let (n, _) = weight.shape();
                    outputs.push(device.tensor(num_rows, n, Precision::Activation)?);
                }
                Step::Norm(_) | Step::Activate(_) => {}
            }
        }
        // The stream's type, whose rows it takes.
        let patches = device.tensor(max_num_patches, width, Precision::Full)?;
        Ok(Self { patches, outputs })
    }
}
