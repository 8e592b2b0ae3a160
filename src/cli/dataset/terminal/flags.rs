//! Flags of the engine's settings: the engine names a setting, and here is how it is typed.

use vllm_batch_base::Setting;

/// The flag of a setting.
pub fn flag(setting: Setting) -> &'static str {
    match setting {
        Setting::AllowSpecial => "--allow-special",
        Setting::BlockSize => "--block-size",
        Setting::ChatTemplate => "--chat-template",
        Setting::ClassifierFromToken => "--classifier-from-token",
        Setting::CpuIsa => "--cpu-isa",
        Setting::DataParallelSize => "--data-parallel-size",
        Setting::Device => "--device",
        Setting::Dtype => "--dtype",
        // What is refused is that it is off.
        Setting::EnablePrefixCaching => "--no-enable-prefix-caching",
        Setting::GpuMemoryUtilization => "--gpu-memory-utilization",
        Setting::HfOverrides => "--hf-overrides",
        Setting::KvCacheDtype => "--kv-cache-dtype",
        Setting::KvCacheMemoryBytes => "--kv-cache-memory-bytes",
        Setting::KvOffloadingSize => "--kv-offloading-size",
        Setting::LanguageModelOnly => "--language-model-only",
        Setting::LoadFormat => "--load-format",
        Setting::LoraMerge => "--lora-merge",
        Setting::LoraModules => "--lora-modules",
        Setting::MaxAudioClipS => "--max-audio-clip-s",
        Setting::MaxLoraRank => "--max-lora-rank",
        Setting::MaxModelLen => "--max-model-len",
        Setting::MaxNumBatchedTokens => "--max-num-batched-tokens",
        Setting::MmProcessorCacheGb => "--mm-processor-cache-gb",
        Setting::Mmproj => "--mmproj",
        Setting::NumGpuBlocksOverride => "--num-gpu-blocks-override",
        Setting::Overflow => "--overflow",
        Setting::PoolingType => "--pooling-type",
        Setting::PrefillKernel => "--prefill-kernel",
        Setting::Quantization => "--quantization",
        Setting::ReasoningParser => "--reasoning-parser",
        Setting::SpeculativeConfig => "--speculative-config",
        Setting::TensorParallelSize => "--tensor-parallel-size",
        Setting::PipelineParallelSize => "--pipeline-parallel-size",
        Setting::Threads => "--threads",
        Setting::Tokenizer => "--tokenizer",
        Setting::TruncatePromptTokens => "--truncate-prompt-tokens",
    }
}

/// A text of the engine with flags in the place of settings.
pub fn with_flags(text: &str) -> String {
    Setting::replaced_in(text, flag)
}
