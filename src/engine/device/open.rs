//! From a configuration to a device; the kernels' sources.

use std::path::Path;

use super::cuda::{Compiler, CudaDriver, Driver, HostDriver, NO_DRIVER, SearchHints};
use super::simd::Isa;
use super::thread_pool::{ThreadPool, num_physical_cores};
use super::{Device, Gpu, GpuConfig};
use crate::simd::InstructionSet;
use vllm_batch_base::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, KvCacheDType, Quantization,
};
use vllm_batch_base::{EngineError, Setting};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../kernels/", $name)))),*]
    };
}

/// The kernels and their headers, compiled for the device at hand.
pub const KERNEL_SOURCES: &[(&str, &str)] = sources![
    "common.cuh",
    "activation.cuh",
    "attention.cuh",
    "attention_e4m3.cuh",
    "attention_params.cuh",
    "attention_work.cuh",
    "attention_splits.cuh",
    "attention_tiles.cuh",
    "logits.cuh",
    "norm.cuh",
    "ptx.cuh",
    "rotary.cuh",
    "states.cuh",
    "experts.cuh",
    "code_tiles.cuh",
    "mixed_rows.cuh",
    "by_head.cuh",
    "tiles.cuh",
    "plain_tiles.cuh",
    "weight_tiles.cuh",
    "wgmma.cuh",
    "activation.cu",
    "all_reduce.cu",
    "causal_conv.cu",
    "choose_positions.cu",
    "columns.cu",
    "copy_segments.cu",
    "count_mismatches.cu",
    "delta_rule.cu",
    "elementwise.cu",
    "embedding.cu",
    "experts.cu",
    "gather_rows.cu",
    "group_attention.cu",
    "index_maxima.cu",
    "index_scores.cu",
    "linear_by_head.cu",
    "linear_by_head_plain.cu",
    "linear_codes.cu",
    "linear_expert_codes.cu",
    "linear_experts.cu",
    "linear_experts_plain.cu",
    "logprobs.cu",
    "lora.cu",
    "mamba_scan.cu",
    "norm.cu",
    "norm_rotary_and_cache.cu",
    "paged_attention.cu",
    "paged_attention_decode.cu",
    "paged_attention_f32.cu",
    "paged_attention_wgmma.cu",
    "patches.cu",
    "quantize_rows.cu",
    "random_fill.cu",
    "rotary_and_cache.cu",
    "rows.cu",
    "sample.cu",
    "selective_scan.cu",
    "soft_cap.cu",
    "softmax.cu",
    "streams.cu",
    "take_sampled.cu",
    "text_maxima.cu",
    "token_mask.cu",
    "unseen_values.cu",
    "wide_attention.cu",
];

/// Opens the device that the configuration asks for, to compute in `dtype` a model that a GPU's
/// kernels may refuse, in words. The second part says in one line why `auto` took the CPU. Settings
/// that do not go together were refused before.
///
/// # Errors
/// The GPU that was asked for cannot be used.
pub fn open(
    config: &EngineConfig,
    dtype: DType,
    refused_by_kernels: Option<String>,
) -> Result<(Device, Option<WhyCpu>), EngineError> {
    let device = &config.device;
    let int8 = device.quantization == Some(Quantization::Int8);
    let narrow_cache = config.cache.kv_cache_dtype == KvCacheDType::Fp8;
    let check = || refused_by_kernels.clone().map_or(Ok(()), Err);
    let probe = |ordinal| check().and_then(|()| probe(device, ordinal));
    let refused = |why: String| {
        let help = if device.quantization.is_some() {
            "`settings.quantization` fp8 needs one; give int8, or leave it out, to run on the CPU"
        } else if narrow_cache {
            "`settings.kv_cache_dtype` fp8 needs one; leave it out to run on the CPU"
        } else {
            "use `settings.device` cpu, or `settings.device` auto to take the CPU where there is none"
        };
        EngineError::setting(Setting::Device, format!("the GPU cannot be used: {why}"), help)
    };
    match &device.kind {
        DeviceKind::Cpu | DeviceKind::Auto if int8 => Ok((cpu(config)?, None)),
        DeviceKind::Cpu => Ok((cpu(config)?, None)),
        DeviceKind::Auto => match probe(0) {
            Ok(driver) => Ok((gpu(config, dtype, driver)?, None)),
            Err(why) if device.quantization.is_some() || narrow_cache => Err(refused(why)),
            Err(why) => Ok((cpu(config)?, Some(why_cpu(why)))),
        },
        DeviceKind::Cuda(ordinal) => {
            let driver = probe(*ordinal).map_err(refused)?;
            Ok((gpu(config, dtype, driver)?, None))
        }
        DeviceKind::CudaShim { kernels_dir, module_dir, seed, gpu: stands_for } => {
            check().map_err(refused)?;
            let driver = HostDriver::new(kernels_dir, module_dir, *seed).as_gpu(*stands_for);
            Ok((gpu(config, dtype, Driver::Host(driver))?, None))
        }
    }
}

/// The CPU beside a GPU, for what of a model stays on the host.
///
/// # Errors
/// It has not the instructions that were asked for, or refuses the threads.
pub fn open_host(config: &EngineConfig) -> Result<Device, EngineError> {
    cpu(config)
}

/// Why `--device auto` took the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyCpu {
    /// In words for the user.
    pub reason: String,
    /// A machine with a GPU would be like this one: it has a driver, or a device.
    pub has_signs: bool,
}

/// Signs that a machine has an NVIDIA GPU, if not that it can be used: its devices, and that of
/// Windows' subsystem.
const SIGNS: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia", "/dev/dxg"];

/// Why the CPU is taken, where the GPU cannot be.
pub fn why_cpu(reason: String) -> WhyCpu {
    let has_signs = reason != NO_DRIVER || SIGNS.iter().any(|sign| Path::new(sign).exists());
    WhyCpu { reason, has_signs }
}

/// The CPU, with the instructions and the narrowing that were asked for.
fn cpu(config: &EngineConfig) -> Result<Device, EngineError> {
    let isa = config.parallel.isa.map_or_else(Isa::detect, Isa::or_its_equal);
    if !isa.is_available() {
        let mut names: Vec<_> = Isa::all_available().into_iter().map(Isa::name).collect();
        names.dedup();
        let text = format!("{} needs {}, which this CPU does not have", isa.name(), isa.needs());
        let help = format!("it has {}", names.join(", "));
        return Err(EngineError::setting(Setting::CpuIsa, text, help));
    }
    let device = Device::cpu_of(threads(config.parallel.num_threads)?, isa);
    Ok(match config.device.quantization {
        Some(Quantization::Int8) => device.with_int8(),
        _ => device,
    })
}

/// More than any machine has cores. To start as many as it takes to find the system's limit would
/// leave none to others.
const MAX_THREADS: usize = 4096;

/// The threads that were asked for, or one per physical core.
pub(super) fn threads(asked: Option<usize>) -> Result<ThreadPool, EngineError> {
    let num_threads = asked.unwrap_or_else(num_physical_cores);
    let fewer = || format!("give fewer, this machine has {} cores", num_physical_cores());
    if num_threads > MAX_THREADS {
        let text = format!("the most is {MAX_THREADS}, got {num_threads}");
        return Err(EngineError::setting(Setting::Threads, text, fewer()));
    }
    ThreadPool::try_new(num_threads).map_err(|refused| match asked {
        None => refused.into(),
        Some(_) => {
            EngineError::setting(Setting::Threads, format!("{num_threads}: {}", refused.0), fewer())
        }
    })
}

fn probe(device: &DeviceConfig, ordinal: usize) -> Result<Driver, String> {
    let compiler = Compiler::new(KERNEL_SOURCES, device.cache_dir.clone());
    CudaDriver::probe(ordinal, &hints(device), compiler).map(Driver::Cuda)
}

fn hints(device: &DeviceConfig) -> SearchHints {
    SearchHints {
        cuda_home: device.cuda_home.clone(),
        site_packages: device.site_packages.clone(),
        library_path: device.library_path.clone(),
    }
}

/// Bytes of memory of the GPU that `open` takes for a model that its kernels do not refuse; None:
/// it takes the CPU, or nothing.
pub fn memory_of_gpu(config: &EngineConfig) -> Option<u64> {
    let device = &config.device;
    if device.quantization == Some(Quantization::Int8) {
        return None;
    }
    let bytes = |ordinal| CudaDriver::memory_bytes(ordinal, &hints(device)).ok();
    match &device.kind {
        DeviceKind::Cpu => None,
        DeviceKind::Auto => bytes(0),
        DeviceKind::Cuda(ordinal) => bytes(*ordinal),
        DeviceKind::CudaShim { .. } => Some(HostDriver::TOTAL_BYTES as u64),
    }
}

/// Why the first GPU cannot be used; None: it can.
pub fn gpu_trouble(device: &DeviceConfig) -> Option<String> {
    probe(device, 0).err()
}

/// GPUs that the driver shows.
///
/// # Errors
/// Why there can be none.
pub fn num_gpus() -> Result<usize, String> {
    CudaDriver::num_gpus()
}

fn gpu(config: &EngineConfig, dtype: DType, driver: Driver) -> Result<Device, EngineError> {
    assert!(config.device.quantization != Some(Quantization::Int8), "int8 on a GPU");
    let gpu_config = GpuConfig {
        dtype,
        quantization: config.device.quantization,
        kv_cache_dtype: config.cache.kv_cache_dtype,
        enforce_eager: config.device.enforce_eager,
        cache_dir: config.device.cache_dir.clone(),
        num_threads: config.parallel.num_threads,
    };
    let (major, minor) = driver.properties().compute_capability;
    if gpu_config.quantization.is_some() && (major, minor) < (8, 9) {
        let name = &driver.properties().name;
        let text = format!("fp8 needs compute capability 8.9, and {name} has {major}.{minor}");
        return Err(EngineError::setting(Setting::Quantization, text, "leave it out"));
    }
    Ok(Device::Cuda(Box::new(Gpu::new(driver, gpu_config)?)))
}
