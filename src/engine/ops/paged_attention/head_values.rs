//! One number for each query head, where attention reads it: ALiBi's slopes, sinks.

use crate::engine::EngineError;
use crate::engine::device::cuda::{DeviceBuffer, DevicePtr};
use crate::engine::device::{Device, bytes_of};

/// One number for each query head.
#[derive(Debug)]
pub struct HeadValues {
    /// (num_heads)
    host: Vec<f32>,
    /// The same on a GPU.
    on_gpu: Option<DeviceBuffer>,
}

impl HeadValues {
    /// The numbers (num_heads) on the device.
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

    /// (num_heads)
    pub(super) fn of_heads(&self) -> &[f32] {
        &self.host
    }

    pub(super) fn device_ptr(&self) -> DevicePtr {
        self.on_gpu.as_ref().expect("the numbers of a GPU").ptr()
    }
}
