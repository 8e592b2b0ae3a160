//! What does not go together: settings, devices and kinds of models, two by two. The one place of
//! the engine that refuses a pair; `docs/COMBINATIONS.md` is this table. Values that are wrong
//! alone are refused where they are used, and sizes that no kernel takes where the kernel is.

mod side;

pub use side::{Side, Words};

use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig, ModelConfig};
use vllm_batch_checkpoint::spec::{AttentionSpec, LayerSpec};
use vllm_batch_device::{Device, WhyCpu};

/// Two sides that do not go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// The side that the message is about.
    pub refused: Side,
    /// The side that it does not go with.
    pub beside: Side,
    /// Reason, as the end of the sentence.
    pub why: &'static str,
    /// Remedy.
    pub help: &'static str,
}

const fn row(refused: Side, beside: Side, why: &'static str, help: &'static str) -> Combination {
    Combination { refused, beside, why, help }
}

const YET: &str = " yet";
const ONE_OF_TWO: &str = "leave out one of the two";
const LEAVE_OUT: &str = "leave it out";
const OTHER_ENGINES: &str = "leave it out, or give `settings.data_parallel_size`";
const TWO_BYTES: &str = "give `settings.dtype` bfloat16 or float16";

/// The pairs, in the order in which they are looked for.
pub const COMBINATIONS: &[Combination] = &[
    row(Side::TensorParallel, Side::Pooling, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::DataParallel, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::PipelineParallel, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::Speculation, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::Lora, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::MergedLora, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::HostCache, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::Fp8Weights, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::Int8Weights, YET, ONE_OF_TWO),
    row(Side::TensorParallel, Side::QuantizedCheckpoint, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::Gguf, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::Cpu, "", "leave it out, or take GPUs (`settings.device` cuda)"),
    row(Side::TensorParallel, Side::Recurrent, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::Choices, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::Experts, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::LatentAttention, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::SharedKv, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::WideNorms, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::AttentionGates, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::AttentionSinks, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::LayerInputs, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::VisionTower, YET, OTHER_ENGINES),
    row(Side::TensorParallel, Side::SoundTower, YET, OTHER_ENGINES),
    row(Side::PipelineParallel, Side::Pooling, YET, OTHER_ENGINES),
    row(Side::PipelineParallel, Side::SoundTower, YET, OTHER_ENGINES),
    row(Side::PipelineParallel, Side::DataParallel, YET, ONE_OF_TWO),
    row(Side::PipelineParallel, Side::DraftModel, YET, ONE_OF_TWO),
    row(Side::PipelineParallel, Side::HostCache, YET, ONE_OF_TWO),
    row(Side::BlockSize, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::NoPrefixCaching, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::Fp8Cache, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::NumBlocks, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::CacheBytes, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::HostCache, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::MemoryShare, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::Wgmma, Side::WholeTexts, "", LEAVE_OUT),
    row(Side::Wgmma, Side::Cpu, "", LEAVE_OUT),
    row(Side::Wgmma, Side::Float32, "", LEAVE_OUT),
    row(Side::Wgmma, Side::Fp8Cache, "", LEAVE_OUT),
    row(Side::Fp8Cache, Side::Cpu, ": it needs an NVIDIA GPU", LEAVE_OUT),
    row(Side::Fp8Cache, Side::Float32, "", TWO_BYTES),
    row(Side::Fp8Cache, Side::LatentAttention, YET, LEAVE_OUT),
    row(Side::Fp8Cache, Side::Choices, YET, LEAVE_OUT),
    row(
        Side::HostCache,
        Side::Cpu,
        ", whose KV cache is in main memory already",
        "leave it out, and give `settings.kv_cache_memory_bytes` for a larger cache",
    ),
    row(
        Side::HostCache,
        Side::NoPrefixCaching,
        ": it keeps what prefix caching finds",
        "leave `settings.enable_prefix_caching` out",
    ),
    row(Side::Int8Weights, Side::Gpu, "", "give fp8 on a GPU, or `settings.device` cpu"),
    row(
        Side::Fp8Weights,
        Side::Cpu,
        ": it needs an NVIDIA GPU",
        "give int8 on the CPU, or leave it out",
    ),
    row(Side::Fp8Weights, Side::Float32, "", TWO_BYTES),
    row(Side::Lora, Side::Fp8Weights, ", which read E4M3 rows", ONE_OF_TWO),
    row(Side::TableLora, Side::Gpu, YET, "give `settings.device` cpu"),
    row(Side::MergedLora, Side::DummyWeights, ": there are no weights to merge with", ONE_OF_TWO),
    row(
        Side::Speculation,
        Side::Recurrent,
        ", whose states cannot go back to before a rejected draft",
        LEAVE_OUT,
    ),
    row(Side::DraftModel, Side::RecurrentDraft, "", "give one without"),
    row(Side::DraftModel, Side::VisionTower, YET, "give another method"),
    row(Side::DraftModel, Side::SoundTower, YET, "give another method"),
    row(Side::DraftModel, Side::Gpu, YET, "give `settings.device` cpu, or another method"),
    row(Side::TokenClasses, Side::NoLanguageModel, "", "give a model that writes texts"),
    row(Side::Classes, Side::NoClassifier, "", "`embed` makes vectors with them"),
    row(Side::ClassesOfTokens, Side::NoClassifier, "", "`embed` makes vectors with them"),
    row(Side::ClassesOfTokens, Side::ClassifierOfTexts, "", "give task `classify`"),
    row(Side::Vectors, Side::Classifier, "", "`classify` runs them"),
    row(
        Side::PoolingType,
        Side::Classifier,
        ", which read the states that they were trained on",
        LEAVE_OUT,
    ),
    row(Side::PoolingType, Side::SparseVectors, ", which are made of all tokens", LEAVE_OUT),
];

impl Combination {
    /// Sentence that refuses it, without the remedy.
    pub fn text(&self) -> String {
        let (subject, with) = (self.refused.words().subject, self.beside.words().with);
        format!("{subject} is not supported {with}{}", self.why)
    }

    /// The error, with more of the reason at the end of the sentence.
    fn error(&self, more: &str) -> EngineError {
        let text = self.text() + more;
        match self.refused.setting() {
            Some(setting) => EngineError::setting(setting, text, self.help),
            None => EngineError::Config(format!("{text}; {}", self.help)),
        }
    }
}

/// The sides that a run has, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Sides(Vec<Side>);

impl Sides {
    /// Those of a configuration, before its model is read and its device is opened.
    pub fn of_config(config: &EngineConfig) -> Self {
        Self(Side::of_config(config))
    }

    /// Those of the settings of a model.
    pub fn of_model_config(config: &ModelConfig) -> Self {
        Self(Side::of_model_config(config))
    }

    /// The same with these, as far as they are there.
    pub fn with<const N: usize>(mut self, sides: [(Side, bool); N]) -> Self {
        self.0.extend(side::there(sides));
        self
    }

    /// The same with what a model's layers and types have.
    pub(crate) fn with_layers(self, layers: &[LayerSpec], dtype: DType) -> Self {
        let has = |of: fn(&LayerSpec) -> bool| layers.iter().any(of);
        let attends = |of: fn(&AttentionSpec) -> bool| {
            layers.iter().filter_map(|layer| layer.attention.as_ref()).any(of)
        };
        self.with([
            (Side::Float32, dtype == DType::Float32),
            (Side::Recurrent, has(|layer| layer.recurrent.is_some())),
            (Side::Experts, has(|layer| layer.experts().is_some())),
            (Side::LayerInputs, has(|layer| layer.side.is_some())),
            (Side::LatentAttention, attends(|attention| attention.latent.is_some())),
            (Side::Choices, attends(|attention| attention.choice.is_some())),
            (Side::SharedKv, attends(AttentionSpec::makes_values)),
            (Side::WideNorms, attends(AttentionSpec::has_norms_over_heads)),
            (Side::AttentionGates, attends(|attention| attention.gate.is_some())),
            (Side::AttentionSinks, attends(|attention| attention.sinks.is_some())),
        ])
    }

    /// The first pair of them that the table has.
    pub fn refused(&self) -> Option<&'static Combination> {
        let has = |side| self.0.contains(&side);
        COMBINATIONS.iter().find(|row| has(row.refused) && has(row.beside))
    }

    /// Checks all pairs of them.
    ///
    /// # Errors
    /// Two of them do not go together.
    pub fn check(&self) -> Result<(), EngineError> {
        self.refuse("")
    }

    /// The same on the device that was opened.
    ///
    /// # Errors
    /// Two of them do not go together. Where the device was chosen, the reason is said.
    pub fn check_on(self, device: &Device, why_cpu: Option<&WhyCpu>) -> Result<(), EngineError> {
        let is_gpu = device.runs_ahead();
        let on = self.with([(Side::Gpu, is_gpu), (Side::Cpu, !is_gpu)]);
        let why = why_cpu.map_or_else(String::new, |why| format!(" ({})", why.reason));
        on.refuse(&why)
    }

    fn refuse(&self, why: &str) -> Result<(), EngineError> {
        match self.refused() {
            None => Ok(()),
            Some(row) => Err(row.error(why)),
        }
    }
}
