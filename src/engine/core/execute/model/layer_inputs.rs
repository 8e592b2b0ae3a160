//! Inputs that layers have besides the stream: how they are made, once a step, and the blocks that
//! read them.

use super::loading::Loader;
use super::stream::Stream;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Heads;
use vllm_batch_checkpoint::spec::{DecoderSpec, LayerInputsSpec, SideBlockSpec};
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_ops as ops;
use vllm_batch_ops::{Gate, LinearWeight, NormWeight, Step};

/// Weights of what makes the inputs.
#[derive(Debug)]
pub(super) struct LayerInputsWeights {
    table: LinearWeight,
    table_scale: f32,
    projection: LinearWeight,
    norm: NormWeight,
}

/// Weights of a block that reads them.
#[derive(Debug)]
pub(super) struct SideBlockWeights {
    gate: LinearWeight,
    out: LinearWeight,
    norm: NormWeight,
}

impl LayerInputsWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        [&self.projection].into_iter()
    }
}

impl SideBlockWeights {
    /// Its linear layers.
    pub(super) fn linears(&self) -> impl Iterator<Item = &LinearWeight> {
        [&self.gate, &self.out].into_iter()
    }
}

impl Loader<'_> {
    /// The weights of what makes inputs.
    pub(super) fn layer_inputs(
        &mut self,
        spec: &LayerInputsSpec,
    ) -> Result<LayerInputsWeights, EngineError> {
        Ok(LayerInputsWeights {
            table: self.token_table(&spec.table)?,
            table_scale: spec.table_scale.of_dtype(self.dtype),
            projection: self.linear(&spec.projection)?,
            norm: self.the_norm(&spec.norm)?,
        })
    }

    /// The weights of a block that reads them.
    pub(super) fn side_block(
        &mut self,
        spec: &SideBlockSpec,
    ) -> Result<SideBlockWeights, EngineError> {
        Ok(SideBlockWeights {
            gate: self.layer_linear(&spec.gate)?,
            out: self.layer_linear(&spec.out)?,
            norm: self.the_norm(&spec.norm)?,
        })
    }
}

/// The inputs of L layers, of width W, for steps of T tokens.
#[derive(Debug)]
pub(super) struct LayerInputs {
    /// (T, L * W)
    values: Tensor,
    /// (T, L * W) what the projection gives.
    projected: Tensor,
    /// (T, W) what a block works in.
    gated: Tensor,
    /// (T, hidden_size) the stream as linear layers read it, where that is another type than its
    /// own.
    narrowed: Option<Tensor>,
}

impl LayerInputs {
    /// Room for them; None: no layer has any.
    ///
    /// # Errors
    /// The device has no memory for them.
    pub(super) fn new(
        device: &Device,
        spec: &DecoderSpec,
        num_tokens: usize,
    ) -> Result<Option<Self>, EngineError> {
        let Some(inputs) = &spec.embedding.of_layers else { return Ok(None) };
        let per_token = |width| device.tensor(num_tokens, width, Precision::Activation);
        let (all, one) = (inputs.table.k, inputs.norm.width());
        let is_narrowed = device.activation_dtype() != DType::Float32;
        Ok(Some(Self {
            values: per_token(all)?,
            projected: per_token(all)?,
            gated: per_token(one)?,
            narrowed: is_narrowed.then(|| per_token(spec.hidden_size())).transpose()?,
        }))
    }

    /// What later stages go on with.
    pub(super) fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// Makes those of a step, whose embeddings are the stream.
    pub(super) fn begin(
        &mut self,
        device: &Device,
        (spec, weights): (&LayerInputsSpec, &LayerInputsWeights),
        (step, embedded): (Step<'_>, &Tensor),
    ) {
        let Self { values, projected, narrowed, .. } = self;
        let (width, head_dim) = (spec.table.k, spec.norm.width());
        let of_layers = Heads { start: 0, num_heads: width / head_dim, head_dim };
        values.set_num_rows(step.num_rows());
        projected.set_num_rows(step.num_rows());
        let scale = Some(weights.table_scale);
        ops::embedding(device, step.input_ids(), &weights.table, scale, values);
        let embedded = as_input(device, embedded, narrowed);
        ops::linear(device, embedded, &weights.projection, projected);
        ops::scale(device, projected, spec.projection_scale);
        ops::norm_heads(device, projected, of_layers, &weights.norm);
        ops::add(device, values, projected);
        ops::scale(device, values, spec.sum_scale);
    }

    /// Leaves what the block of a layer adds to the stream in its delta.
    pub(super) fn side_block(
        &mut self,
        device: &Device,
        (layer, spec): (usize, &SideBlockSpec),
        weights: &SideBlockWeights,
        stream: &mut Stream,
    ) {
        let Self { values, gated, narrowed, .. } = self;
        stream.settle(device);
        gated.set_num_rows(stream.residual.num_rows());
        let residual = as_input(device, &stream.residual, narrowed);
        ops::linear(device, residual, &weights.gate, gated);
        ops::activate(device, spec.activation, gated);
        let first = layer * gated.width();
        ops::gate_columns(device, gated, (values, first), Gate::Plain);
        ops::linear(device, gated, &weights.out, &mut stream.delta);
        ops::norm_in_place(device, &mut stream.delta, &weights.norm);
        stream.has_delta = true;
    }
}

/// The stream as linear layers read it.
fn as_input<'a>(
    device: &Device,
    stream: &'a Tensor,
    narrowed: &'a mut Option<Tensor>,
) -> &'a Tensor {
    let Some(narrowed) = narrowed else { return stream };
    ops::copy(device, stream, narrowed);
    narrowed
}
