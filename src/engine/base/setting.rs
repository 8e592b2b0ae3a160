//! `Setting`: what a user may set, by the name of vLLM's field where it has one. The engine names
//! settings so in its errors; how they are typed is known to the program.

/// A setting that errors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Control tokens in the text of chats.
    AllowSpecial,
    /// Tokens of a block of the KV cache.
    BlockSize,
    /// The chat template.
    ChatTemplate,
    /// Tokens as classes.
    ClassifierFromToken,
    /// Instructions of the CPU.
    CpuIsa,
    /// Engines that share requests.
    DataParallelSize,
    /// The device.
    Device,
    /// Type of weights and activations.
    Dtype,
    /// Reuse of equal prefixes.
    EnablePrefixCaching,
    /// Share of the memory for the KV cache.
    GpuMemoryUtilization,
    /// Keys laid over config.json.
    HfOverrides,
    /// Type of keys and values.
    KvCacheDtype,
    /// Bytes of the KV cache.
    KvCacheMemoryBytes,
    /// Memory of the host for a GPU's KV cache.
    KvOffloadingSize,
    /// Whether images are left alone.
    LanguageModelOnly,
    /// Source of the weights.
    LoadFormat,
    /// The adapter that becomes part of the weights.
    LoraMerge,
    /// Adapters that rows may name.
    LoraModules,
    /// Longest clip of a recording that is cut.
    MaxAudioClipS,
    /// Largest rank of an adapter.
    MaxLoraRank,
    /// Longest context.
    MaxModelLen,
    /// Most tokens of a step.
    MaxNumBatchedTokens,
    /// Memory for encoded images.
    MmProcessorCacheGb,
    /// The file that makes a GGUF model see.
    Mmproj,
    /// Blocks of the KV cache.
    NumGpuBlocksOverride,
    /// Treatment of a prompt that is longer than the context.
    Overflow,
    /// Stages of a model, on a device each.
    PipelineParallelSize,
    /// States that a vector is made of.
    PoolingType,
    /// Instruction for attention of prompts on a GPU.
    PrefillKernel,
    /// Type that weights are narrowed to.
    Quantization,
    /// Parser of thinking.
    ReasoningParser,
    /// Drafts.
    SpeculativeConfig,
    /// GPUs that compute one model together.
    TensorParallelSize,
    /// Threads of the CPU.
    Threads,
    /// Where the tokenizer is.
    Tokenizer,
    /// Tokens that a text is cut to.
    TruncatePromptTokens,
}

/// Beginning and end of a setting's name in texts, as in "give a smaller `settings.dtype`".
const MARKS: (&str, char) = ("`settings.", '`');

impl Setting {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::AllowSpecial,
        Self::BlockSize,
        Self::ChatTemplate,
        Self::ClassifierFromToken,
        Self::CpuIsa,
        Self::DataParallelSize,
        Self::Device,
        Self::Dtype,
        Self::EnablePrefixCaching,
        Self::GpuMemoryUtilization,
        Self::HfOverrides,
        Self::KvCacheDtype,
        Self::KvCacheMemoryBytes,
        Self::KvOffloadingSize,
        Self::LanguageModelOnly,
        Self::LoadFormat,
        Self::LoraMerge,
        Self::LoraModules,
        Self::MaxAudioClipS,
        Self::MaxLoraRank,
        Self::MaxModelLen,
        Self::MaxNumBatchedTokens,
        Self::MmProcessorCacheGb,
        Self::Mmproj,
        Self::NumGpuBlocksOverride,
        Self::Overflow,
        Self::PipelineParallelSize,
        Self::PoolingType,
        Self::PrefillKernel,
        Self::Quantization,
        Self::ReasoningParser,
        Self::SpeculativeConfig,
        Self::TensorParallelSize,
        Self::Threads,
        Self::Tokenizer,
        Self::TruncatePromptTokens,
    ];

    /// Name of the field.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllowSpecial => "allow_special",
            Self::BlockSize => "block_size",
            Self::ChatTemplate => "chat_template",
            Self::ClassifierFromToken => "classifier_from_token",
            Self::CpuIsa => "cpu_isa",
            Self::DataParallelSize => "data_parallel_size",
            Self::Device => "device",
            Self::Dtype => "dtype",
            Self::EnablePrefixCaching => "enable_prefix_caching",
            Self::GpuMemoryUtilization => "gpu_memory_utilization",
            Self::HfOverrides => "hf_overrides",
            Self::KvCacheDtype => "kv_cache_dtype",
            Self::KvCacheMemoryBytes => "kv_cache_memory_bytes",
            Self::KvOffloadingSize => "kv_offloading_size",
            Self::LanguageModelOnly => "language_model_only",
            Self::LoadFormat => "load_format",
            Self::LoraMerge => "lora_merge",
            Self::LoraModules => "lora_modules",
            Self::MaxAudioClipS => "max_audio_clip_s",
            Self::MaxLoraRank => "max_lora_rank",
            Self::MaxModelLen => "max_model_len",
            Self::MaxNumBatchedTokens => "max_num_batched_tokens",
            Self::MmProcessorCacheGb => "mm_processor_cache_gb",
            Self::Mmproj => "mmproj",
            Self::NumGpuBlocksOverride => "num_gpu_blocks_override",
            Self::Overflow => "overflow",
            Self::PipelineParallelSize => "pipeline_parallel_size",
            Self::PoolingType => "pooling_type",
            Self::PrefillKernel => "prefill_kernel",
            Self::Quantization => "quantization",
            Self::ReasoningParser => "reasoning_parser",
            Self::SpeculativeConfig => "speculative_config",
            Self::TensorParallelSize => "tensor_parallel_size",
            Self::Threads => "threads",
            Self::Tokenizer => "tokenizer",
            Self::TruncatePromptTokens => "truncate_prompt_tokens",
        }
    }

    /// The setting of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|setting| setting.name() == name)
    }

    /// The text with each setting that it names replaced. What is no setting stays.
    pub fn replaced_in(text: &str, by: impl Fn(Self) -> &'static str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(MARKS.0) {
            replaced += before;
            let named = after.split_once(MARKS.1);
            match named.and_then(|(name, after)| Some((Self::named(name)?, after))) {
                Some((setting, after)) => {
                    replaced += by(setting);
                    rest = after;
                }
                None => {
                    replaced += MARKS.0;
                    rest = after;
                }
            }
        }
        replaced + rest
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}{}", MARKS.0, self.name(), MARKS.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_in_texts_are_replaced() {
        let by = |setting: Setting| if setting == Setting::Dtype { "DTYPE" } else { "-" };
        for (text, expected) in [
            ("give `settings.dtype` float32", "give DTYPE float32"),
            ("`settings.device`, `settings.dtype`", "-, DTYPE"),
            ("`settings.none`, `settings.dtype`", "`settings.none`, DTYPE"),
            ("`settings.dtype", "`settings.dtype"),
            ("`dtype` of config.json", "`dtype` of config.json"),
        ] {
            assert_eq!(Setting::replaced_in(text, by), expected);
        }
        for setting in Setting::ALL {
            assert_eq!(Setting::named(setting.name()), Some(*setting));
            assert_eq!(Setting::replaced_in(&setting.to_string(), |_| "it"), "it");
        }
    }
}
