//! How large steps are: what was given, and for the rest a function of the device. The one place
//! that decides it. Bytes of rows do not depend on it.

use vllm_batch_base::config::{DType, EngineConfig, SchedulerConfig};
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;
use vllm_batch_ops::GpuNeeds;

/// What a device is, as far as sizes of steps depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceTraits {
    /// The CPU, with its widest instructions.
    Cpu(Isa),
    /// A GPU of so many bytes of memory.
    Gpu(u64),
}

/// Limits of a step, all of them decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSizes {
    /// Most sequences that run at once.
    pub max_num_seqs: usize,
    /// Most tokens computed in one step.
    pub max_num_batched_tokens: usize,
    /// Most logits rows of prompt tokens in one step.
    pub max_num_prompt_logits: usize,
    /// Most drafts of one step.
    pub max_num_drafts: usize,
    /// Most different adapters in one step.
    pub max_loras: usize,
    /// Places that a sequence may be admitted before or after its turn.
    pub look_ahead: usize,
}

/// Sizes of a step for those that were not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Defaults {
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
}

const fn defaults(max_num_seqs: usize, max_num_batched_tokens: usize) -> Defaults {
    Defaults { max_num_seqs, max_num_batched_tokens }
}

impl Defaults {
    /// vLLM's numbers for its `LLM` class on cards of 70 GiB and more, and half of that from 40 on:
    /// buffers of the largest step take memory that the KV cache then has not. On the CPU as in
    /// vLLM; a step that is longer gains little there, and finishes rows later. With AMX memory is
    /// the limit up to some 285 rows (docs/PERFORMANCE.md), so twice as many share the weights.
    fn of(device: DeviceTraits) -> Self {
        match device {
            DeviceTraits::Gpu(bytes) if bytes >= 70 << 30 => defaults(1024, 16384),
            DeviceTraits::Gpu(bytes) if bytes >= 40 << 30 => defaults(512, 8192),
            DeviceTraits::Cpu(Isa::Amx) => defaults(512, StepSizes::USUAL_TOKENS),
            DeviceTraits::Gpu(_) | DeviceTraits::Cpu(_) => Self::USUAL,
        }
    }

    const USUAL: Self = defaults(StepSizes::USUAL_SEQS, StepSizes::USUAL_TOKENS);
}

impl StepSizes {
    /// Default of `max_num_seqs` on the smallest device, and of pooling models on any.
    pub const USUAL_SEQS: usize = 256;
    /// Default of `max_num_batched_tokens` there.
    pub const USUAL_TOKENS: usize = 4096;

    /// Sizes of a decoder in `dtype` that needs this of a GPU, on the device that it will be on.
    pub fn on_device(config: &EngineConfig, dtype: DType, needs: &GpuNeeds) -> Self {
        let given = (config.scheduler.max_num_seqs, config.scheduler.max_num_batched_tokens);
        if let (Some(_), Some(_)) = given {
            // The driver of a GPU need not be asked.
            return Self::usual(config);
        }
        let of_gpu = needs.memory_of_gpu(config, dtype).map(DeviceTraits::Gpu);
        let isa = || config.parallel.isa.unwrap_or_else(Isa::detect);
        let traits = of_gpu.unwrap_or_else(|| DeviceTraits::Cpu(isa()));
        Self::resolved(config, Defaults::of(traits))
    }

    /// Sizes of a pooling model, which are the same on any device.
    pub fn usual(config: &EngineConfig) -> Self {
        Self::resolved(config, Defaults::USUAL)
    }

    fn resolved(config: &EngineConfig, defaults: Defaults) -> Self {
        let SchedulerConfig {
            max_num_seqs,
            max_num_batched_tokens,
            max_num_prompt_logits,
            look_ahead,
            max_loras,
        } = config.scheduler;
        let max_num_seqs = max_num_seqs.unwrap_or(defaults.max_num_seqs);
        let drafts = config.speculation.as_ref();
        Self {
            max_num_seqs,
            max_num_batched_tokens: max_num_batched_tokens
                .unwrap_or(defaults.max_num_batched_tokens),
            max_num_prompt_logits,
            max_num_drafts: drafts.map_or(0, |drafts| drafts.max_num_drafts(max_num_seqs)),
            max_loras,
            look_ahead: look_ahead.unwrap_or_else(|| Self::default_look_ahead(max_num_seqs)),
        }
    }

    /// The same, with room for so many tokens of a prompt in a step, an image or a prompt that is
    /// not cut, and for the logits of so many.
    pub fn at_least(self, (num_tokens, num_prompt_logits): (usize, usize)) -> Self {
        Self {
            max_num_batched_tokens: self.max_num_batched_tokens.max(num_tokens),
            max_num_prompt_logits: self.max_num_prompt_logits.max(num_prompt_logits),
            ..self
        }
    }

    /// The same, with the states of all tokens of a step in the place of logits.
    pub fn with_all_states(self) -> Self {
        let num_tokens = self.max_num_batched_tokens;
        Self { max_num_prompt_logits: self.max_num_prompt_logits.max(num_tokens), ..self }
    }

    /// Twice `max_num_seqs` leaves much of the tail, eight times gains little more
    /// (docs/PERFORMANCE.md), and rows that are out of turn are written later.
    pub(crate) fn default_look_ahead(max_num_seqs: usize) -> usize {
        (4 * max_num_seqs).max(64)
    }

    /// Most rows of logits in a step.
    pub fn max_num_logits(&self) -> usize {
        self.max_num_seqs + self.max_num_prompt_logits + self.max_num_drafts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::{SpeculationConfig, SpeculationMethod};

    #[test]
    fn large_cards_take_large_steps_and_what_was_given_stays() {
        let of_gib = |gib: u64| Defaults::of(DeviceTraits::Gpu(gib << 30));
        assert_eq!(of_gib(139), defaults(1024, 16384));
        assert_eq!([of_gib(47), of_gib(23)], [defaults(512, 8192), defaults(256, 4096)]);
        let of_cpu = |isa| Defaults::of(DeviceTraits::Cpu(isa)).max_num_seqs;
        assert_eq!([Isa::Amx, Isa::AmxTwin, Isa::Avx512].map(of_cpu), [512, 256, 256]);
        let mut config = EngineConfig::default();
        config.scheduler.max_num_batched_tokens = Some(100);
        let sizes = StepSizes::resolved(&config, of_gib(80));
        assert_eq!((sizes.max_num_seqs, sizes.max_num_batched_tokens), (1024, 100));
        assert_eq!((sizes.look_ahead, sizes.max_num_logits()), (4096, 1024 + 256));
    }

    #[test]
    fn the_cpu_is_taken_where_it_is_asked_for() {
        let mut config = EngineConfig::default();
        config.parallel.isa = Some(Isa::Portable);
        let sizes = |config: &EngineConfig| {
            StepSizes::on_device(config, DType::BFloat16, &GpuNeeds::default())
        };
        let of = sizes(&config);
        assert_eq!((of.max_num_seqs, of.max_num_batched_tokens), (256, 4096));
        config.scheduler.max_num_seqs = Some(7);
        let of = sizes(&config);
        assert_eq!((of.max_num_seqs, of.max_num_batched_tokens, of.look_ahead), (7, 4096, 64));
    }

    #[test]
    fn drafts_have_rows_of_logits() {
        let speculation = SpeculationConfig {
            method: SpeculationMethod::Ngram { min: 1, max: 1 },
            num_speculative_tokens: 3,
            max_step_tokens: None,
            paced: false,
        };
        let mut config = EngineConfig { speculation: Some(speculation), ..EngineConfig::default() };
        config.scheduler.max_num_seqs = Some(4);
        let sizes = StepSizes::usual(&config);
        assert_eq!((sizes.max_num_drafts, sizes.max_num_logits()), (12, 4 + 256 + 12));
    }
}
