//! Completion scripts, generated from the flag table that parsing uses.

use std::io::{self, Write};

use crate::cli::args;

/// Writes the completion script of a shell to standard output.
///
/// # Errors
/// Standard output cannot be written.
pub fn completions(shell: clap_complete::Shell) -> io::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(false), "vllm-batch", &mut script);
    io::stdout().write_all(&script)
}
