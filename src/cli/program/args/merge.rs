//! Flags of `merge`: the outputs of all shards, and where their
//! rows go. None of a model.

use std::path::PathBuf;

use clap::ArgAction;

use vllm_batch_dataset::terminal::display::MessageArgs;

const MERGE_EXAMPLES: &str = "\
Examples:
  for i in 0 1 2; do vllm-batch run --model ./model -i in.jsonl --shard $i/3 -o s$i.jsonl; done
  vllm-batch merge --verify s0.jsonl s1.jsonl s2.jsonl -o out.jsonl

Each shard needs its .meta.json beside it, which a finished run writes. Shards of other runs (model,
flags, input), missing shards, shards given twice and files of another length than their run left
are refused. --verify also reads every byte of a shard against the checksum in its .meta.json: then
the result is, to the byte, what one run without --shard writes.

Exit codes:
  0 joined                     2 usage; a shard or its .meta.json is missing or unreadable
  5 stopped before the end     6 a shard is not what one run left, or the output exists";

/// Flags of `merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = MERGE_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct MergeArgs {
    /// The outputs of all shards of one run, in any order
    #[arg(value_name = "SHARD", required = true)]
    pub shards: Vec<PathBuf>,
    /// Where the rows go, in the order of the input
    #[arg(short = 'o', long, value_name = "FILE")]
    pub out: PathBuf,
    /// Prove that the result equals one run: compare the checksum of every shard
    #[arg(long)]
    pub verify: bool,
    /// Replace an output that exists
    #[arg(long)]
    pub overwrite: bool,
    /// What is shown.
    #[command(flatten)]
    pub display: MessageArgs,
    /// Show help
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}
