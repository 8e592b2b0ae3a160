//! Blocks of a GPU's KV cache in the host's memory, which the GPU reads and writes by itself.

use super::{KvCacheShape, starts};
use crate::Gpu;
use crate::cuda::{DevicePtr, PinnedBuffer};
use vllm_batch_base::EngineError;

/// They lie as those of the device: K of all layers, V of all layers, states of all layers.
#[derive(Debug)]
pub(super) struct HostBlocks {
    shape: KvCacheShape,
    starts: Vec<[usize; 2]>,
    element_bytes: usize,
    values: [PinnedBuffer; 2],
    states: PinnedBuffer,
}

impl HostBlocks {
    /// So many blocks of these sizes.
    pub(super) fn new(
        gpu: &Gpu,
        shape: KvCacheShape,
        element_bytes: usize,
    ) -> Result<Self, EngineError> {
        let starts = starts(&shape);
        let [k, v] = starts[shape.layers.len()].map(|len| len.saturating_mul(element_bytes));
        let states = shape.num_blocks.saturating_mul(shape.states.block_len());
        let values = [gpu.alloc_on_host(k)?, gpu.alloc_on_host(v)?];
        let states = gpu.alloc_on_host(states.saturating_mul(size_of::<f32>()))?;
        Ok(Self { shape, starts, element_bytes, values, states })
    }

    /// Blocks.
    pub(super) fn num_blocks(&self) -> usize {
        self.shape.num_blocks
    }

    /// Where K and V of a layer begin, as a GPU sees them.
    pub(super) fn layer_ptrs(&self, layer: usize) -> [DevicePtr; 2] {
        let [k, v] = self.starts[layer].map(|start| start * self.element_bytes);
        [self.values[0].device_ptr().offset(k), self.values[1].device_ptr().offset(v)]
    }

    /// Where the states of a layer begin.
    pub(super) fn state_ptr(&self, layer: usize) -> DevicePtr {
        let len = self.shape.num_blocks * self.shape.states.width;
        self.states.device_ptr().offset(layer * len * size_of::<f32>())
    }
}
