//! `--prefill-kernel wgmma` over a whole model on the shim of Hopper: the bits of `mma.sync`.

use std::fs;

use tempfile::TempDir;
use vllm_batch::engine::base::config::{
    DType, DeviceKind, EngineConfig, LoadFormat, PrefillKernel, ShimGpu,
};
use vllm_batch::engine::core::Engine;

use crate::cuda_engine::invariance::bits;
use crate::cuda_engine::rows::rows;
use crate::cuda_engine::{config, golden_dir, run};
use crate::gpu;

/// A Llama with heads of 64, whose weights are made up; on such a GPU. None: there is no shim.
fn made_up(seed: u64, stands_for: ShimGpu) -> Option<(TempDir, EngineConfig)> {
    let mut config = config("llama2", DType::BFloat16, &gpu::device_as(seed, stands_for)?);
    let folder = tempfile::tempdir().expect("a folder");
    let from = golden_dir().join("llama2");
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).expect("a file");
    }
    let text = fs::read_to_string(from.join("config.json")).expect("a file");
    let text = text.replace("\"head_dim\": 16", "\"head_dim\": 64");
    let text = text.replace("\"num_key_value_heads\": 3", "\"num_key_value_heads\": 1");
    fs::write(folder.path().join("config.json"), text).expect("a file");
    config.model.model_dir = folder.path().to_owned();
    config.model.load_format = LoadFormat::Dummy;
    config.parallel.num_threads = Some(1);
    Some((folder, config))
}

#[test]
fn rows_have_the_same_bits_with_prompts_by_wgmma() {
    let Some((_folder, mut config)) = made_up(1200, ShimGpu::default()) else { return };
    let mut outputs = Vec::new();
    for kernel in [PrefillKernel::MmaSync, PrefillKernel::Wgmma] {
        config.device.prefill_kernel = kernel;
        let mut engine = Engine::load(&config).unwrap_or_else(|error| panic!("{error}"));
        outputs.push(run(&mut engine, rows()));
    }
    let [expected, got] = &outputs[..] else { unreachable!("two") };
    for (got, expected) in got.iter().zip(expected) {
        assert!(bits(got) == bits(expected), "row {}", got.request_id);
    }
}

#[test]
fn wgmma_is_refused_by_name_on_other_gpus_and_heads() {
    let ampere = ShimGpu { compute_capability: (8, 0), max_smem_kb: 163, ..ShimGpu::default() };
    let Some((_folder, mut config)) = made_up(1201, ampere) else { return };
    config.device.prefill_kernel = PrefillKernel::Wgmma;
    let refused = |config: &EngineConfig| Engine::load(config).err().expect("refused").to_string();
    let text = refused(&config);
    assert!(text.contains("prompts cannot be computed by wgmma: host shim has"), "{text}");
    config.model.model_dir = golden_dir().join("llama2");
    config.model.load_format = LoadFormat::Auto;
    if let DeviceKind::CudaShim { gpu, .. } = &mut config.device.kind {
        *gpu = ShimGpu::default();
    }
    let text = refused(&config);
    assert!(text.contains("the kernel takes no heads of 16"), "{text}");
}
