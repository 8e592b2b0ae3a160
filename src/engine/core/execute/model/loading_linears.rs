//! Weights of linear layers: from the tensors of their parts to packed rows.

use super::loading::Loader;
use vllm_batch_base::EngineError;
use vllm_batch_base::matrix::{SourceMatrix, SourceRows};
use vllm_batch_checkpoint::spec::{Layout, LinearSpec, NamedShape, Part, Slice, bounds_of};
use vllm_batch_ops::{AdaptedLinear, LinearBounds, LinearWeight};

impl Loader<'_> {
    /// One packed weight.
    pub(super) fn linear(&mut self, spec: &LinearSpec) -> Result<LinearWeight, EngineError> {
        let (device, dtype) = (self.device, self.dtype);
        self.packed(spec, |rows, bias| LinearWeight::load(device, dtype, rows, bias))
    }

    /// The table of tokens, which may be the output layer too.
    pub(super) fn token_table(&mut self, spec: &LinearSpec) -> Result<LinearWeight, EngineError> {
        assert!(!spec.bias, "a table has no bias");
        let (device, dtype) = (self.device, self.dtype);
        self.packed(spec, |rows, _| LinearWeight::load_values(device, dtype, rows, None))
    }

    /// What `load` makes of the rows and the bias of a layer.
    pub(super) fn packed(
        &mut self,
        spec: &LinearSpec,
        load: impl Fn(&SourceRows<'_>, Option<Vec<f32>>) -> Result<LinearWeight, EngineError>,
    ) -> Result<LinearWeight, EngineError> {
        let (rows, bias) = self.rows(spec)?;
        let weight = load(&rows, bias)?;
        drop(rows);
        // Else every weight would be in memory twice when the last one is packed.
        self.checkpoint.release();
        Ok(weight)
    }

    /// The rows and the bias of a layer, as they are stored.
    pub(super) fn rows(
        &mut self,
        spec: &LinearSpec,
    ) -> Result<(SourceRows<'_>, Option<Vec<f32>>), EngineError> {
        let mut biases = Vec::new();
        for part in spec.parts.iter().filter(|_| spec.bias) {
            match part.lacks_bias {
                true => biases.resize(biases.len() + part.rows, 0.0),
                false => biases.extend(self.bias(part)?),
            }
        }
        let share = spec.share.as_ref();
        let rows = share.and_then(|share| share.rows.as_ref());
        let adds_bias = share.is_none_or(|share| share.adds_bias);
        let bias = (spec.bias && adds_bias).then(|| {
            let biases = spec.order.arrange(biases);
            match rows {
                None => biases,
                Some(rows) => rows.iter().map(|&row| biases[row as usize]).collect(),
            }
        });
        let tensors: Vec<_> = spec.weights().collect();
        let mut matrices = self.checkpoint.matrices(&tensors)?;
        for (matrix, part) in matrices.iter_mut().zip(&spec.parts) {
            if let Some(Slice { index, count, .. }) = part.slice {
                *matrix = matrix.clone().slice(index, count);
            }
        }
        match spec.layout {
            Layout::Rows
            | Layout::Places { .. }
            | Layout::ByFrame { .. }
            | Layout::ByChannel { num_axes: 0, .. } => {}
            Layout::Transposed => {
                matrices = matrices.into_iter().map(SourceMatrix::transposed).collect();
            }
            Layout::Patches { .. } | Layout::ByChannel { .. } => {
                let parts = matrices.into_iter().zip(&spec.parts);
                matrices = parts.map(|(matrix, part)| matrix.in_rows(part.rows)).collect();
            }
        }
        if let Some(columns) = spec.layout.columns(spec.k) {
            for matrix in &mut matrices {
                *matrix = matrix.clone().columns_in_order(columns.clone());
            }
        }
        if let Some(least) = spec.least_length {
            matrices =
                matrices.into_iter().map(|matrix| matrix.columns_of_length_one(least)).collect();
        }
        if let Some(columns) = share.and_then(|share| share.columns.as_ref()) {
            matrices =
                matrices.into_iter().map(|matrix| matrix.of_columns(columns.clone())).collect();
        }
        let order = match (rows, spec.order.rows()) {
            (None, order) => order.cloned(),
            (Some(rows), None) => Some(rows.clone()),
            (Some(rows), Some(order)) => {
                Some(rows.iter().map(|&row| order[row as usize]).collect())
            }
        };
        Ok((SourceRows::from(matrices).in_order(order), bias))
    }

    /// The bias of a part.
    fn bias(&mut self, part: &Part) -> Result<Vec<f32>, EngineError> {
        let values = self.checkpoint.vector(&part.bias(), 0.01)?;
        Ok(match part.slice {
            None => values,
            Some(Slice { index, .. }) => values[index * part.rows..][..part.rows].to_vec(),
        })
    }

    /// Vectors, one after the other.
    pub(super) fn vectors(
        &mut self,
        tensors: impl Iterator<Item = NamedShape>,
        dummy: f32,
    ) -> Result<Vec<f32>, EngineError> {
        let mut values = Vec::new();
        for tensor in tensors {
            values.extend(self.checkpoint.vector(&tensor, dummy)?);
        }
        Ok(values)
    }

    /// One packed weight of a layer, narrowed where the device narrows.
    pub(super) fn layer_linear(&mut self, spec: &LinearSpec) -> Result<LinearWeight, EngineError> {
        self.linear(spec)?.quantize(self.device)
    }

    /// The same with the bounds of its inputs and outputs, and with room for adapters.
    pub(super) fn adapted_linear(
        &mut self,
        spec: &LinearSpec,
    ) -> Result<AdaptedLinear, EngineError> {
        let bounds = self.bounds(spec)?;
        Ok(AdaptedLinear { bounds, ..self.layer_linear(spec)?.into() })
    }

    fn bounds(&mut self, spec: &LinearSpec) -> Result<Option<LinearBounds>, EngineError> {
        let mut bounds: Option<LinearBounds> = None;
        for (module, part) in spec.bounded.iter().zip(&spec.parts) {
            let mut values = Vec::new();
            for (tensor, dummy) in bounds_of(module).iter().zip([f32::MIN, f32::MAX].repeat(2)) {
                values.extend(self.checkpoint.vector(tensor, dummy)?);
            }
            let inputs = [values[0], values[1]];
            let all = bounds.get_or_insert_with(|| LinearBounds { inputs, outputs: Vec::new() });
            if all.inputs != inputs {
                return Err(EngineError::Model(format!(
                    "{module}: its inputs have other bounds than those of the layers that read the \
                     same; help: `settings.language_model_only` runs the model for text"
                )));
            }
            all.outputs.push((part.rows, [values[2], values[3]]));
        }
        Ok(bounds)
    }
}
