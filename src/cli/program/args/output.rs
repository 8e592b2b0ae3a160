//! Flags of the output: where rows go, in which form, and what is written beside them.
//! `config/output` says which of them go together.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser as NonEmpty;

use super::values::{MaxErrors, max_errors};

/// Rows out.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Where rows go, in input order; - or nothing: standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Name of the field that holds the answer [default: the command's]
    #[arg(long, value_name = "NAME")]
    pub out_field: Option<String>,
    /// Every output and its token ids where -n or --logprobs ask for them (auto), always (full) or
    /// never (simple); OpenAI's batch lines (openai) [default: auto, batch requests in their form]
    #[arg(long, value_name = "FORMAT")]
    pub output_format: Option<OutputFormatArg>,
    /// What answers are read and signed by.
    #[command(flatten)]
    pub answers: AnswerArgs,
    /// Write the summary of the run as JSON
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Write each row as soon as it has finished, matched by its `id`: for standard output alone
    #[arg(long, hide_short_help = true)]
    pub unordered: bool,
    /// Write a line of JSON to this open descriptor when the model is loaded
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub ready_fd: Option<u32>,
    /// Start over, and replace what exists
    #[arg(long)]
    pub overwrite: bool,
    /// Ask only the rows that failed again, in place
    #[arg(long, conflicts_with = "overwrite")]
    pub retry_failed: bool,
    /// Put error rows into a file of their own instead
    #[arg(long, value_name = "FILE")]
    pub errors: Option<PathBuf>,
    /// Where finished rows are kept until the output is complete [default: beside the output; none
    /// for standard output]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub journal: Option<PathBuf>,
    /// Of an output in a store (s3://...): where its files are until then [default: a folder of
    /// ~/.cache/vllm-batch]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub work_dir: Option<PathBuf>,
    /// Seconds between two pieces of its journal in the store [default: 10]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub journal_interval: Option<u64>,
    /// Go on in the place of a run that is dead, without waiting for a sign of it
    #[arg(long, hide_short_help = true)]
    pub take_over: bool,
    /// Stop after more than N error rows, or P% of the rows (at least 100)
    #[arg(long, value_name = "N|P%", value_parser = max_errors)]
    pub max_errors: Option<MaxErrors>,
}

/// What answers are read and signed by.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Output")]
pub struct AnswerArgs {
    /// How thinking is told from the answer of a chat: a parser of vLLM's, auto for what the chat
    /// template says, or none [default: none]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub reasoning_parser: Option<String>,
    /// How calls are found in the answer of a chat with tools: as --reasoning-parser [default:
    /// auto]
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub tool_call_parser: Option<String>,
    /// Name of the model in lines of batch APIs [default: its hub id, or its folder's name]
    #[arg(long, value_name = "NAME", value_parser = NonEmpty::new(), hide_short_help = true)]
    pub served_model_name: Option<String>,
}

/// `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormatArg {
    /// Every output where -n or --logprobs ask for them; lines of their own form for OpenAI's and
    /// Anthropic's batch requests
    Auto,
    /// The first output alone
    Simple,
    /// Every output, with token ids
    Full,
    /// Response lines of OpenAI's batch API
    #[value(name = "openai")]
    OpenAi,
}
