//! Whole models on the GPU's kernels: against the CPU in the same dtype, with the same bits however
//! they are run, and when the device fails. `tests/golden.rs` has them against transformers in
//! float32.

mod aborts;
mod against_cpu;
mod data_parallel;
mod device_choice;
pub mod failure;
mod images;
mod invariance;
mod kernel_times;
mod loras;
mod parts;
mod prefill_kernel;
mod rows;
mod stages;
mod tensor_parallel;

use std::path::{Path, PathBuf};

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{RequestOutput, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, EngineConfig, GenerationConfigSource, ModelConfig,
    SchedulerConfig,
};
use vllm_batch::engine::core::Engine;

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden")
}

/// One of the golden models, in small steps.
fn config(family: &str, dtype: DType, device: &DeviceConfig) -> EngineConfig {
    EngineConfig {
        model: ModelConfig {
            model_dir: golden_dir().join(family),
            dtype: Some(dtype),
            generation_config: GenerationConfigSource::Vllm,
            ..ModelConfig::default()
        },
        cache: CacheConfig {
            block_size: Some(16),
            num_blocks: Some(128),
            ..CacheConfig::default()
        },
        scheduler: SchedulerConfig {
            max_num_seqs: Some(16),
            max_num_batched_tokens: Some(64),
            max_num_prompt_logits: 64,
            ..SchedulerConfig::default()
        },
        device: device.clone(),
        ..EngineConfig::default()
    }
}

/// Outputs in the order of the rows.
fn run(engine: &mut Engine, rows: Vec<(Prompt, SamplingParams)>) -> Vec<RequestOutput> {
    let processor = engine.input_processor();
    for (index, (prompt, params)) in rows.into_iter().enumerate() {
        let request = processor.process(index as u64, prompt, params, RowKey(index as u64));
        engine.add_request(request.expect("a row that can be answered"));
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the device works"));
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}
