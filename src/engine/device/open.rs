//! From a configuration to a device; the kernels' sources.

use super::cuda::{Compiler, CudaDriver, Driver, HostDriver, SearchHints};
use super::simd::Isa;
use super::thread_pool::{ThreadPool, num_physical_cores};
use super::{Device, Gpu, GpuConfig};
use crate::engine::EngineError;
use crate::engine::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, KvCacheDType, Quantization, ShimGpu,
};

macro_rules! sources {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../kernels/", $name)))),*]
    };
}

/// The kernels and their headers, compiled for the device at hand.
pub const KERNEL_SOURCES: &[(&str, &str)] = sources![
    "common.cuh",
    "attention.cuh",
    "attention_params.cuh",
    "logits.cuh",
    "ptx.cuh",
    "experts.cuh",
    "tiles.cuh",
    "activation.cu",
    "columns.cu",
    "count_mismatches.cu",
    "elementwise.cu",
    "embedding.cu",
    "experts.cu",
    "gather_rows.cu",
    "linear_codes.cu",
    "linear_experts.cu",
    "linear_experts_plain.cu",
    "logprobs.cu",
    "lora.cu",
    "norm.cu",
    "paged_attention.cu",
    "paged_attention_f32.cu",
    "quantize_rows.cu",
    "random_fill.cu",
    "rotary_and_cache.cu",
    "sample.cu",
    "soft_cap.cu",
    "take_sampled.cu",
    "text_maxima.cu",
    "token_mask.cu",
];

/// Widest head that the attention kernels take.
const MAX_HEAD_DIM: usize = 256;
/// Most tokens that the sampler's kernels take (`MAX_SEGMENTS` and `UNIT` of kernels/logits.cuh).
pub const MAX_GPU_VOCAB_SIZE: usize = (1 << 19) - 1;

/// What a model asks of the kernels of a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuNeeds {
    /// Width of its heads.
    pub head_dim: usize,
    /// Tokens that are sampled from its logits; 0: none are.
    pub vocab_size: usize,
    /// A part of it that has none, in words.
    pub without_kernels: Option<&'static str>,
}

/// Opens the device that the configuration asks for, to compute in `dtype` a model with these
/// needs. The second part says in one line why `auto` took the CPU.
///
/// # Errors
/// The GPU that was asked for cannot be used.
pub fn open(
    config: &EngineConfig,
    dtype: DType,
    needs: GpuNeeds,
) -> Result<(Device, Option<String>), EngineError> {
    let device = &config.device;
    let int8 = device.quantization == Some(Quantization::Int8);
    let kv_cache_dtype = config.cache.kv_cache_dtype;
    let narrow_cache = kv_cache_dtype == KvCacheDType::Fp8;
    let check = || check_needs(dtype, kv_cache_dtype, needs);
    let probe = |ordinal| check().and_then(|()| probe(device, ordinal));
    let refused = |why: String| {
        let help = if device.quantization.is_some() {
            "--quantization fp8 needs one; give int8, or leave it out, to run on the CPU"
        } else if narrow_cache {
            "--kv-cache-dtype fp8 needs one; leave it out to run on the CPU"
        } else {
            "use --device cpu, or --device auto to take the CPU where there is no GPU"
        };
        EngineError::Config(format!("the GPU cannot be used: {why}; {help}"))
    };
    if narrow_cache && (device.kind == DeviceKind::Cpu || dtype == DType::Float32) {
        return Err(EngineError::Config(
            "--kv-cache-dtype fp8 needs an NVIDIA GPU and a 16-bit --dtype".to_owned(),
        ));
    }
    match &device.kind {
        DeviceKind::Cpu | DeviceKind::Auto if int8 => Ok((cpu(config)?, None)),
        DeviceKind::Cuda(_) | DeviceKind::CudaShim { .. } if int8 => Err(EngineError::Config(
            "--quantization int8 is for the CPU; give fp8 on a GPU, or --device cpu".to_owned(),
        )),
        DeviceKind::Cpu if device.quantization.is_some() => Err(EngineError::Config(
            "--quantization fp8 needs an NVIDIA GPU; give int8 on the CPU, or leave it out"
                .to_owned(),
        )),
        DeviceKind::Cpu => Ok((cpu(config)?, None)),
        DeviceKind::Auto => match probe(0) {
            Ok(driver) => Ok((gpu(config, dtype, driver)?, None)),
            Err(why) if device.quantization.is_some() || narrow_cache => Err(refused(why)),
            Err(why) => Ok((cpu(config)?, Some(format!("running on the CPU: {why}")))),
        },
        DeviceKind::Cuda(ordinal) => {
            let driver = probe(*ordinal).map_err(refused)?;
            Ok((gpu(config, dtype, driver)?, None))
        }
        DeviceKind::CudaShim { kernels_dir, module_dir, seed, gpu: stands_for } => {
            check().map_err(refused)?;
            let ShimGpu { compute_capability, max_smem_kb } = *stands_for;
            let driver = HostDriver::new(kernels_dir, module_dir, *seed)
                .as_gpu(compute_capability, max_smem_kb << 10);
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

/// The CPU, with the instructions and the narrowing that were asked for.
fn cpu(config: &EngineConfig) -> Result<Device, EngineError> {
    let isa = config.parallel.isa.unwrap_or_else(Isa::detect);
    if !isa.is_available() {
        let names: Vec<_> = Isa::all_available().into_iter().map(Isa::name).collect();
        return Err(EngineError::Config(format!(
            "--cpu-isa {}: this CPU does not have it; it has {}",
            isa.name(),
            names.join(", ")
        )));
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
    if num_threads > MAX_THREADS {
        return Err(EngineError::Config(format!(
            "--threads {num_threads}: the most is {MAX_THREADS}; this machine has {} cores",
            num_physical_cores()
        )));
    }
    ThreadPool::try_new(num_threads).map_err(|refused| match asked {
        None => refused.into(),
        Some(_) => EngineError::Config(format!(
            "--threads {num_threads}: {}; give fewer, this machine has {} cores",
            refused.0,
            num_physical_cores()
        )),
    })
}

fn check_needs(dtype: DType, kv_cache_dtype: KvCacheDType, needs: GpuNeeds) -> Result<(), String> {
    match needs.without_kernels {
        Some(part) => Err(format!("this model has {part}, and no kernel here computes that yet")),
        None => check_vocab_size(needs.vocab_size)
            .and_then(|()| check_head_dim(dtype, kv_cache_dtype, needs.head_dim)),
    }
}

/// The sampler's kernels keep something of each part of a row of logits in memory of fixed size.
fn check_vocab_size(vocab_size: usize) -> Result<(), String> {
    match vocab_size <= MAX_GPU_VOCAB_SIZE {
        true => Ok(()),
        false => Err(format!(
            "this model has {vocab_size} tokens, and the kernels sample from up to \
             {MAX_GPU_VOCAB_SIZE}"
        )),
    }
}

/// The GPU's attention reads heads in pieces of 16 bytes.
fn check_head_dim(
    dtype: DType,
    kv_cache_dtype: KvCacheDType,
    head_dim: usize,
) -> Result<(), String> {
    let step = 16 / kv_cache_dtype.size_bytes(dtype);
    if head_dim.is_multiple_of(step) && head_dim <= MAX_HEAD_DIM {
        return Ok(());
    }
    let cache = match kv_cache_dtype {
        KvCacheDType::Auto => "",
        KvCacheDType::Fp8 => " with an fp8 KV cache",
    };
    let dtype = dtype.name();
    Err(format!(
        "this model's head_dim is {head_dim}, and the kernels take multiples of {step} up to \
         {MAX_HEAD_DIM} in {dtype}{cache}"
    ))
}

fn probe(device: &DeviceConfig, ordinal: usize) -> Result<Driver, String> {
    let hints = SearchHints {
        cuda_home: device.cuda_home.clone(),
        site_packages: device.site_packages.clone(),
        library_path: device.library_path.clone(),
    };
    let compiler = Compiler::new(KERNEL_SOURCES, device.cache_dir.clone());
    CudaDriver::probe(ordinal, &hints, compiler).map(Driver::Cuda)
}

fn gpu(config: &EngineConfig, dtype: DType, driver: Driver) -> Result<Device, EngineError> {
    let gpu_config = GpuConfig {
        dtype,
        quantization: config.device.quantization,
        kv_cache_dtype: config.cache.kv_cache_dtype,
        enforce_eager: config.device.enforce_eager,
        cache_dir: config.device.cache_dir.clone(),
        num_threads: config.parallel.num_threads,
    };
    if gpu_config.quantization.is_some() && dtype == DType::Float32 {
        let text = "--quantization fp8 needs a 16-bit --dtype: bfloat16 or float16";
        return Err(EngineError::Config(text.to_owned()));
    }
    let (major, minor) = driver.properties().compute_capability;
    if gpu_config.quantization.is_some() && (major, minor) < (8, 9) {
        return Err(EngineError::Config(format!(
            "--quantization fp8 needs compute capability 8.9, and {} has {major}.{minor}",
            driver.properties().name
        )));
    }
    Ok(Device::Cuda(Box::new(Gpu::new(driver, gpu_config)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_kernels_are_named() {
        let without_kernels = Some("latent attention");
        let needs = GpuNeeds { head_dim: 64, vocab_size: 100, without_kernels };
        let check = |needs| check_needs(DType::BFloat16, KvCacheDType::Auto, needs);
        assert!(check(needs).unwrap_err().contains("has latent attention, and no kernel"));
        assert_eq!(check(GpuNeeds { without_kernels: None, ..needs }), Ok(()));
    }

    #[test]
    fn vocabularies_that_no_kernel_takes_are_named() {
        let check = |vocab_size| {
            let needs = GpuNeeds { head_dim: 64, vocab_size, ..GpuNeeds::default() };
            check_needs(DType::BFloat16, KvCacheDType::Auto, needs)
        };
        assert_eq!(check(524_287), Ok(()));
        let text = check(524_288).unwrap_err();
        assert!(text.contains("524288 tokens, and the kernels sample from up to 524287"), "{text}");
    }

    #[test]
    fn heads_that_no_kernel_takes_are_named() {
        let check = |head_dim, dtype, cache| check_head_dim(dtype, cache, head_dim);
        for head_dim in [16, 24, 48, 80, 96, 112, 120, 160, 192, 256] {
            assert_eq!(check(head_dim, DType::BFloat16, KvCacheDType::Auto), Ok(()));
        }
        assert_eq!(check(12, DType::Float32, KvCacheDType::Auto), Ok(()));
        assert_eq!(check(112, DType::Float16, KvCacheDType::Fp8), Ok(()));
        let text = check(120, DType::Float16, KvCacheDType::Fp8).unwrap_err();
        assert!(text.contains("head_dim is 120"), "{text}");
        assert!(
            text.contains("multiples of 16 up to 256 in float16 with an fp8 KV cache"),
            "{text}"
        );
        let text = check(20, DType::BFloat16, KvCacheDType::Auto).unwrap_err();
        assert!(text.contains("multiples of 8 up to 256 in bfloat16"), "{text}");
        assert!(check(264, DType::BFloat16, KvCacheDType::Auto).is_err());
        assert!(check(10, DType::Float32, KvCacheDType::Auto).is_err());
    }
}
