//! `StageRows`: what goes from one stage of a model to the next, on the host.

use vllm_batch_base::EngineError;
use vllm_batch_device::{Device, Tensor};

/// The rows of a step between two stages: the stream, and what later layers read besides it. Values
/// of 16 bits are widened, so that none changes on the way.
#[derive(Debug)]
pub struct StageRows(Vec<Vec<f32>>);

impl StageRows {
    /// The first `num_tokens` rows of each of these.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn read(
        device: &Device,
        tensors: Vec<&mut Tensor>,
        num_tokens: usize,
    ) -> Result<Self, EngineError> {
        let read = |tensor: &mut Tensor| {
            tensor.set_num_rows(num_tokens);
            device.read(tensor)
        };
        Ok(Self(tensors.into_iter().map(read).collect::<Result<_, _>>()?))
    }

    /// Writes them; rows that only pad are zeros.
    ///
    /// # Panics
    /// There are more or fewer tensors.
    pub(super) fn write(&self, device: &Device, tensors: Vec<&mut Tensor>) {
        assert_eq!(tensors.len(), self.0.len(), "stages of one model");
        for (values, tensor) in self.0.iter().zip(tensors) {
            device.write(tensor, values);
        }
    }
}
