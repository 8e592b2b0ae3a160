//! Completion scripts and the manual page, generated from the flag table that parsing uses.

use std::io::{self, Write};

use super::args;

/// Writes the completion script of a shell to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(shell: clap_complete::Shell) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(false), "vllm-batch", &mut script);
    io::stdout().write_all(&script)
}

/// Writes the manual page, subcommands included, to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn man() -> io::Result<()> {
    let mut command = args::command(true);
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for (name, full_name) in [
        ("run", "vllm-batch run"),
        ("bench", "vllm-batch bench"),
        ("merge", "vllm-batch merge"),
        ("diff", "vllm-batch diff"),
    ] {
        let subcommand = command.find_subcommand(name).expect("it is in the table").clone();
        writeln!(page, ".SH \"THE {} COMMAND\"", name.to_uppercase())?;
        let man = clap_mangen::Man::new(subcommand.name(full_name));
        man.render_options_section(&mut page)?;
    }
    io::stdout().write_all(&page)
}
