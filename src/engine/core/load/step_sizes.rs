//! How large steps are where nobody said: a function of the device, and the one place that decides
//! it. Bytes of rows do not depend on it.

use vllm_batch_base::config::{DType, EngineConfig, SchedulerConfig};
use vllm_batch_device as device;
use vllm_batch_device::GpuNeeds;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

/// What a device is, as far as sizes of steps depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceTraits {
    /// The CPU, with its widest instructions.
    Cpu(Isa),
    /// A GPU of so many bytes of memory.
    Gpu(u64),
}

/// Limits of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSizes {
    /// Most sequences that run at once.
    pub max_num_seqs: usize,
    /// Most tokens computed in one step.
    pub max_num_batched_tokens: usize,
}

const fn sizes(max_num_seqs: usize, max_num_batched_tokens: usize) -> StepSizes {
    StepSizes { max_num_seqs, max_num_batched_tokens }
}

impl StepSizes {
    /// vLLM's numbers for its `LLM` class on cards of 70 GiB and more, and half of that from 40 on:
    /// buffers of the largest step take memory that the KV cache then has not. On the CPU as in
    /// vLLM; a step that is longer gains little there, and finishes rows later. With AMX memory is
    /// the limit up to some 285 rows (docs/PERFORMANCE.md), so twice as many share the weights.
    pub fn of(device: DeviceTraits) -> Self {
        match device {
            DeviceTraits::Gpu(bytes) if bytes >= 70 << 30 => sizes(1024, 16384),
            DeviceTraits::Gpu(bytes) if bytes >= 40 << 30 => sizes(512, 8192),
            DeviceTraits::Cpu(Isa::Amx) => sizes(512, 4096),
            DeviceTraits::Gpu(_) | DeviceTraits::Cpu(_) => sizes(256, 4096),
        }
    }
}

/// The configuration with the sizes that nobody gave, for a model in `dtype` that needs this of a
/// GPU.
pub fn resolved(config: &EngineConfig, dtype: DType, needs: &GpuNeeds) -> EngineConfig {
    let mut config = config.clone();
    if config.scheduler.by_device.any() {
        let of_gpu = device::memory_of_gpu(&config, dtype, needs).map(DeviceTraits::Gpu);
        let isa = || config.parallel.isa.unwrap_or_else(Isa::detect);
        let traits = of_gpu.unwrap_or_else(|| DeviceTraits::Cpu(isa()));
        set_sizes(&mut config.scheduler, StepSizes::of(traits));
    }
    config
}

impl From<&SchedulerConfig> for StepSizes {
    fn from(config: &SchedulerConfig) -> Self {
        sizes(config.max_num_seqs, config.max_num_batched_tokens)
    }
}

/// Takes the sizes of the device where it decides.
fn set_sizes(config: &mut SchedulerConfig, sizes: StepSizes) {
    let by_device = std::mem::take(&mut config.by_device);
    if by_device.max_num_seqs {
        config.max_num_seqs = sizes.max_num_seqs;
    }
    if by_device.max_num_batched_tokens {
        config.max_num_batched_tokens = sizes.max_num_batched_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::SizesByDevice;

    #[test]
    fn large_cards_take_large_steps_and_what_was_given_stays() {
        let of_gib = |gib: u64| StepSizes::of(DeviceTraits::Gpu(gib << 30));
        assert_eq!(of_gib(139), sizes(1024, 16384));
        assert_eq!([of_gib(47), of_gib(23)], [sizes(512, 8192), sizes(256, 4096)]);
        let of_cpu = |isa| StepSizes::of(DeviceTraits::Cpu(isa)).max_num_seqs;
        assert_eq!([Isa::Amx, Isa::AmxTwin, Isa::Avx512].map(of_cpu), [512, 256, 256]);
        let by_device = SizesByDevice { max_num_seqs: true, max_num_batched_tokens: false };
        let given =
            SchedulerConfig { max_num_batched_tokens: 100, by_device, ..Default::default() };
        let mut scheduler = given.clone();
        set_sizes(&mut scheduler, of_gib(80));
        assert_eq!((scheduler.max_num_seqs, scheduler.max_num_batched_tokens), (1024, 100));
        assert!(!scheduler.by_device.any(), "it is decided");
    }

    #[test]
    fn the_cpu_is_taken_where_it_is_asked_for() {
        let by_device = SizesByDevice { max_num_seqs: true, max_num_batched_tokens: true };
        let scheduler = SchedulerConfig { max_num_seqs: 7, by_device, ..Default::default() };
        let mut config = EngineConfig { scheduler, ..EngineConfig::default() };
        config.parallel.isa = Some(Isa::Portable);
        let scheduler = resolved(&config, DType::BFloat16, &GpuNeeds::default()).scheduler;
        assert_eq!((scheduler.max_num_seqs, scheduler.max_num_batched_tokens), (256, 4096));
    }
}
