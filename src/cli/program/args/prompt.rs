//! `--prompt`: one prompt in the place of an input, or beside each
//! picture of one. `run` alone has it.

use clap::Id;
use clap::builder::Resettable;
use clap::parser::ValueSource;

/// One prompt.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct PromptArgs {
    /// One prompt in place of an input: prints the answer alone
    ///
    /// Beside --input 'photos/*.jpg' it is asked of each picture, and the output is that of a run.
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

/// The same program for a command line with `--prompt` beside `--input`: there it is the text of
/// every picture, and goes with all flags of a run but those that say the same.
pub(super) fn beside_input(program: clap::Command, argv: &[std::ffi::OsString]) -> clap::Command {
    // Most command lines are not parsed once more for it.
    let may_have = |flag: &std::ffi::OsString| {
        let text = flag.to_string_lossy();
        let is_short = text.starts_with('-') && !text.starts_with("--");
        text.starts_with("--prompt") || is_short && text.contains('p')
    };
    if argv.get(1).is_none_or(|command| command != "run") || !argv.iter().any(may_have) {
        return program;
    }
    let beside = program.clone().mut_subcommand("run", |run| {
        run.mut_arg("prompt", |arg| {
            let arg = arg.conflicts_with(Resettable::<Id>::Reset);
            arg.conflicts_with_all(["template", "prompt_column"])
        })
    });
    let typed = beside.clone().mut_subcommands(super::settings::without_required);
    let has_both = typed.try_get_matches_from(argv).is_ok_and(|matches| {
        let is_typed =
            |run: &clap::ArgMatches, name| run.value_source(name) == Some(ValueSource::CommandLine);
        let run = matches.subcommand_matches("run");
        run.is_some_and(|run| is_typed(run, "prompt") && is_typed(run, "input"))
    });
    if has_both { beside } else { program }
}
