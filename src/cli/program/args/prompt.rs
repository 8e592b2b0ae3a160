//! `--prompt`: one prompt in the place of an input. `run` alone
//! has it.

/// One prompt.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct PromptArgs {
    /// One prompt in place of an input: prints the answer alone
    ///
    /// The prompt - is taken from standard input. It is sent as a user message where the model has
    /// a chat template; --no-chat completes it as text. With --output-format the row is printed as
    /// JSON. With -v the notes and the summary of a run are shown
    #[arg(short = 'p', long, value_name = "TEXT")]
    #[arg(conflicts_with_all = [
        "input", "split", "format", "prompt_column", "template", "row_params", "last_assistant",
        "limit", "sample", "shard", "on_bad_row", "loglikelihood", "out", "errors", "journal",
        "work_dir", "journal_interval", "take_over", "unordered", "overwrite", "retry_failed",
        "max_errors",
    ])]
    pub prompt: Option<String>,
}
