//! The GPU of device tests: the CPU shim, or a real one where VLLM_BATCH_TEST_DEVICE=cuda says so
//! (scripts/gpu-check).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vllm_batch::engine::base::config::{DeviceConfig, DeviceKind, ShimGpu};

/// Whether tests run on a real GPU.
#[expect(clippy::disallowed_methods, reason = "the environment names the device of tests only")]
pub fn is_real() -> bool {
    std::env::var_os("VLLM_BATCH_TEST_DEVICE").is_some_and(|device| device == "cuda")
}

/// The device, or None after a line that says why the test is skipped.
pub fn device(seed: u64) -> Option<DeviceConfig> {
    if is_real() {
        return Some(real());
    }
    if !has_compiler() {
        println!("SKIP: the CPU shim of the GPU's kernels is built with g++, which is not here");
        return None;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kind = DeviceKind::CudaShim {
        kernels_dir: root.join("kernels"),
        module_dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("shim"),
        seed,
        gpu: ShimGpu::default(),
    };
    Some(DeviceConfig { kind, ..DeviceConfig::default() })
}

/// The shim in place of this GPU; None where a real one is tested, or there is no shim.
pub fn device_as(seed: u64, stands_for: ShimGpu) -> Option<DeviceConfig> {
    let device = device(seed)?;
    let DeviceKind::CudaShim { kernels_dir, module_dir, .. } = device.kind else { return None };
    let kind = DeviceKind::CudaShim { kernels_dir, module_dir, seed, gpu: stands_for };
    Some(DeviceConfig { kind, ..DeviceConfig::default() })
}

/// The first GPU; its libraries are found as the program finds them.
#[expect(clippy::disallowed_methods, reason = "the environment names the device of tests only")]
fn real() -> DeviceConfig {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let library_path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    DeviceConfig {
        kind: DeviceKind::Cuda(0),
        cuda_home: variable("CUDA_HOME").map(PathBuf::from),
        library_path: std::env::split_paths(&library_path).collect(),
        cache_dir: variable("XDG_CACHE_HOME").map(PathBuf::from),
        ..DeviceConfig::default()
    }
}

fn has_compiler() -> bool {
    let mut command = Command::new("g++");
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
