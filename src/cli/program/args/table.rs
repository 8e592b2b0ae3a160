//! The flag table of all commands: what parsing, help, completions and the manual page are made
//! from.

use std::path::PathBuf;

use clap::{Arg, ArgAction, CommandFactory};

use super::{Cli, eval, settings};
use vllm_batch_dataset::input::row::Task;

/// Flags that texts which are compared have no use for. They are refused by name.
const REFUSED_OF_SCORES: &[&str] = &[
    "prompt_column",
    "template",
    "chat",
    "no_chat",
    "system_prompt",
    "last_assistant",
    "encoding_format",
];

/// Flags of vectors, classes and scores that `plan` takes with `--task`. Short help leaves them to
/// the help of the commands that have them.
const PLANNED_OF_TASKS: &[&str] = &[
    "pooling_type",
    "normalize",
    "no_normalize",
    "dimensions",
    "sparse",
    "encoding_format",
    "prompt_name",
    "use_activation",
    "no_activation",
    "max_tokens_per_query",
    "max_tokens_per_doc",
    "document_prompt_name",
    "top_n",
];

/// The flag table: what parsing, help, completions and the manual page are made from.
pub fn command(long_help: bool) -> clap::Command {
    // `check` is too short for progress; the flag is accepted as by the other commands.
    let hidden = |arg: Arg| arg.hide(true);
    Cli::command().mut_subcommands(|command| {
        let command = match command.get_name() {
            "check" => command.mut_arg("progress", hidden),
            "plan" => PLANNED_OF_TASKS.iter().fold(command, |command, flag| {
                command.mut_arg(flag, |arg| arg.hide_short_help(true))
            }),
            "eval" => eval::without_model(command),
            "score" | "rerank" => REFUSED_OF_SCORES
                .iter()
                .fold(command, |command, flag| command.mut_arg(flag, hidden)),
            _ => command,
        };
        let task = Task::ALL.into_iter().find(|task| task.command() == command.get_name());
        let command = match task {
            Some(task) => command.mut_arg("out_field", |arg| arg.help(answer_help(task))),
            None => command,
        };
        if !command.get_arguments().any(|arg| arg.get_id() == "verbose") {
            return command;
        }
        let command = command.arg(config_flag());
        match long_help {
            true => command.mut_arg("help", |arg| arg.action(ArgAction::HelpLong)),
            false => command,
        }
    })
}

/// What `--out-field` says of itself, of the command of a task.
fn answer_help(task: Task) -> String {
    format!("Name of the field that holds the answer [default: {}]", task.answer_field())
}

fn config_flag() -> Arg {
    Arg::new(settings::CONFIG)
        .long(settings::CONFIG)
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help_heading("Settings")
        .help("Flags from a TOML file, under the name of the command: [run]")
        .long_help(
            "Flags from a TOML file, under the name of the command: [run]\n\n\
             Keys are the long names of flags: max-tokens = 256. Every flag has a variable too: \
             VLLM_BATCH_MAX_TOKENS is --max-tokens, VLLM_BATCH_CONFIG is --config. What is typed \
             wins over variables, and they over the file; -v says which count",
        )
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::{ParseError, parse};

    #[test]
    fn the_flag_table_is_consistent() {
        command(false).debug_assert();
        command(true).debug_assert();
    }

    #[test]
    fn every_command_names_the_field_of_its_answer() {
        let help = |command: &str| {
            let argv = ["vllm-batch", command, "--help"].map(OsString::from);
            let Err(ParseError::Usage(help)) = parse(&argv, &[]) else { panic!("{command}") };
            help.to_string()
        };
        for task in Task::ALL {
            let help = help(task.command());
            let wanted = format!("holds the answer [default: {}]", task.answer_field());
            assert!(help.contains(&wanted), "{help}");
            assert!(help.lines().count() < 100, "{} lines: {help}", help.lines().count());
        }
        assert!(help("plan").contains("--task") && !help("plan").contains("--dimensions"));
    }
}
