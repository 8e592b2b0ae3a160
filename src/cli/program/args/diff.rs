//! Flags of `diff`: two outputs, how their rows are paired, and what is shown of a difference. None
//! of a model.

use std::path::PathBuf;

use clap::ArgAction;

use super::values::count;
use vllm_batch_dataset::terminal::display::MessageArgs;

const DIFF_EXAMPLES: &str = "\
Examples:
  vllm-batch diff before.jsonl after.jsonl
  vllm-batch diff --json before.jsonl after.jsonl | jq .token
  vllm-batch diff --by-id ours.jsonl openai_batch_output.jsonl

Compared are answers: their token ids where both rows have them (--output-format full), else their
text; finish_reason; an error against an answer. Rows are JSON lines of `run`, OpenAI response lines
or CSV. Rows that differ in other fields only are counted, and are equal.

Exit codes:
  0 all answers are equal      100 some differ, or are in one file only
  2 a file cannot be read or has no such field";

/// Flags of `diff`.
#[derive(Debug, clap::Args)]
#[command(after_help = DIFF_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct DiffArgs {
    /// One output; -: standard input
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// The other
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// Field or column that holds the answer
    #[arg(long, value_name = "NAME", default_value = "response")]
    pub field: String,
    /// Pair rows by `custom_id` or `id`, not by position; rows wait in memory for their partner
    #[arg(long)]
    pub by_id: bool,
    /// Rows to show [default: 20; --json: all]
    #[arg(long, value_name = "N", value_parser = count)]
    pub max_shown: Option<usize>,
    /// A JSON object on standard output for each row that differs
    #[arg(long)]
    pub json: bool,
    /// What is shown.
    #[command(flatten)]
    pub display: MessageArgs,
    /// Show help
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}
