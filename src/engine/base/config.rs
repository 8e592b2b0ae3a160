//! `EngineConfig`: plain values, one object passed by reference to every part of the engine.

use std::path::{Path, PathBuf};

use super::pooling::{PoolingTask, PoolingType, TokenClasses};
use crate::hf_overrides::HfOverrides;
use crate::isa::Isa;
use crate::run_date::RunDate;

/// Element type of weights and KV cache. Activations between operations are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE float.
    Float32,
    /// bfloat16: the upper half of a 32-bit float.
    BFloat16,
    /// 16-bit IEEE float.
    Float16,
}

impl DType {
    /// Bytes of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::Float32 => 4,
            DType::BFloat16 | DType::Float16 => 2,
        }
    }

    /// vLLM's spelling of the type.
    pub fn name(self) -> &'static str {
        match self {
            DType::Float32 => "float32",
            DType::BFloat16 => "bfloat16",
            DType::Float16 => "float16",
        }
    }
}

/// Where weights come from (`--load-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// safetensors files of the model folder.
    #[default]
    Auto,
    /// Seeded random weights from config.json alone, as vLLM's `dummy`.
    Dummy,
}

/// Model files and precision.
#[derive(Clone, Debug, Default)]
pub struct ModelConfig {
    /// Folder with config.json, tokenizer.json and weights; or a GGUF file, which has all three.
    pub model_dir: PathBuf,
    /// Folder of the tokenizer files, or a GGUF file, when they are not in `model_dir`.
    pub tokenizer_dir: Option<PathBuf>,
    /// GGUF file that makes a GGUF model see (llama.cpp's mmproj).
    pub mmproj: Option<PathBuf>,
    /// Jinja text that replaces the model's chat template.
    pub chat_template: Option<String>,
    /// Keys laid over config.json.
    pub hf_overrides: HfOverrides,
    /// Type of weights and activations; `None`: the checkpoint's own.
    pub dtype: Option<DType>,
    /// Longest context in tokens; `None`: that of config.json.
    pub max_model_len: Option<usize>,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// A model that sees images is loaded without its vision tower.
    pub language_model_only: bool,
    /// Engine seed (vLLM's `seed`): keys sampling of rows without their own seed, and dummy
    /// weights.
    pub seed: u64,
    /// Whether, and from where, generation_config.json gives sampling defaults.
    pub generation_config: GenerationConfigSource,
    /// Treatment of a prompt that is longer than the context.
    pub overflow: Overflow,
    /// Task of an encoder; `None`: the one its class is made for.
    pub pooling_task: Option<PoolingTask>,
    /// Pooling of an embedding model; `None`: that of its files.
    pub pooling_type: Option<PoolingType>,
    /// An embedding model makes sparse vectors with the head that it was trained with.
    pub sparse: bool,
    /// A language model is a classifier, whose classes are these tokens; None: as its config says.
    pub token_classes: Option<TokenClasses>,
    /// Text of chat messages may produce control tokens (`--allow-special`).
    pub allow_special: bool,
    /// Parser that splits thinking from the answer: its name, or `auto` by the chat template.
    /// `None`: thinking stays in the text.
    pub reasoning_parser: Option<String>,
    /// Parser of tool calls, given in the same way.
    pub tool_call_parser: Option<String>,
    /// The date that chat templates see, fixed for a run so that reruns give the same bytes.
    pub chat_date: RunDate,
    /// End of the process when a weight file is shortened while it is read; `None`: SIGBUS.
    pub on_lost_file: Option<OnLostFile>,
}

/// End of a process that reads a missing part of a mapped file. For a process that loads one
/// model at a time.
#[derive(Clone, Copy, Debug)]
pub struct OnLostFile {
    /// Message for a file, built before the file is read.
    pub message: fn(&Path) -> String,
    /// Says it and ends the process. Called in a signal handler: it may neither allocate nor lock.
    pub end: fn(&str) -> !,
}

/// Treatment of a prompt that is longer than the context (`--overflow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The row is an error row.
    #[default]
    Error,
    /// The end of the prompt is kept.
    TruncateLeft,
    /// The beginning of the prompt is kept.
    TruncateRight,
}

/// vLLM's `--generation-config auto|vllm|DIR`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GenerationConfigSource {
    /// The model folder's generation_config.json.
    #[default]
    Auto,
    /// No sampling defaults from files (EOS ids are still merged, as vLLM does).
    Vllm,
    /// generation_config.json of another folder.
    Dir(PathBuf),
}

/// Type of K and V in the cache (`--kv-cache-dtype`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvCacheDType {
    /// The model's.
    #[default]
    Auto,
    /// E4M3, without a scale: vLLM's `fp8` of a checkpoint without scales.
    Fp8,
}

impl KvCacheDType {
    /// Bytes of an element, in a model of this type.
    pub fn size_bytes(self, dtype: DType) -> usize {
        match self {
            KvCacheDType::Auto => dtype.size_bytes(),
            KvCacheDType::Fp8 => 1,
        }
    }

    /// Name of the type of keys and values, in a model of this type.
    pub fn name(self, dtype: DType) -> &'static str {
        match self {
            KvCacheDType::Auto => dtype.name(),
            KvCacheDType::Fp8 => "fp8",
        }
    }
}

/// The paged KV cache.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Tokens of one block; None: what suits the model (`ModelSummary::block_size`).
    pub block_size: Option<usize>,
    /// Reuse blocks of equal prefixes.
    pub enable_prefix_caching: bool,
    /// Type of K and V.
    pub kv_cache_dtype: KvCacheDType,
    /// Blocks of the pool; None: sized from `kv_cache_memory_bytes`, or from free memory.
    pub num_blocks: Option<usize>,
    /// Bytes of the KV pool; None: `memory_share` of the memory that is free after loading.
    pub kv_cache_memory_bytes: Option<u64>,
    /// Bytes of the host's memory for prefixes that leave a GPU's KV pool; None: they are
    /// forgotten.
    pub kv_offloading_bytes: Option<u64>,
    /// Share that the KV pool may take when no size is given: of the machine's free memory on the
    /// CPU (None: 0.4), of its whole memory with all else on a GPU (None: 0.9).
    pub memory_share: Option<f64>,
    /// Bytes that another cache takes for each block of this one: a draft model's.
    pub bytes_beside: usize,
    /// Bytes of what a vision tower makes of images, beyond those that a step needs; None: 4 GiB,
    /// vLLM's.
    pub tower_cache_bytes: Option<u64>,
    /// Engines that divide a share of memory between them: those of one process on the CPU.
    pub engines_in_memory: usize,
    /// Engines that share the blocks of a device, each with as many.
    pub num_pools: usize,
    /// Which of these engines has the blocks.
    pub pool: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            block_size: None,
            enable_prefix_caching: true,
            kv_cache_dtype: KvCacheDType::Auto,
            num_blocks: None,
            kv_cache_memory_bytes: None,
            kv_offloading_bytes: None,
            memory_share: None,
            bytes_beside: 0,
            tower_cache_bytes: None,
            engines_in_memory: 1,
            num_pools: 1,
            pool: 0,
        }
    }
}

/// Limits of one step, as they are given. `StepSizes` of the engine is what they come to.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Most sequences that run at once; None: as suits the device.
    pub max_num_seqs: Option<usize>,
    /// Most tokens computed in one step; None: as suits the device.
    pub max_num_batched_tokens: Option<usize>,
    /// Most logits rows of prompt tokens (prompt_logprobs) in one step; bounds the logits buffer.
    pub max_num_prompt_logits: usize,
    /// Places that a sequence may be admitted before or after its turn; 0: first come, first
    /// served. None: four times `max_num_seqs`, and at least 64.
    pub look_ahead: Option<usize>,
    /// Most different adapters in one step (vLLM's `max_loras`); at least 1.
    pub max_loras: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_num_seqs: None,
            max_num_batched_tokens: None,
            max_num_prompt_logits: 256,
            look_ahead: None,
            max_loras: 1,
        }
    }
}

/// Method and number of drafts (`--speculative-config`). No byte of a row depends on it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpeculationConfig {
    /// Method of drafting.
    pub method: SpeculationMethod,
    /// Most tokens of a row in a step.
    pub num_speculative_tokens: usize,
    /// Most tokens of a step in which anything is guessed; None: as suits the device.
    pub max_step_tokens: Option<usize>,
    /// Rows whose tokens were guessed wrong are guessed at less.
    pub paced: bool,
}

/// Method of drafting.
#[derive(Clone, Debug, PartialEq)]
pub enum SpeculationMethod {
    /// Continuations of the row's last tokens at earlier places in the row.
    Ngram {
        /// Fewest tokens that must be equal; at least 1.
        min: usize,
        /// Most tokens that are compared.
        max: usize,
    },
    /// Continuations of the row's last tokens, in the row and in earlier answers of the run.
    Suffix(SuffixConfig),
    /// A small model of the same vocabulary.
    DraftModel {
        /// Folder or GGUF file of the draft model.
        model_dir: PathBuf,
    },
}

/// vLLM's options `suffix_decoding_x`.
#[derive(Clone, Debug, PartialEq)]
pub struct SuffixConfig {
    /// Most tokens that are compared.
    pub max_tree_depth: usize,
    /// Most answers that are remembered.
    pub max_cached_requests: usize,
    /// Tokens that are guessed for each one that is equal, at most.
    pub max_spec_factor: f64,
    /// Least estimated probability of what is guessed.
    pub min_token_prob: f64,
}

impl Default for SuffixConfig {
    fn default() -> Self {
        Self {
            max_tree_depth: 24,
            max_cached_requests: 10_000,
            max_spec_factor: 1.0,
            min_token_prob: 0.1,
        }
    }
}

impl SpeculationConfig {
    /// Most tokens that a row may be given in a step: vLLM's limit.
    pub const MAX_TOKENS: usize = 128;

    /// Most tokens of a step with drafts, on any device: buffers have room for this number.
    pub const MAX_STEP_TOKENS: usize = 128;

    /// Most drafts of a step of so many sequences.
    pub fn max_num_drafts(&self, max_num_seqs: usize) -> usize {
        let of_step = self.max_step_tokens.unwrap_or(Self::MAX_STEP_TOKENS) - 1;
        of_step.min(max_num_seqs * self.num_speculative_tokens)
    }
}

/// Type that weights of linear layers are narrowed to at load (`--quantization`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// E4M3 with a scale per output channel, activations with a scale per token: on a GPU.
    Fp8,
    /// int8 with a scale per group of inputs, of weights and of activations: on the CPU.
    Int8,
}

impl Quantization {
    /// As the flag has it.
    pub fn name(self) -> &'static str {
        match self {
            Quantization::Fp8 => "fp8",
            Quantization::Int8 => "int8",
        }
    }
}

/// Instruction for attention of prompts on a GPU. The bits must not differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefillKernel {
    /// `mma.sync`, of every GPU: kernels/paged_attention.cu.
    #[default]
    MmaSync,
    /// The warpgroups of Hopper, where heads and cache are what kernels/paged_attention_wgmma.cu
    /// takes.
    Wgmma,
}

/// Kind of device (`--device`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// An NVIDIA GPU when there is one that can be used, else the CPU.
    Auto,
    /// The CPU.
    #[default]
    Cpu,
    /// The GPU of this number.
    Cuda(usize),
    /// The GPU's kernels, built from these sources into a folder and run by the CPU: for tests.
    CudaShim {
        /// The folder of the .cu files.
        kernels_dir: PathBuf,
        /// Where built modules are kept.
        module_dir: PathBuf,
        /// Shuffles the order of threads; 0: in order.
        seed: u64,
        /// Simulated GPU.
        gpu: ShimGpu,
    },
}

/// The GPU that the shim stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShimGpu {
    /// (9, 0) is Hopper.
    pub compute_capability: (u32, u32),
    /// Shared memory that a block may have.
    pub max_smem_kb: usize,
    /// As `Properties::max_launch_positions`.
    pub max_launch_positions: Option<u32>,
    /// Multiprocessors.
    pub num_sms: u32,
}

impl Default for ShimGpu {
    fn default() -> Self {
        Self {
            compute_capability: (9, 0),
            max_smem_kb: 227,
            max_launch_positions: None,
            num_sms: 4,
        }
    }
}

/// The device, and what it needs to be found.
#[derive(Clone, Debug, Default)]
pub struct DeviceConfig {
    /// Kind of device.
    pub kind: DeviceKind,
    /// CUDA toolkit (CUDA_HOME).
    pub cuda_home: Option<PathBuf>,
    /// Folders of Python packages, which may bring CUDA's libraries.
    pub site_packages: Vec<PathBuf>,
    /// LD_LIBRARY_PATH.
    pub library_path: Vec<PathBuf>,
    /// Where compiled kernels and the choice of algorithms are kept; None: nowhere.
    pub cache_dir: Option<PathBuf>,
    /// No CUDA graphs.
    pub enforce_eager: bool,
    /// Narrowed weights.
    pub quantization: Option<Quantization>,
    /// Instruction for attention of prompts on a GPU.
    pub prefill_kernel: PrefillKernel,
}

/// Adapters that rows may be computed with: vLLM's `LoRAConfig`.
#[derive(Clone, Debug)]
pub struct LoraConfig {
    /// A `LoraId` is a place in this list.
    pub modules: Vec<LoraModule>,
    /// Largest rank of an adapter.
    pub max_lora_rank: usize,
    /// The folder of an adapter that becomes part of the model's weights.
    pub merged: Option<LoraModule>,
    /// That of rows with images that name none: vLLM's `default_mm_loras`.
    pub of_images: Option<LoraId>,
}

impl LoraConfig {
    /// The kernel set of a run: weights that an adapter became part of give other bits than the
    /// adapter beside them.
    pub fn kernel_set(&self, kernels: &str) -> String {
        match self.merged {
            Some(_) => format!("{kernels}-merged"),
            None => kernels.to_owned(),
        }
    }
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { modules: Vec::new(), max_lora_rank: 16, merged: None, of_images: None }
    }
}

/// Adapter of a row: its index in `LoraConfig::modules`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraId(pub u32);

/// An adapter, as PEFT saves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraModule {
    /// Name in rows.
    pub name: String,
    /// Folder with adapter_config.json and adapter_model.safetensors.
    pub dir: PathBuf,
}

/// Threads of the CPU device, and their instructions; engines that share requests.
#[derive(Clone, Debug, Default)]
pub struct ParallelConfig {
    /// Threads of all engines together. `None`: one per physical core.
    pub num_threads: Option<usize>,
    /// Instruction set; `None`: the fastest of the CPU.
    pub isa: Option<Isa>,
    /// Number of engines (`data_parallel`).
    pub engines: Engines,
    /// GPUs that compute one model together (`tensor_parallel`). None: one device does.
    pub tensor_parallel_size: Option<usize>,
    /// Stages of a model, on a device each (`pipeline`). None: one device has all layers.
    pub pipeline_parallel_size: Option<usize>,
    /// Devices of the stages; empty: those that follow the first one.
    pub stage_devices: Vec<DeviceKind>,
}

impl ParallelConfig {
    /// Devices that compute one model together.
    pub fn num_ranks(&self) -> usize {
        self.tensor_parallel_size.unwrap_or(1)
    }

    /// Stages that a model's layers are on.
    pub fn num_stages(&self) -> usize {
        self.pipeline_parallel_size.unwrap_or(1)
    }

    /// Whether several engines share the requests: as many as were asked for, or one more than
    /// there are stages, so that each stage has a step to compute while a host is at work.
    pub fn has_engines(&self) -> bool {
        self.engines != Engines::Number(1) || self.num_stages() > 1
    }
}

/// Engines that share the requests of a run, each on a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engines {
    /// A number of engines; on the CPU they share its threads.
    Number(usize),
    /// One on each GPU of the machine.
    AllGpus,
}

impl Default for Engines {
    fn default() -> Self {
        Engines::Number(1)
    }
}

/// Everything the engine is told; passed by reference everywhere.
#[derive(Clone, Debug, Default)]
pub struct EngineConfig {
    /// Model files and precision.
    pub model: ModelConfig,
    /// The KV cache.
    pub cache: CacheConfig,
    /// Limits of a step.
    pub scheduler: SchedulerConfig,
    /// Threads.
    pub parallel: ParallelConfig,
    /// Where it runs.
    pub device: DeviceConfig,
    /// Adapters.
    pub lora: LoraConfig,
    /// Drafting; `None`: no drafts.
    pub speculation: Option<SpeculationConfig>,
}
