//! What was loaded, for people and for the fingerprint of a run.

use std::collections::HashMap;
use std::sync::Arc;

use super::step_sizes::StepSizes;
use vllm_batch_base::config::DType;
use vllm_batch_checkpoint::spec::Parameters;
use vllm_batch_device::WhyCpu;

/// What was loaded, for logs and for the fingerprint of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineInfo {
    /// Weights and KV cache.
    pub dtype: DType,
    /// How a checkpoint's weights are stored, where they are quantized or a GGUF file; for people.
    pub checkpoint_format: Option<String>,
    /// Device and instruction set: outputs are byte-equal only within one kernel set.
    pub kernel_set: String,
    /// What the device is called.
    pub device_name: String,
    /// Why the device is the CPU, where a GPU would have been taken.
    pub why_cpu: Option<WhyCpu>,
    /// Where the engine did not do what was asked, in words for the user.
    pub notes: Vec<String>,
    /// Threads of the device.
    pub num_threads: usize,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: usize,
    /// Bytes of the weights, as the device holds them.
    pub weight_bytes: u64,
    /// Of tensors of a quantized checkpoint that stay codes, by name.
    pub code_bytes: Arc<HashMap<String, u64>>,
    /// How many parameters those are.
    pub parameters: Parameters,
    /// Tokens that the KV cache holds.
    pub num_cache_tokens: usize,
    /// Tokens of a block of it; 0: there are none.
    pub block_size: usize,
    /// Bytes of the KV cache.
    pub kv_cache_bytes: usize,
    /// Tokens that the host's memory holds for a GPU's KV cache.
    pub num_offloaded_tokens: usize,
    /// The largest rank of each adapter that rows may name.
    pub lora_ranks: Vec<usize>,
    /// Limits of a step.
    pub step_sizes: StepSizes,
}
