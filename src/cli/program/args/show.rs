//! Flags of `show`: which output or journal, and which of its
//! rows. None of a model.

use std::path::PathBuf;

use clap::ArgAction;

use vllm_batch_dataset::terminal::display::MessageArgs;

const SHOW_EXAMPLES: &str = "\
Examples:
  vllm-batch show out.jsonl | tail -n 3 | jq -r .response
  vllm-batch show out.csv --follow
  vllm-batch show out.jsonl --failed | jq -r .error.message | sort | uniq -c

OUT is the name that the run was given with -o. While the run works, and after it was stopped, its
finished rows are in OUT.journal, in the order in which they finished, and `show` prints them as
they will stand in OUT. Of a complete output it prints the rows of OUT. A run with --journal FILE is
shown by the name of that FILE.

Rows of Parquet files and of NumPy's matrices are printed as JSON lines. CSV comes with its header.
The run is not disturbed: nothing is written, and a row that is half written is left for later.

Exit codes:
  0 rows were printed          2 no such job, or not readable
  4 no row has finished yet; with --failed: none has failed
  5 --follow: the run ended before its last row. The same command as before continues it
  141 the reader went away (`| head`)";

/// Flags of `show`.
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES, disable_help_flag = true, args_override_self = true)]
pub struct ShowArgs {
    /// The output of the run, as -o names it; or its journal
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Print further rows as they finish, until the run ends
    #[arg(short = 'f', long)]
    pub follow: bool,
    /// Print error rows only
    #[arg(long)]
    pub failed: bool,
    /// What is shown.
    #[command(flatten)]
    pub display: MessageArgs,
    /// Show help
    #[arg(short = 'h', long, action = ArgAction::HelpShort, help_heading = "Display")]
    pub help: Option<bool>,
}
