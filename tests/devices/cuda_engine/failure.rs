//! A device that fails in the middle of a run ends as `EngineError::Device`, never as rows. The
//! shim fails on demand; the command line cannot name it, so its exit code 5 for this error is
//! tested where errors are (`src/cli/error.rs`).

use std::path::{Path, PathBuf};

use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{DType, DeviceConfig, DeviceKind, EngineConfig};
use vllm_batch::engine::core::Engine;

use crate::cuda_engine::config;
use crate::cuda_engine::rows::rows;
use crate::gpu;

/// The shim over a copy of the kernels, in which `change` has its way with one file. The copy has
/// one place per test, so that what was built of the others is found by the next run.
pub fn broken(test: &str, file: &str, change: impl Fn(&Path)) -> Option<DeviceConfig> {
    if gpu::is_real() {
        println!("SKIP: a real GPU does not fail on demand");
        return None;
    }
    let DeviceKind::CudaShim { kernels_dir: from, module_dir, seed, gpu } = gpu::device(0)?.kind
    else {
        return None;
    };
    let kernels_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken").join(test);
    copy(&from, &kernels_dir);
    change(&kernels_dir.join(file));
    let kind = DeviceKind::CudaShim { kernels_dir, module_dir, seed, gpu };
    Some(DeviceConfig { kind, ..DeviceConfig::default() })
}

pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path: PathBuf = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}

fn llama2(device: &DeviceConfig) -> EngineConfig {
    config("llama2", DType::Float32, device)
}

/// The error that ends a run of a row.
pub fn error_of_run(config: &EngineConfig) -> EngineError {
    let mut engine = match Engine::load(config) {
        Ok(engine) => engine,
        Err(error) => return error,
    };
    let processor = engine.input_processor();
    let (prompt, params) = rows().swap_remove(6);
    let key = vllm_batch::engine::api::request::RowKey(0);
    engine.add_request(processor.process(0, prompt, params, key).unwrap());
    loop {
        match engine.step() {
            Ok(outputs) => assert!(outputs.is_empty(), "an answer from a device that failed"),
            Err(error) => return error,
        }
    }
}

#[track_caller]
fn assert_device_error(error: &EngineError, part: &str) {
    assert!(matches!(error, EngineError::Device(_)), "{error:?}");
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn a_kernel_that_is_missing_ends_the_run() {
    let broken = broken("missing", "sample.cu", |path| std::fs::remove_file(path).unwrap());
    let Some(device) = broken else { return };
    assert_device_error(&error_of_run(&llama2(&device)), "sample");
}

#[test]
fn a_kernel_that_does_not_compile_ends_the_run() {
    let text = "#error broken on purpose\n";
    let broken = broken("invalid", "norm.cu", |path| std::fs::write(path, text).unwrap());
    let Some(device) = broken else { return };
    assert_device_error(&error_of_run(&llama2(&device)), "broken on purpose");
}

/// A device that fails in steps of more than eight tokens: not in the one that warms it up.
pub fn failing_later(test: &str) -> Option<DeviceConfig> {
    let fails = "add_norm(float* residual, const T* delta, const float* weight, const float* bias, \
                 float eps,\n         u32 layer_norm, T* out, u32 width) {\n";
    broken(test, "norm.cu", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let divergent = "  if (gridDim.x > 8 && threadIdx.x > 0) __syncthreads();\n";
        assert_eq!(text.matches(fails).count(), 1, "the kernel is written anew");
        std::fs::write(path, text.replace(fails, &format!("{fails}{divergent}"))).unwrap();
    })
}

#[test]
fn a_kernel_that_fails_in_a_later_step_ends_the_run() {
    let Some(device) = failing_later("divergent") else { return };
    assert!(Engine::load(&llama2(&device)).is_ok(), "it fails later");
    assert_device_error(&error_of_run(&llama2(&device)), "add_norm");
}

#[test]
fn a_cache_that_does_not_fit_is_a_configuration_error() {
    let Some(device) = gpu::device(0) else { return };
    let mut config = config("llama2", DType::Float32, &device);
    config.cache.kv_cache_memory_bytes = Some(1 << 45);
    config.cache.num_blocks = None;
    let error = Engine::load(&config).err().expect("32 TiB are not there");
    assert!(matches!(error, EngineError::Config(_)), "{error:?}");
    assert!(error.to_string().contains("kv_cache_memory_bytes"), "{error}");
}
