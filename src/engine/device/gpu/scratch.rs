//! Memory that linear layers use one after the other, and which of them may use it.

use std::collections::HashMap;

use super::{Defines, Gpu, MatmulShape, lock};
use crate::cuda::{DeviceBuffer, DevicePtr};
use vllm_batch_base::EngineError;

#[derive(Default)]
pub(super) struct Scratch {
    /// Quantized rows of an input, and their scales.
    fp8: Option<(DeviceBuffer, DeviceBuffer)>,
    /// The widened weights of a layer of codes.
    weights: Option<DeviceBuffer>,
    /// Whether layers over codes, by the constants of their kernels, have the bits of their widened
    /// weights.
    trials: HashMap<(MatmulShape, Vec<Defines>), bool>,
}

impl Gpu {
    /// Makes room for `max_rows` quantized rows of `width`.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn reserve_fp8(&self, max_rows: usize, width: usize) -> Result<(), EngineError> {
        let rows = self.max_padded_rows(max_rows);
        let fp8 = &mut lock(&self.scratch).fp8;
        if fp8.as_ref().is_none_or(|(values, _)| values.bytes() < rows * width) {
            *fp8 = Some((self.alloc(rows * width)?, self.alloc(rows * 4)?));
        }
        Ok(())
    }

    /// Room for the quantized rows of one linear layer's input, and for their scales.
    pub fn fp8_scratch(&self) -> (DevicePtr, DevicePtr) {
        let scratch = lock(&self.scratch);
        let (rows, scales) = scratch.fp8.as_ref().expect("reserved when the model was loaded");
        (rows.ptr(), scales.ptr())
    }

    /// Makes room for the widened weights of a layer, in bytes.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn reserve_widened(&self, bytes: usize) -> Result<(), EngineError> {
        let weights = &mut lock(&self.scratch).weights;
        if weights.as_ref().is_none_or(|weights| weights.bytes() < bytes) {
            *weights = Some(self.alloc(bytes)?);
        }
        Ok(())
    }

    /// Room for the widened weights of one layer.
    pub fn widened_scratch(&self) -> DevicePtr {
        let scratch = lock(&self.scratch);
        scratch.weights.as_ref().expect("reserved when the model was loaded").ptr()
    }

    /// Result of a trial of such a layer, which is made once.
    ///
    /// # Errors
    /// Those of the trial.
    pub fn tried(
        &self,
        shape: MatmulShape,
        kinds: Vec<Defines>,
        trial: impl FnOnce() -> Result<bool, EngineError>,
    ) -> Result<bool, EngineError> {
        let key = (shape, kinds);
        if let Some(&known) = lock(&self.scratch).trials.get(&key) {
            return Ok(known);
        }
        let has_equal_bits = trial()?;
        lock(&self.scratch).trials.insert(key, has_equal_bits);
        Ok(has_equal_bits)
    }
}
