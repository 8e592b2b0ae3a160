//! What several GPUs do not share yet. The one place that says so, but for parts of models, of
//! which `DecoderSpec::of_rank` knows.

use crate::load::model_summary::ModelSummary;
use vllm_batch_base::config::{DeviceKind, EngineConfig, Engines};

/// What of a configuration or a checkpoint ranks do not take, in words; None: they take it.
pub(super) fn what(config: &EngineConfig, summary: &ModelSummary) -> Option<String> {
    let is_gguf = summary.gguf_types.is_some();
    let flags = [
        (config.parallel.engines != Engines::Number(1), "--data-parallel-size"),
        (config.speculation.is_some(), "--speculative-config"),
        (!config.lora.modules.is_empty() || config.lora.merged.is_some(), "adapters"),
        (config.cache.kv_offloading_bytes.is_some(), "--kv-offloading-size"),
        (config.device.quantization.is_some(), "--quantization"),
        (summary.quantization.is_some(), "a quantized checkpoint"),
        (is_gguf, "a GGUF file"),
    ];
    if let Some((_, flag)) = flags.into_iter().find(|(is_there, _)| *is_there) {
        return Some(format!("not yet with {flag}; leave out one of the two"));
    }
    let is_cpu = config.device.kind == DeviceKind::Cpu;
    is_cpu.then(|| "it is for GPUs, and the CPU computes; leave it out".to_owned())
}
