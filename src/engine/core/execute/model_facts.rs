//! `ModelFacts`: what is known of a model once it is loaded, on a device or in stages.

use std::collections::HashMap;
use std::sync::Arc;

use super::model_executor::ModelExecutor;
use vllm_batch_device::{Device, KernelSet, WhyCpu};

/// What is known of a model that is loaded, or of a stage of one.
#[derive(Clone, Debug)]
pub struct ModelFacts {
    /// Why it is on the CPU where nobody asked for it.
    pub why_cpu: Option<WhyCpu>,
    /// Those of one device with all layers.
    pub kernels: KernelSet,
    /// Devices, in words.
    pub device_name: String,
    /// Threads of the CPU.
    pub num_threads: usize,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// Bytes of the tensors that stay codes, by name.
    pub code_bytes: Arc<HashMap<String, u64>>,
    /// Blocks of an engine, in each stage.
    pub num_blocks: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Bytes of an engine's blocks, in all stages.
    pub kv_cache_bytes: usize,
    /// Blocks in the host's memory.
    pub num_host_blocks: usize,
    /// The largest rank of each adapter.
    pub lora_ranks: Vec<usize>,
    /// What was done otherwise than asked, for people to read.
    pub notes: Vec<String>,
    /// A block has the states of recurrent layers.
    pub has_states: bool,
}

impl ModelFacts {
    /// Of what is loaded on this device, with a KV cache of elements of so many bytes. Takes its
    /// notes.
    pub fn of(executor: &mut ModelExecutor, device: &Device, element_bytes: usize) -> Self {
        let shape = executor.cache_shape();
        Self {
            why_cpu: None,
            kernels: device.kernels(),
            device_name: device.name(),
            num_threads: device.num_threads(),
            weight_bytes: executor.weight_bytes(),
            code_bytes: executor.code_bytes(),
            num_blocks: shape.num_blocks,
            block_size: shape.block_size,
            kv_cache_bytes: shape.num_bytes(element_bytes),
            num_host_blocks: executor.num_host_blocks(),
            lora_ranks: executor.loras().ranks(),
            notes: executor.take_notes(),
            has_states: shape.states.width > 0,
        }
    }
}
