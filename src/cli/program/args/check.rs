//! Flags of `check`: those of the input that need no model. A row is checked as `run` would read
//! it.

use std::path::PathBuf;

use clap::ArgAction;
use clap::builder::NonEmptyStringValueParser as NonEmpty;

use super::values::{count, positive};
use super::{
    ImageArgs, LastAssistantArg, LayoutArgs, LoraModulesArgs, SampleArgs, SplitArgs, TaskArg,
};
use vllm_batch_dataset::input::own_params::OwnParams;
use vllm_batch_dataset::terminal::display::DisplayArgs;

/// Errors shown of a file.
pub const DEFAULT_MAX_ERRORS: usize = 100;

const CHECK_EXAMPLES: &str = "\
Examples:
  vllm-batch check prompts.jsonl
  vllm-batch check --template 'Summarise: {{text}}' reviews.csv.gz
  vllm-batch check --task score pairs.jsonl
  zcat huge.jsonl.gz | vllm-batch check --limit 10000 -

What is checked is what `run` (or the command of --task) makes an error row of before it asks the
model: JSON and CSV, the encoding, the shape of each row, its messages, its parameters as far as
their limits do not depend on the model, the headers of their images, that no two batch requests have one custom_id, and that adapters
that they name are among --lora-modules.

Exit codes:
  0 every row is good          2 a bad row, or an input that is refused          4 no rows
  5 stopped: the machine lacks memory or open files";

/// Flags of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct CheckArgs {
    /// Inputs to check; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "input")]
    pub files: Vec<PathBuf>,
    /// The same, as `run` takes them
    #[arg(short = 'i', long, value_name = "FILE", num_args = 1.., help_heading = "Input")]
    pub input: Vec<PathBuf>,
    /// The command that the rows are for [default: run]
    #[arg(long, value_name = "COMMAND", help_heading = "Input")]
    pub task: Option<TaskArg>,
    /// Which part of a dataset.
    #[command(flatten)]
    pub dataset: SplitArgs,
    /// How their bytes become rows.
    #[command(flatten)]
    pub layout: LayoutArgs,
    /// Column or field that holds the prompt [default: the first of prompt, messages, text,
    /// question, ...]
    #[arg(long, value_name = "COLUMN", help_heading = "Input")]
    pub prompt_column: Option<String>,
    /// Prompt made from a row's fields, e.g. 'Summarise: {{text}}'
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_column", help_heading = "Input")]
    pub template: Option<String>,
    /// Rows as `run --row-params` takes them
    #[arg(long, value_name = "all|none|NAMES", value_parser = OwnParams::parse)]
    #[arg(help_heading = "Input")]
    pub row_params: Option<OwnParams>,
    /// Rows as `run --chat` takes them
    #[arg(long, conflicts_with = "no_chat", help_heading = "Input")]
    pub chat: bool,
    /// Rows as `run --no-chat` takes them: messages are refused
    #[arg(long, help_heading = "Input")]
    pub no_chat: bool,
    /// Rows as `run --last-assistant` takes them
    #[arg(long, value_name = "WHAT", help_heading = "Input")]
    pub last_assistant: Option<LastAssistantArg>,
    /// Rows as `run --allow-empty-prompts` takes them
    #[arg(long, help_heading = "Input")]
    pub allow_empty_prompts: bool,
    /// Images of the rows.
    #[command(flatten)]
    pub images: ImageArgs,
    /// Names that rows may use of adapters. No folder is looked at.
    #[command(flatten)]
    pub lora: LoraModulesArgs,
    /// The model, as `run` takes it, which rows may name beside adapters; it is not looked at
    #[arg(short = 'm', long, value_name = "DIR|GGUF|HF_ID", help_heading = "Input")]
    pub model: Option<PathBuf>,
    /// Name of the model as `run` takes it
    #[arg(long, value_name = "NAME", value_parser = NonEmpty::new(), help_heading = "Input")]
    pub served_model_name: Option<String>,
    /// Check only the first N rows of each input
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Input")]
    pub limit: Option<usize>,
    /// A random part of the rows of each input.
    #[command(flatten)]
    pub sample: SampleArgs,
    /// Show only the first N errors of each input, and count the others [default: 100]
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Display")]
    pub max_errors: Option<usize>,
    /// What is shown.
    #[command(flatten)]
    pub display: DisplayArgs,
    /// Show help
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}
