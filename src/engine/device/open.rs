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
    "attention_splits.cuh",
    "attention_tiles.cuh",
    "logits.cuh",
    "norm.cuh",
    "ptx.cuh",
    "rotary.cuh",
    "states.cuh",
    "experts.cuh",
    "by_head.cuh",
    "tiles.cuh",
    "plain_tiles.cuh",
    "weight_tiles.cuh",
    "wgmma.cuh",
    "activation.cu",
    "all_reduce.cu",
    "causal_conv.cu",
    "columns.cu",
    "copy_segments.cu",
    "count_mismatches.cu",
    "delta_rule.cu",
    "elementwise.cu",
    "embedding.cu",
    "experts.cu",
    "gather_rows.cu",
    "linear_by_head.cu",
    "linear_by_head_plain.cu",
    "linear_codes.cu",
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
    "quantize_rows.cu",
    "random_fill.cu",
    "rotary_and_cache.cu",
    "sample.cu",
    "soft_cap.cu",
    "take_sampled.cu",
    "text_maxima.cu",
    "token_mask.cu",
    "unseen_values.cu",
    "wide_attention.cu",
];

/// Widest head that kernels/paged_attention.cu takes, and with it attention in texts and a cache of
/// E4M3. Wider ones, and latents, are kernels/wide_attention.cu's.
pub const MAX_NARROW_HEAD_DIM: usize = 256;
/// Widest head that any attention kernel takes.
const MAX_HEAD_DIM: usize = 576;
/// Most tokens that the sampler's kernels take (`MAX_SEGMENTS` and `UNIT` of kernels/logits.cuh).
pub const MAX_GPU_VOCAB_SIZE: usize = (1 << 19) - 1;

/// Widths of the heads of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadWidths {
    /// Width of a K head.
    pub head_dim: usize,
    /// Width of the V of a latent, the last values of K; `None`: V is as wide as K, and apart.
    pub latent_dim: Option<usize>,
    /// Scores have biases, or heads have sinks.
    pub has_biases: bool,
}

/// Needs of a model for the kernels of a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuNeeds {
    /// Widths of its heads, of every kind of layer.
    pub heads: Vec<HeadWidths>,
    /// Whether its sequences are whole texts.
    pub is_of_texts: bool,
    /// Tokens that are sampled from its logits; 0: none are.
    pub vocab_size: usize,
    /// A part of it that has none, in words.
    pub without_kernels: Option<&'static str>,
}

/// Opens the device that the configuration asks for, to compute in `dtype` a model with these
/// needs. The second part says in one line why `auto` took the CPU. Settings that do not go
/// together were refused before.
///
/// # Errors
/// The GPU that was asked for cannot be used.
pub fn open(
    config: &EngineConfig,
    dtype: DType,
    needs: GpuNeeds,
) -> Result<(Device, Option<WhyCpu>), EngineError> {
    let device = &config.device;
    let int8 = device.quantization == Some(Quantization::Int8);
    let kv_cache_dtype = config.cache.kv_cache_dtype;
    let narrow_cache = kv_cache_dtype == KvCacheDType::Fp8;
    let check = || check_needs(dtype, kv_cache_dtype, &needs);
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

fn check_needs(dtype: DType, kv_cache_dtype: KvCacheDType, needs: &GpuNeeds) -> Result<(), String> {
    if let Some(part) = needs.without_kernels {
        return Err(format!("this model has {part}, and no kernel here computes that yet"));
    }
    check_vocab_size(needs.vocab_size)?;
    let check =
        |heads: &HeadWidths| check_heads((dtype, kv_cache_dtype), *heads, needs.is_of_texts);
    needs.heads.iter().try_for_each(check)
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
fn check_heads(
    (dtype, kv_cache_dtype): (DType, KvCacheDType),
    heads: HeadWidths,
    is_of_texts: bool,
) -> Result<(), String> {
    let HeadWidths { head_dim, latent_dim, has_biases } = heads;
    let (is_narrow, name) = (kv_cache_dtype == KvCacheDType::Fp8, dtype.name());
    let cache = if is_narrow { " with an fp8 KV cache" } else { "" };
    assert!(!is_narrow || latent_dim.is_none(), "latents in fp8, which no kernel takes");
    let step = 16 / kv_cache_dtype.size_bytes(dtype);
    let most = if is_narrow || is_of_texts { MAX_NARROW_HEAD_DIM } else { MAX_HEAD_DIM };
    if head_dim > most || !head_dim.is_multiple_of(step) {
        return Err(format!(
            "this model's head_dim is {head_dim}, and the kernels take multiples of {step} up to \
             {most} in {name}{cache}"
        ));
    }
    let is_wide = latent_dim.is_some() || head_dim > MAX_NARROW_HEAD_DIM;
    if is_wide && has_biases && dtype != DType::Float32 {
        return Err(format!(
            "this model has ALiBi or sinks in heads of {head_dim}, and the kernels take these up \
             to {MAX_NARROW_HEAD_DIM} in {name}"
        ));
    }
    match latent_dim.filter(|width| !width.is_multiple_of(step)) {
        None => Ok(()),
        Some(width) => Err(format!(
            "this model's kv_lora_rank is {width}, and the kernels take multiples of {step} in \
             {name}"
        )),
    }
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

/// Bytes of memory of the GPU that `open` takes; None: it takes the CPU, or nothing.
pub fn memory_of_gpu(config: &EngineConfig, dtype: DType, needs: &GpuNeeds) -> Option<u64> {
    let device = &config.device;
    if device.quantization == Some(Quantization::Int8) {
        return None;
    }
    check_needs(dtype, config.cache.kv_cache_dtype, needs).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_without_kernels_are_named() {
        let without_kernels = Some("delta nets");
        let check = |needs: &GpuNeeds| check_needs(DType::BFloat16, KvCacheDType::Auto, needs);
        let needs = GpuNeeds { without_kernels, ..GpuNeeds::default() };
        assert!(check(&needs).unwrap_err().contains("has delta nets, and no kernel"));
        assert_eq!(check(&GpuNeeds { without_kernels: None, ..needs }), Ok(()));
    }

    #[test]
    fn vocabularies_that_no_kernel_takes_are_named() {
        let check = |vocab_size| {
            let needs = GpuNeeds { vocab_size, ..GpuNeeds::default() };
            check_needs(DType::BFloat16, KvCacheDType::Auto, &needs)
        };
        assert_eq!(check(524_287), Ok(()));
        let text = check(524_288).unwrap_err();
        assert!(text.contains("524288 tokens, and the kernels sample from up to 524287"), "{text}");
    }

    /// As the only layers of their kind, behind others that every kernel takes.
    fn check_widths(
        (head_dim, latent_dim): (usize, Option<usize>),
        dtype: DType,
        cache: KvCacheDType,
        is_of_texts: bool,
    ) -> Result<(), String> {
        let usual = HeadWidths { head_dim: 64, has_biases: true, ..HeadWidths::default() };
        let heads = vec![usual, HeadWidths { head_dim, latent_dim, has_biases: false }];
        check_needs(dtype, cache, &GpuNeeds { heads, is_of_texts, ..GpuNeeds::default() })
    }

    #[test]
    fn heads_that_no_kernel_takes_are_named() {
        let check = |head_dim, dtype, cache| check_widths((head_dim, None), dtype, cache, false);
        for head_dim in [16, 24, 48, 80, 96, 112, 120, 160, 192, 256, 264, 512, 576] {
            assert_eq!(check(head_dim, DType::BFloat16, KvCacheDType::Auto), Ok(()));
        }
        assert_eq!(check(12, DType::Float32, KvCacheDType::Auto), Ok(()));
        assert_eq!(check(112, DType::Float16, KvCacheDType::Fp8), Ok(()));
        let text = check(120, DType::Float16, KvCacheDType::Fp8).unwrap_err();
        assert!(text.contains("head_dim is 120"), "{text}");
        let most = "multiples of 16 up to 256 in float16 with an fp8 KV cache";
        assert!(text.contains(most), "{text}");
        assert!(check(512, DType::Float16, KvCacheDType::Fp8).unwrap_err().contains(most));
        let text = check(20, DType::BFloat16, KvCacheDType::Auto).unwrap_err();
        assert!(text.contains("multiples of 8 up to 576 in bfloat16"), "{text}");
        assert!(check(584, DType::BFloat16, KvCacheDType::Auto).is_err());
        assert!(check(10, DType::Float32, KvCacheDType::Auto).is_err());
        let of_texts = check_widths((264, None), DType::BFloat16, KvCacheDType::Auto, true);
        assert!(of_texts.unwrap_err().contains("multiples of 8 up to 256 in bfloat16"));
        let heads = vec![HeadWidths { head_dim: 512, latent_dim: None, has_biases: true }];
        let needs = GpuNeeds { heads, ..GpuNeeds::default() };
        let text = check_needs(DType::BFloat16, KvCacheDType::Auto, &needs).unwrap_err();
        assert!(text.contains("sinks in heads of 512") && text.contains("up to 256"), "{text}");
        assert_eq!(check_needs(DType::Float32, KvCacheDType::Auto, &needs), Ok(()));
    }

    #[test]
    fn latents_that_no_kernel_takes_are_named() {
        let check = |widths, cache| check_widths(widths, DType::BFloat16, cache, false);
        assert_eq!(check((576, Some(512)), KvCacheDType::Auto), Ok(()));
        let text = check((576, Some(508)), KvCacheDType::Auto).unwrap_err();
        assert!(
            text.contains("kv_lora_rank is 508, and the kernels take multiples of 8"),
            "{text}"
        );
    }
}
