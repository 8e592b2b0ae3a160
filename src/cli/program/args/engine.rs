//! Flags of the model and the engine: vLLM's `EngineArgs` names. What they mean is in
//! `config/engine` and `config/device`.

use std::path::PathBuf;

use super::LoraArgs;
use super::values::{bytes, positive, positive_number, share, size};

/// Which model.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Folder with config.json, tokenizer.json and *.safetensors, a GGUF file, or a Hugging Face id
    /// (of a GGUF file there: OWNER/REPO:FILE.gguf)
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HF_ID")]
    pub model: PathBuf,
    /// GGUF file that makes a GGUF model see (llama.cpp's mmproj), or OWNER/REPO:FILE.gguf
    /// [default: the one beside the one model of a folder]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub mmproj: Option<PathBuf>,
    /// Folder of the tokenizer files [default: the model's]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub tokenizer: Option<PathBuf>,
    /// Branch, tag or commit of a Hugging Face model [default: main]
    #[arg(long, value_name = "REV", hide_short_help = true)]
    pub revision: Option<String>,
    /// Where downloads are kept [default: the Hugging Face cache]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub download_dir: Option<PathBuf>,
    /// Read the weights, or make up random ones from config.json alone (dummy)
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    pub load_format: Option<LoadFormatArg>,
    /// Type of weights and KV cache [default: the checkpoint's; of GGUF bfloat16]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DTypeArg>,
    /// Keys laid over the model's config.json; null takes one away. E.g. '{"rope_scaling": null}'
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    pub hf_overrides: Option<String>,
    /// Longest prompt plus output, in tokens [default: the model's]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_model_len: Option<usize>,
}

/// Where a model is computed, and how much of it at once.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct ComputeArgs {
    /// Where: auto, cpu, cuda[:N] or cuda:all [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<DeviceArg>,
    /// Engines that share the rows, each with its own weights on a GPU of its own (or of the CPU's
    /// threads) [default: 1; of cuda:all as many as there are]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub data_parallel_size: Option<usize>,
    /// GPUs that compute one model together, each with a share of its weights [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub tensor_parallel_size: Option<usize>,
    /// Stages that a model's layers are parted into, each on a GPU of its own (or of the CPU's
    /// threads); a row's bytes are those of one device [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub pipeline_parallel_size: Option<usize>,
    /// Narrow the weights of linear layers to 8 bits (int8: CPU; fp8: NVIDIA GPUs from Ada on)
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    pub quantization: Option<QuantizationArg>,
    /// Threads that compute, in all [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Instructions of the CPU's kernels; machines give equal bytes with equal ones [default: the
    /// fastest that the CPU has]
    #[arg(long, value_name = "ISA", hide_short_help = true)]
    pub cpu_isa: Option<CpuIsaArg>,
    /// What multiplies in attention of prompts on a GPU: wgmma on Hopper, if it gives the bits of
    /// mma-sync there [default: mma-sync]
    #[arg(long, value_name = "KERNEL", hide_short_help = true)]
    pub prefill_kernel: Option<PrefillKernelArg>,
    /// Most rows computed at once [default: 256, more on large GPUs]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_num_seqs: Option<usize>,
    /// Most tokens computed in one step [default: 4096; on GPUs of 40 GiB 8192, of 70 GiB 16384]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub max_num_batched_tokens: Option<usize>,
    /// Which rows are computed first: those that come first, or requests of the lowest `priority`
    #[arg(long, value_name = "POLICY", hide_short_help = true)]
    pub scheduling_policy: Option<SchedulingPolicyArg>,
}

/// How the engine runs. On one device none of these changes a row's answer, but adapters that rows
/// name.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// What engines of all kinds have.
    #[command(flatten)]
    #[serde(skip)]
    pub compute: ComputeArgs,
    /// On a GPU, queue every step anew instead of replaying CUDA graphs
    #[arg(long, hide_short_help = true)]
    pub enforce_eager: bool,
    /// Leave the vision tower of a model out, for rows without images
    #[arg(long, hide_short_help = true)]
    pub language_model_only: bool,
    /// Guess tokens and verify several in one step, to the same bytes; for few rows at a time, e.g.
    /// '{"method": "ngram", "num_speculative_tokens": 5}'
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    pub speculative_config: Option<String>,
    /// The cache of K and V.
    #[command(flatten)]
    #[serde(skip)]
    pub cache: CacheArgs,
    /// Adapters, which models of all kinds may have.
    #[command(flatten)]
    #[serde(skip)]
    pub lora: LoraArgs,
}

/// The KV cache. Models that read texts at once have none.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct CacheArgs {
    /// Tokens of a KV cache block [default: 32, more where layers have large states]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub block_size: Option<usize>,
    /// Type of the KV cache: the model's, or 8-bit floats (fp8: NVIDIA GPUs) [default: auto]
    #[arg(long, value_name = "TYPE", hide_short_help = true)]
    pub kv_cache_dtype: Option<KvCacheDTypeArg>,
    /// Size of the KV cache, e.g. 4GiB [default: by free memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub kv_cache_memory_bytes: Option<u64>,
    /// Memory of the host for beginnings that leave a GPU's KV cache, in GiB [default: none, they
    /// are computed again]
    #[arg(long, value_name = "GIB", value_parser = positive_number, hide_short_help = true)]
    pub kv_offloading_size: Option<f64>,
    /// Memory for images that the vision tower has encoded, so that equal ones are encoded once, in
    /// GiB [default: 4]
    #[arg(long, value_name = "GIB", value_parser = size, hide_short_help = true)]
    pub mm_processor_cache_gb: Option<f64>,
    /// Size of the KV cache in blocks
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub num_gpu_blocks_override: Option<usize>,
    /// Share of memory when no size is given: of a GPU's whole memory, for everything [default:
    /// 0.9]; of the machine's free memory, for the KV cache of the CPU [default: 0.4]
    #[arg(long, value_name = "SHARE", value_parser = share, hide_short_help = true)]
    pub gpu_memory_utilization: Option<f64>,
    /// Compute equal beginnings of prompts once (the default)
    #[arg(long, overrides_with = "no_enable_prefix_caching", hide_short_help = true)]
    pub enable_prefix_caching: bool,
    /// Compute every prompt from its first token
    #[arg(long, overrides_with = "enable_prefix_caching", hide_short_help = true)]
    pub no_enable_prefix_caching: bool,
}

impl CacheArgs {
    /// What was typed about prefix caching.
    pub fn prefix_caching(&self) -> Option<bool> {
        match (self.enable_prefix_caching, self.no_enable_prefix_caching) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

/// `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceArg {
    /// An NVIDIA GPU if one can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
    /// All NVIDIA GPUs of the machine.
    AllCuda,
}

impl std::str::FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DeviceArg::Auto),
            "cpu" => Ok(DeviceArg::Cpu),
            "cuda" => Ok(DeviceArg::Cuda(0)),
            "cuda:all" => Ok(DeviceArg::AllCuda),
            _ => {
                let ordinal = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                let expected = || "expected auto, cpu, cuda, cuda:N or cuda:all".to_owned();
                ordinal.map(DeviceArg::Cuda).ok_or_else(expected)
            }
        }
    }
}

/// `--quantization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum QuantizationArg {
    /// E4M3 weights with a scale per channel, activations with a scale per token: on a GPU
    Fp8,
    /// The same with 8-bit integers, on the CPU
    Int8,
}

/// `--cpu-isa`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum CpuIsaArg {
    /// AVX-512
    Avx512,
    /// AVX-512, and bf16 weights by its dot products
    #[value(name = "avx512-bf16")]
    Avx512Bf16,
    /// AVX-512, and bf16 and int8 by AMX
    Amx,
    /// The bytes of `amx` on a CPU that has AVX2 or AVX-512; slow
    AmxTwin,
    /// AVX2 with FMA
    Avx2,
    /// What every CPU of aarch64 has
    Neon,
    /// The same, and bf16 weights by `bfmmla`
    #[value(name = "neon-bf16")]
    NeonBf16,
    /// What any CPU has
    Portable,
}

/// `--scheduling-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum SchedulingPolicyArg {
    /// First come, first served
    Fcfs,
    /// Requests of a lower `priority` first
    Priority,
}

/// `--prefill-kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PrefillKernelArg {
    /// Of every GPU
    MmaSync,
    /// Of Hopper, for heads of 64 and 128; refused where bits differ
    Wgmma,
}

/// `--kv-cache-dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvCacheDTypeArg {
    /// The model's type
    Auto,
    /// E4M3
    #[value(alias = "fp8_e4m3")]
    Fp8,
}

/// `--dtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DTypeArg {
    /// The checkpoint's own type
    Auto,
    /// 32-bit float
    #[value(alias = "float", alias = "f32")]
    Float32,
    /// bfloat16
    #[value(name = "bfloat16", alias = "bf16")]
    BFloat16,
    /// 16-bit float
    #[value(alias = "half", alias = "f16", alias = "fp16")]
    Float16,
}

/// `--load-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LoadFormatArg {
    /// The files of the model
    #[value(alias = "safetensors")]
    Auto,
    /// Seeded random weights
    Dummy,
}
