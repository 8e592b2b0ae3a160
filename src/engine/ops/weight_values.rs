//! Weights that ops read one by one, in f32 on every device: slopes and sinks of heads, taps of
//! convolutions, what scans have learned.

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{DeviceBuffer, DevicePtr};
use vllm_batch_device::{Device, bytes_of};

/// Weights in f32.
#[derive(Debug)]
pub struct WeightValues {
    host: Vec<f32>,
    /// The same on a GPU.
    on_gpu: Option<DeviceBuffer>,
}

impl WeightValues {
    /// The values on the device.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn on_device(device: &Device, values: Vec<f32>) -> Result<Self, EngineError> {
        let mut on_gpu = None;
        if let Device::Cuda(gpu) = device {
            let buffer = gpu.alloc(size_of_val(&values[..]))?;
            gpu.upload(&buffer, bytes_of(&values));
            on_gpu = Some(buffer);
        }
        Ok(Self { host: values, on_gpu })
    }

    /// All of them.
    pub(super) fn host(&self) -> &[f32] {
        &self.host
    }

    /// Where they are in a GPU's memory.
    ///
    /// # Panics
    /// They are of the CPU.
    pub(super) fn device_ptr(&self) -> DevicePtr {
        self.on_gpu.as_ref().expect("the values of a GPU").ptr()
    }
}
