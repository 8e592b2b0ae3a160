//! Flags of `embed`: model, rows in and rows out as of `run`, and how vectors are made.

use clap::ArgAction;

use super::values::{or_minus_one, positive};
use super::{ComputeArgs, EngineArgs, InputArgs, ModelArgs, OutputArgs, RunArgs};
use crate::cli::terminal::display::DisplayArgs;

const EMBED_EXAMPLES: &str = "\
Examples:
  vllm-batch embed --model ./all-MiniLM-L6-v2 -i texts.jsonl -o vectors.jsonl
  cat texts.txt | vllm-batch embed --model ./encoder --format txt | jq -c .embedding
  vllm-batch embed --model ./encoder -i queries.jsonl -o vectors.jsonl --prompt-name query
  vllm-batch embed --model ./encoder -i docs.csv --template '{{title}}: {{text}}' -o vectors.jsonl

A row is what `run` takes: a JSON object with `text`, `input`, ..., a JSON string, a line of text or
a CSV record; or an OpenAI batch line of /v1/embeddings. Its fields pass through to the output, with
`embedding` and `usage` after them. docs/EMBEDDINGS.md has the models.

Exit codes: those of `run`.

`--help -v` adds the rarer flags and the details.";

/// Flags of `embed`.
#[derive(Debug, clap::Args)]
#[command(after_help = EMBED_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct EmbedArgs {
    /// Which model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Rows in.
    #[command(flatten)]
    pub input: InputArgs,
    /// Rows out.
    #[command(flatten)]
    pub output: OutputArgs,
    /// How vectors are made.
    #[command(flatten)]
    pub pooling: PoolingArgs,
    /// Where it is computed.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// What is shown.
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Show help (with -v: every flag)
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}

/// How vectors are made and shown.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Vectors")]
pub struct PoolingArgs {
    /// Which states of a text its vector is made of [default: the model's]
    #[arg(long, value_name = "TYPE")]
    pub pooling_type: Option<PoolingTypeArg>,
    /// Give vectors a length of 1 [default: as the model says]
    #[arg(long, overrides_with = "no_normalize")]
    pub normalize: bool,
    /// Leave vectors as long as they are
    #[arg(long, overrides_with = "normalize")]
    pub no_normalize: bool,
    /// Keep the first N values of a vector, of a model that was trained for it [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub dimensions: Option<usize>,
    /// How vectors are written [default: float]
    #[arg(long, value_name = "FORMAT")]
    pub encoding_format: Option<EncodingFormatArg>,
    /// Put the model's prompt of this name before every text; an empty name: none [default: the
    /// model's default_prompt_name]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Cut texts to N tokens, special ones included; -1: to what the model takes [default: a text
    /// that is too long is an error row]
    #[arg(long, value_name = "N", value_parser = or_minus_one, allow_negative_numbers = true)]
    pub truncate_prompt_tokens: Option<i64>,
}

/// `--pooling-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PoolingTypeArg {
    /// The first token's
    #[value(name = "CLS", alias = "cls")]
    Cls,
    /// The mean of all
    #[value(name = "MEAN", alias = "mean")]
    Mean,
    /// The last token's
    #[value(name = "LAST", alias = "last")]
    Last,
}

/// `--encoding-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EncodingFormatArg {
    /// A list of numbers, each the shortest that gives the same 32 bits again
    Float,
    /// Base64 of 32-bit floats, little-endian
    Base64,
}

impl PoolingArgs {
    /// What was typed about the length of vectors.
    pub fn normalizes(&self) -> Option<bool> {
        match (self.normalize, self.no_normalize) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    }
}

impl EmbedArgs {
    /// The flags that `run` has too, as if they were typed there; and its own.
    pub fn into_run(self) -> (RunArgs, PoolingArgs) {
        let Self { model, input, output, pooling, compute, display, help } = self;
        let engine = EngineArgs { compute, ..EngineArgs::default() };
        let run = RunArgs {
            model,
            input,
            output,
            sampling: Default::default(),
            structured_outputs: Default::default(),
            engine,
            display,
            help,
        };
        (run, pooling)
    }
}
