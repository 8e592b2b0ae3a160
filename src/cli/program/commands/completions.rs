//! Completion scripts, generated from the flag table that parsing uses.

use std::io::{self, Write};

use clap::Command;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

use crate::args;
use vllm_batch_dataset::judge::settings::Scorer;
use vllm_batch_text::AnswerParser;

/// Writes the completion script of a shell to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(shell: Shell) -> io::Result<()> {
    io::stdout().write_all(script(shell).as_bytes())
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    let mut program = with_names(args::command(false));
    clap_complete::generate(shell, &mut program, "vllm-batch", &mut script);
    let script = String::from_utf8(script).expect("scripts are text");
    match shell {
        // It takes the dash of the name for the border of a command in its labels, and does not in
        // what they are compared with.
        Shell::Bash => script.replace("vllm__subcmd__batch", "vllm__batch"),
        _ => script,
    }
}

/// The same flags with the names that they take, where the program says them in words of its own.
fn with_names(program: Command) -> Command {
    let scorers = Scorer::ALL.iter().map(|(name, _)| *name).collect();
    let lists = [
        ("scorer", scorers),
        ("reasoning_parser", AnswerParser::reasoning_names()),
        ("tool_call_parser", AnswerParser::tool_call_names()),
    ];
    program.mut_subcommands(|command| {
        lists.iter().fold(command, |command, (id, names)| {
            let has_it = command.get_arguments().any(|arg| arg.get_id() == *id);
            match has_it {
                true => command
                    .mut_arg(*id, |arg| arg.value_parser(PossibleValuesParser::new(names.clone()))),
                false => command,
            }
        })
    })
}
