//! `Side`: a setting, a device or a kind of model, as far as it does not go with another.

use vllm_batch_base::Setting;
use vllm_batch_base::config::{
    DType, DeviceKind, EngineConfig, Engines, KvCacheDType, LoadFormat, ModelConfig, PrefillKernel,
    Quantization, SpeculationMethod,
};
use vllm_batch_base::pooling::PoolingTask;

/// A setting, a device or a kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Several GPUs compute one model.
    TensorParallel,
    /// A model's layers are on several devices.
    PipelineParallel,
    /// Several engines share the rows.
    DataParallel,
    /// Drafts, by any method.
    Speculation,
    /// Drafts by a small model.
    DraftModel,
    /// Adapters that rows name.
    Lora,
    /// An adapter that becomes part of the weights.
    MergedLora,
    /// An adapter with a part for the embedding table.
    TableLora,
    /// Random weights.
    DummyWeights,
    /// Weights of 32 bits, as given or as the checkpoint has them.
    Float32,
    /// Weights that are narrowed to E4M3.
    Fp8Weights,
    /// Weights that are narrowed to int8.
    Int8Weights,
    /// Keys and values in E4M3.
    Fp8Cache,
    /// Memory of the host for a GPU's KV cache.
    HostCache,
    /// Equal prefixes are computed again.
    NoPrefixCaching,
    /// Tokens of a block of the KV cache.
    BlockSize,
    /// Blocks of the KV cache.
    NumBlocks,
    /// Bytes of the KV cache.
    CacheBytes,
    /// Share of the memory for the KV cache.
    MemoryShare,
    /// Prompts by `wgmma`.
    Wgmma,
    /// States that a vector is made of.
    PoolingType,
    /// Tokens as classes.
    TokenClasses,
    /// Vectors of texts or of their tokens.
    Vectors,
    /// Classes of texts.
    Classes,
    /// Classes of tokens.
    ClassesOfTokens,
    /// The CPU.
    Cpu,
    /// A GPU, or its shim.
    Gpu,
    /// A model that makes vectors or classes.
    Pooling,
    /// One whose texts go through it in one piece.
    WholeTexts,
    /// One that has a classifier.
    Classifier,
    /// One whose classifier is for whole texts.
    ClassifierOfTexts,
    /// One that has none.
    NoClassifier,
    /// One that makes sparse vectors.
    SparseVectors,
    /// One that writes no texts.
    NoLanguageModel,
    /// One with recurrent layers.
    Recurrent,
    /// A draft model with recurrent layers.
    RecurrentDraft,
    /// A model with mixtures of experts.
    Experts,
    /// One with latent attention.
    LatentAttention,
    /// One whose tokens choose which they attend to.
    Choices,
    /// One whose layers take K or V from other layers.
    SharedKv,
    /// One with norms of queries or keys over several heads.
    WideNorms,
    /// One with gates of attention.
    AttentionGates,
    /// One with attention sinks.
    AttentionSinks,
    /// One whose layers have inputs of their own.
    LayerInputs,
    /// One that sees images.
    VisionTower,
    /// One that hears.
    SoundTower,
    /// A quantized checkpoint.
    QuantizedCheckpoint,
    /// A GGUF file.
    Gguf,
}

/// Words for a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// Subject of "is not supported".
    pub subject: &'static str,
    /// End of "is not supported".
    pub with: &'static str,
}

impl Side {
    /// Setting that gives it; None: a device, a model or a task has it.
    pub fn setting(self) -> Option<Setting> {
        Some(match self {
            Side::TensorParallel => Setting::TensorParallelSize,
            Side::PipelineParallel => Setting::PipelineParallelSize,
            Side::DataParallel => Setting::DataParallelSize,
            Side::Speculation | Side::DraftModel => Setting::SpeculativeConfig,
            Side::Lora | Side::TableLora => Setting::LoraModules,
            Side::MergedLora => Setting::LoraMerge,
            Side::DummyWeights => Setting::LoadFormat,
            Side::Float32 => Setting::Dtype,
            Side::Fp8Weights | Side::Int8Weights => Setting::Quantization,
            Side::Fp8Cache => Setting::KvCacheDtype,
            Side::HostCache => Setting::KvOffloadingSize,
            Side::NoPrefixCaching => Setting::EnablePrefixCaching,
            Side::BlockSize => Setting::BlockSize,
            Side::NumBlocks => Setting::NumGpuBlocksOverride,
            Side::CacheBytes => Setting::KvCacheMemoryBytes,
            Side::MemoryShare => Setting::GpuMemoryUtilization,
            Side::Wgmma => Setting::PrefillKernel,
            Side::PoolingType => Setting::PoolingType,
            Side::TokenClasses => Setting::ClassifierFromToken,
            _ => return None,
        })
    }

    /// Words of messages and of the document.
    pub fn words(self) -> Words {
        let (subject, with) = match self {
            Side::TensorParallel => ("tensor parallelism", "with tensor parallelism"),
            Side::PipelineParallel => ("pipeline parallelism", "with pipeline parallelism"),
            Side::DataParallel => ("data parallelism", "with data parallelism"),
            Side::Speculation => ("speculative decoding", "with speculative decoding"),
            Side::DraftModel => ("a draft model", "with a draft model"),
            Side::Lora => ("an adapter", "with adapters"),
            Side::MergedLora => ("merging", "with a merged adapter"),
            Side::TableLora => ("an adapter of the embedding table", "with such an adapter"),
            Side::DummyWeights => ("dummy", "with dummy weights"),
            Side::Float32 => ("float32", "in float32"),
            Side::Fp8Weights => ("fp8", "with fp8 weights"),
            Side::Int8Weights => ("int8", "with int8 weights"),
            Side::Fp8Cache => ("fp8", "with an fp8 KV cache"),
            Side::HostCache => ("it", "with offloading of the KV cache"),
            Side::NoPrefixCaching => ("it", "without prefix caching"),
            Side::BlockSize => ("it", "with a block size"),
            Side::NumBlocks => ("it", "with a number of blocks"),
            Side::CacheBytes => ("it", "with a size of the KV cache"),
            Side::MemoryShare => ("it", "with a share of memory"),
            Side::Wgmma => ("wgmma", "with prompts by wgmma"),
            Side::PoolingType => ("it", "with a pooling type"),
            Side::TokenClasses => ("it", "with tokens as classes"),
            Side::Vectors => ("making vectors", "for vectors"),
            Side::Classes => ("classifying", "for classes"),
            Side::ClassesOfTokens => ("classifying tokens", "for classes of tokens"),
            Side::Cpu => ("the model", "on the CPU"),
            Side::Gpu => ("the model", "on a GPU"),
            Side::Pooling => ("the model", "for models that make vectors or classes"),
            Side::WholeTexts => {
                ("the model", "for models that compute a text at once, without a KV cache")
            }
            Side::Classifier => ("the model", "for classifiers"),
            Side::ClassifierOfTexts => ("the model", "for classifiers of whole texts"),
            Side::NoClassifier => ("the model", "for models that have no classifier"),
            Side::SparseVectors => ("the model", "for sparse vectors"),
            Side::NoLanguageModel => ("the model", "for a model that is no language model"),
            Side::Recurrent => ("the model", "for models with recurrent layers"),
            Side::RecurrentDraft => ("the model", "if it has recurrent layers"),
            Side::Experts => ("the model", "for models with experts"),
            Side::LatentAttention => ("the model", "for models with latent attention"),
            Side::Choices => ("the model", "for models whose tokens choose which they attend to"),
            Side::SharedKv => {
                ("the model", "for models whose layers share K or V, or have narrower V")
            }
            Side::WideNorms => ("the model", "for models with norms over several heads"),
            Side::AttentionGates => ("the model", "for models with gates of attention"),
            Side::AttentionSinks => ("the model", "for models with attention sinks"),
            Side::LayerInputs => ("the model", "for models whose layers have inputs of their own"),
            Side::VisionTower => ("a vision tower", "for models with a vision tower"),
            Side::SoundTower => ("the model", "for models that hear"),
            Side::QuantizedCheckpoint => ("the model", "for quantized checkpoints"),
            Side::Gguf => ("the model", "for GGUF files"),
        };
        Words { subject, with }
    }

    /// The device and the settings that a configuration has. A device that is still to be chosen
    /// is none.
    pub(super) fn of_config(config: &EngineConfig) -> Vec<Self> {
        let EngineConfig { model, cache, parallel, device, lora, speculation, .. } = config;
        let method = speculation.as_ref().map(|speculation| &speculation.method);
        let settings = [
            (Side::TensorParallel, parallel.num_ranks() > 1),
            (Side::PipelineParallel, parallel.num_stages() > 1),
            (Side::DataParallel, parallel.engines != Engines::Number(1)),
            (Side::Speculation, speculation.is_some()),
            (Side::DraftModel, matches!(method, Some(SpeculationMethod::DraftModel { .. }))),
            (Side::Lora, !lora.modules.is_empty()),
            (Side::MergedLora, lora.merged.is_some()),
            (Side::Fp8Weights, device.quantization == Some(Quantization::Fp8)),
            (Side::Int8Weights, device.quantization == Some(Quantization::Int8)),
            (Side::Fp8Cache, cache.kv_cache_dtype == KvCacheDType::Fp8),
            (Side::HostCache, cache.kv_offloading_bytes.is_some()),
            (Side::NoPrefixCaching, !cache.enable_prefix_caching),
            (Side::BlockSize, cache.block_size.is_some()),
            (Side::NumBlocks, cache.num_blocks.is_some()),
            (Side::CacheBytes, cache.kv_cache_memory_bytes.is_some()),
            (Side::MemoryShare, cache.memory_share.is_some()),
            (Side::Wgmma, device.prefill_kernel == PrefillKernel::Wgmma),
            (Side::Cpu, device.kind == DeviceKind::Cpu),
            (Side::Gpu, !matches!(device.kind, DeviceKind::Cpu | DeviceKind::Auto)),
        ];
        let mut sides = Self::of_model_config(model);
        sides.extend(there(settings));
        sides
    }

    /// The settings of a model.
    pub(super) fn of_model_config(config: &ModelConfig) -> Vec<Self> {
        let task = config.pooling_task;
        let settings = [
            (Side::DummyWeights, config.load_format == LoadFormat::Dummy),
            (Side::Float32, config.dtype == Some(DType::Float32)),
            (Side::PoolingType, config.pooling_type.is_some()),
            (Side::TokenClasses, config.token_classes.is_some()),
            (Side::Vectors, matches!(task, Some(PoolingTask::Embed | PoolingTask::TokenEmbed))),
            (Side::Classes, task == Some(PoolingTask::Classify)),
            (Side::ClassesOfTokens, task == Some(PoolingTask::TokenClassify)),
        ];
        there(settings).collect()
    }
}

/// Those that are there.
pub(super) fn there<const N: usize>(sides: [(Side, bool); N]) -> impl Iterator<Item = Side> {
    sides.into_iter().filter_map(|(side, is_there)| is_there.then_some(side))
}
