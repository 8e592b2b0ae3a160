//! Flags of `join`: which output, by which field its rows are joined, and where texts go. None of a
//! model.

use std::path::PathBuf;

use clap::ArgAction;

use vllm_batch_dataset::terminal::display::MessageArgs;

const JOIN_EXAMPLES: &str = "\
Examples:
  vllm-batch join pages.jsonl --to 'md/{file}.md'
  vllm-batch join pages.csv --to '{name}.txt' --separator '' --field markdown

Rows that follow each other and have one value in a field are joined in their order: the pages of a
PDF become one text. {file} is the value without its extension, {name} its last part. Folders are
made. A file that is there with the same bytes stays, so the same command goes on where it was
stopped. A file of which a row has failed is not written: `run --retry-failed` computes its rows.

Exit codes:
  0 every file is written      3 a row of a file has failed: it is not written
  2 usage; OUT cannot be read  4 no rows      5 stopped: the disk is full or fails
  6 a file is there with other bytes";

/// Flags of `join`.
#[derive(Debug, clap::Args)]
#[command(after_help = JOIN_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct JoinArgs {
    /// The complete output of a run; -: standard input
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Where each text goes, with {file} or {name} in it; subtitles where it ends with .srt or
    /// .vtt
    #[arg(long, value_name = "TEMPLATE")]
    pub to: String,
    /// Field or column that says which rows belong together
    #[arg(long, value_name = "NAME", default_value = "file")]
    pub by: String,
    /// Field or column that holds the text
    #[arg(long, value_name = "NAME", default_value = "response")]
    pub field: String,
    /// What is between two texts [default: an empty line]
    #[arg(long, value_name = "TEXT")]
    pub separator: Option<String>,
    /// Replace files that are there with other bytes
    #[arg(long)]
    pub overwrite: bool,
    /// What is shown.
    #[command(flatten)]
    pub display: MessageArgs,
    /// Show help
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}
