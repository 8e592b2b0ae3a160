//! Flags of `bench`: vLLM's `bench throughput` names where it has one. What is measured is in
//! `commands/bench`.

use std::path::PathBuf;

use clap::ArgAction;

use super::values::{count, positive, positive_number, positive_u32, ratio, seed};
use super::{EngineArgs, ImageArgs, ModelArgs};
use vllm_batch_dataset::terminal::display::DisplayArgs;

const BENCH_EXAMPLES: &str = "\
Examples:
  vllm-batch bench --model ./model --num-prompts 200
  vllm-batch bench --model ./model --dataset rows.jsonl --output-json result.json
  vllm-batch bench --model ./model --dataset photos --template 'Describe the image.'
  vllm-batch bench --model ./model --mode decode --num-prompts 64 --memory-bandwidth 4800
  vllm-batch bench --model ./model --mode prefill --input-len 2048 --peak-tflops 989
  vllm-batch bench --model ./model --num-prompts 4096 --random-range-ratio 0.9 --end-of-text
  vllm-batch bench --model ./config-only --tokenizer ./model --load-format dummy --dtype bfloat16

What is measured:
  throughput  all rows, from the first request to the last output, tokenization included
  prefill     prompts alone: one output token per row, no prefix cache
  decode      steps in which all rows are running and each computes exactly one token

Rows are random token ids (the same for the same --seed), or a dataset. They are decoded greedily
and past the end of text, so each gives exactly its number of tokens. Warm-up rows are other random
ids, and leave nothing in the result. A tokenizer is always loaded; --tokenizer names one where the
model's folder has none. Loading is timed apart.

A queue as datasets are: more rows than --max-num-seqs, --random-range-ratio for mixed lengths,
--end-of-text so that nobody knows them beforehand, --prefix-len for instructions that all rows
begin with, --num-long-prompts for long prompts beside short ones.

With --peak-tflops and --memory-bandwidth a floor is shown: the time of all products, each step's
operations or weights, whichever takes longer, and that of attention, the operations of prompts and
the K and V that output tokens read.

On the CPU a table follows: calls and time of each op, and which share of its time its floor is.
The floor is what the op's operations, or its weights, inputs and outputs read from memory once,
take at the machine's limits. Limits are --peak-tflops (of the linear layers) and
--memory-bandwidth, or else measured on all threads before and after the rows, the better counts.
Small ops find their inputs in caches, and may be faster than memory: above 100%.

The result goes to standard output, everything else to standard error; -q hides the latter.";

/// Flags of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = BENCH_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct BenchArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// What is run.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Images of the dataset's rows.
    #[command(flatten)]
    pub images: ImageArgs,
    /// What is said of it.
    #[command(flatten)]
    pub result: ResultArgs,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// What is shown.
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Show help (with -v: every flag)
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}

/// What is run.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArgs {
    /// What is measured [default: throughput]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<ModeArg>,
    /// Rows [default: 1000; prefill: 32; decode: 64; with --dataset: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub num_prompts: Option<usize>,
    /// Tokens of a random prompt [default: 1024]
    #[arg(long, alias = "random-input-len", value_name = "N", value_parser = positive)]
    #[arg(conflicts_with = "dataset")]
    pub input_len: Option<usize>,
    /// Tokens to generate per row, or per row of the dataset that has no max_tokens [default: 128;
    /// prefill: always 1]
    #[arg(long, alias = "random-output-len", value_name = "N", value_parser = positive_u32)]
    pub output_len: Option<u32>,
    /// Vary both lengths evenly by this share, in [0, 1) [default: 0]
    #[arg(long, value_name = "R", value_parser = ratio, conflicts_with = "dataset")]
    pub random_range_ratio: Option<f64>,
    /// Tokens that all random prompts begin with, before their own [default: 0]
    #[arg(long, alias = "random-prefix-len", value_name = "N", value_parser = count)]
    #[arg(conflicts_with = "dataset")]
    pub prefix_len: Option<usize>,
    /// Rows, evenly spread, whose prompts have --long-input-len tokens of their own [default: 0]
    #[arg(long, value_name = "N", value_parser = count, requires = "long_input_len")]
    #[arg(conflicts_with = "dataset")]
    pub num_long_prompts: Option<usize>,
    /// Tokens of these prompts
    #[arg(long, value_name = "N", value_parser = positive, requires = "num_long_prompts")]
    pub long_input_len: Option<usize>,
    /// Random rows end by an end of text that the scheduler does not foresee, at the same lengths
    #[arg(long, conflicts_with = "dataset")]
    pub end_of_text: bool,
    /// Rows, or pictures, as `run` takes them, with their `max_tokens`; their other parameters are
    /// ignored
    #[arg(short = 'i', long, aliases = ["dataset-path", "input"], value_name = "FILE")]
    #[arg(num_args = 1..)]
    pub dataset: Vec<PathBuf>,
    /// Prompt made from the fields of a row of the dataset, e.g. 'Describe the image.'
    #[arg(long, value_name = "TEXT", requires = "dataset", conflicts_with = "prompt_column")]
    pub template: Option<String>,
    /// Column or field of the dataset with the prompt [default: as `run`]
    #[arg(long, value_name = "COLUMN", requires = "dataset")]
    pub prompt_column: Option<String>,
    /// Rows to run first and forget, of the same lengths [default: 0]
    #[arg(long, value_name = "N", value_parser = count)]
    pub num_warmups: Option<usize>,
    /// Seed of random prompts and dummy weights [default: 0]
    #[arg(long, value_name = "N", value_parser = seed, allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

/// What is said of it.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Result")]
pub struct ResultArgs {
    /// Write the result as JSON: vLLM's keys and more
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
    /// What the memory gives, to show the share of it that decode and each op reach
    #[arg(long, value_name = "GB/S", value_parser = positive_number)]
    pub memory_bandwidth: Option<f64>,
    /// What the device computes in this dtype, to show the share of it that the model and each op
    /// reach
    #[arg(long, value_name = "TFLOPS", value_parser = positive_number)]
    pub peak_tflops: Option<f64>,
    /// The same for attention and the output layer, where linear layers compute in another dtype
    /// [default: --peak-tflops]
    #[arg(long, value_name = "TFLOPS", value_parser = positive_number, requires = "peak_tflops")]
    pub attention_tflops: Option<f64>,
    /// On a GPU: time every kernel, without CUDA graphs (on the CPU ops are always timed)
    #[arg(long)]
    pub time_ops: bool,
}

/// `--mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ModeArg {
    /// Whole rows
    #[default]
    Throughput,
    /// Steps of one token per row
    Decode,
    /// Prompts alone
    Prefill,
}
