//! `--prompt`: one prompt that was typed, and its answer alone; or what is asked of each picture.

use std::io::{self, IsTerminal, Read};
use std::path::Path;

use super::surroundings::Surroundings;
use super::{Load, Typed, run_config};
use crate::args::{FlagFiles, RunArgs};
use crate::config::RunConfig;
use crate::model;
use vllm_batch_dataset::input::reader::MAX_LINE;
use vllm_batch_dataset::input::row::ChatMode;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Stands for standard input.
const STDIN: &str = "-";

/// Answers one prompt: as a user message where the model has a chat template, else as text.
///
/// # Errors
/// Whatever ends the run; its row has an error.
pub fn answer(
    prompt: String,
    mut args: RunArgs,
    files: FlagFiles,
    console: &Console,
    load: Load<'_>,
) -> Result<Exit, CliError> {
    let is_stdin = prompt == STDIN;
    args.input.prompt = Some(if is_stdin { of_stdin()? } else { prompt });
    let mut config = RunConfig::new(args)?;
    if config.input.rows.chat == ChatMode::Auto {
        let folders = model::find(&config, console)?;
        if model::has_chat_template(&config, &folders)? {
            config.input.rows.chat = ChatMode::Always;
        }
    }
    let typed = Typed { files, flags: None, staged: None };
    let (exit, _) = run_config(config, typed, Surroundings::of_process(console, load)?)?;
    if !is_stdin && is_left_unread() {
        console.warn("standard input was not read; `--prompt -` takes the prompt from it");
    }
    Ok(exit)
}

/// The flags of a run over pictures that are asked the same. It is a template without fields, of
/// which only rows with images may have one.
///
/// # Errors
/// The input has other rows than pictures, or the prompt would be read as a template with fields.
pub fn beside_pictures(prompt: String, mut args: RunArgs) -> Result<RunArgs, CliError> {
    let refused = |what: &str, help| Err(CliError::refused("input", what).help(help));
    let parts = args.input.images.pages.options();
    let layout = |path: Option<&Path>| args.input.layout.resolve(path);
    if !Sources::new(&args.input.input, layout, &parts)?.are_pictures() {
        return refused(
            "--prompt goes with --input only where that is pictures or PDFs",
            "put a prompt around the fields of rows with --template 'Summarise: {{text}}'",
        );
    }
    let prompt = if prompt == STDIN { of_stdin()? } else { prompt };
    if prompt.contains("{{") {
        return refused(
            "--prompt has no fields, and has '{{'",
            "use --template, which puts fields of the rows into the text",
        );
    }
    args.input.template = Some(prompt);
    Ok(args)
}

/// All of standard input, without its last line break.
fn of_stdin() -> Result<String, CliError> {
    let refused = |what: String| CliError::refused("input", format!("--prompt -: {what}"));
    let mut bytes = Vec::new();
    let read = io::stdin().take(MAX_LINE as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| refused(format!("standard input cannot be read: {error}")))?;
    if bytes.len() > MAX_LINE {
        let limit = MAX_LINE >> 20;
        return Err(refused(format!("standard input has more than {limit} MiB")));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to() + 1;
        refused(format!("the byte at offset {place} of standard input is not UTF-8"))
            .help("convert it with iconv")
    })?;
    if text.ends_with('\n') {
        text.pop();
        text.truncate(text.strip_suffix('\r').map_or(text.len(), str::len));
    }
    Ok(text)
}

/// Whether bytes of a pipe or a file wait on standard input.
fn is_left_unread() -> bool {
    let stdin = io::stdin();
    !stdin.is_terminal() && rustix::io::ioctl_fionread(&stdin).is_ok_and(|bytes| bytes > 0)
}
