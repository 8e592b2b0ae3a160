//! The program: flags, the threads of a run, journals, commands. Knows no tensor; of the engine it
//! uses what `tests/tidy/layers.rs` lists.
//!
//! Each folder names only those before it: `args`, `config`, `ledger`, `model`, `run`, `commands`.

pub mod args;
pub mod commands;
pub mod config;
pub mod ledger;
pub mod model;
pub mod run;

use std::backtrace::Backtrace;
use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::PanicHookInfo;

use args::{
    Command, FlagFiles, ParseError, Parsed, PoolingFlags, RunArgs, RunCommandArgs, Settings,
};
use commands::{bench, check, completions, diff, eval, join, man, merge, plan, serve, show};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::display::DisplayArgs;
use vllm_batch_dataset::terminal::error::{CliError, is_lack, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::style::{Environment, Style};

use vllm_batch_base::contained::is_contained;
use vllm_batch_base::machine::{self, Refused};

/// The whole program: from the command line to the exit code.
pub fn main() -> Exit {
    main_with(&model::load_from)
}

/// The same with another engine for `run`.
pub fn main_with(load: run::Load<'_>) -> Exit {
    if let Err(Refused(text)) = machine::reserve_main_stack() {
        return said(&CliError::from_machine(text));
    }
    let argv: Vec<OsString> = std::env::args_os().collect();
    if let Some(exit) = vllm_batch_dataset::judge::keeper::keep(&argv) {
        return exit;
    }
    if let Some(exit) = vllm_batch_dataset::input::pdf::serve(&argv) {
        return exit;
    }
    machine::bound_heaps();
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    if let Err(error) = run::signals::survive_limits() {
        return said(&CliError::from_signals(&error));
    }
    let Parsed { command, settings, files } = match args::parse(&argv, &variables) {
        Ok(parsed) => parsed,
        // A file that a flag names is read while flags are.
        Err(ParseError::Usage(error)) if is_lack(&error.to_string()) => {
            return said(&CliError::from_machine(error.to_string()));
        }
        Err(ParseError::Usage(error)) => {
            // Nobody listening is no reason to fail: `--help | head`.
            let _ = error.print();
            return if error.exit_code() == 0 { Exit::Success } else { Exit::Refused };
        }
        Err(ParseError::Setting(error)) => {
            let console = Console::new(&DisplayArgs::default(), &Environment::read());
            return console.end(Err(error));
        }
    };
    match command {
        Command::Run(args) => completed(*args, files, &settings, load),
        Command::Eval(args) => shown(&args.run.display.clone(), &settings, |console| {
            eval::run(*args, files, console, load)
        }),
        Command::Embed(args) => pooled(Task::Embed, args.into_run(), files, &settings),
        Command::Classify(args) => pooled(Task::Classify, args.into_run(), files, &settings),
        Command::Reward(args) => pooled(Task::Reward, args.into_run(), files, &settings),
        Command::Score(args) => pooled(Task::Score, args.into_run(), files, &settings),
        Command::Rerank(args) => pooled(Task::Rerank, args.into_run(), files, &settings),
        Command::Serve(args) => {
            shown(&args.display.clone(), &settings, |console| serve::run(*args, console))
        }
        Command::Bench(args) => {
            shown(&args.display.clone(), &settings, |console| bench::run(*args, files, console))
        }
        Command::Plan(args) => {
            shown(&args.run.display.clone(), &settings, |console| plan::run(*args, files, console))
        }
        Command::Check(args) => {
            shown(&args.display.clone(), &settings, |console| check::run(*args, console))
        }
        Command::Merge(args) => {
            shown(&args.display.resolved(), &settings, |console| merge::run(&args, files, console))
        }
        Command::Join(args) => {
            shown(&args.display.resolved(), &settings, |console| join::run(&args, console))
        }
        Command::Diff(args) => {
            shown(&args.display.resolved(), &settings, |console| diff::run(&args, console))
        }
        Command::Show(args) => {
            shown(&args.display.resolved(), &settings, |console| show::run(&args, console))
        }
        Command::Completions { shell } => printed(completions::completions(shell)),
        Command::Man => printed(man::man()),
    }
}

/// `run`, over rows, of one prompt, or of one prompt beside pictures.
fn completed(
    args: RunCommandArgs,
    files: FlagFiles,
    settings: &Settings,
    load: run::Load<'_>,
) -> Exit {
    let RunCommandArgs { run: args, one } = args;
    match one.prompt {
        None => {
            shown(&args.display.clone(), settings, |console| run::run(args, files, console, load))
        }
        Some(prompt) if args.input.input.is_empty() => {
            shown(&args.display.of_one_answer(), settings, |console| {
                run::one_prompt::answer(prompt, args, files, console, load)
            })
        }
        Some(prompt) => shown(&args.display.clone(), settings, |console| {
            run::run(run::one_prompt::beside_pictures(prompt, args)?, files, console, load)
        }),
    }
}

/// A command of pooling models.
fn pooled(
    task: Task,
    flags: (RunArgs, PoolingFlags),
    files: FlagFiles,
    settings: &Settings,
) -> Exit {
    let display = flags.0.display.clone();
    shown(&display, settings, |console| run::pool(task, flags, files, console))
}

/// A command with a console: what ends it is shown there.
fn shown(
    display: &DisplayArgs,
    settings: &Settings,
    command: impl FnOnce(&Console) -> Result<Exit, CliError>,
) -> Exit {
    let console = Console::new(display, &Environment::read());
    install_panic_hook(console.verbose());
    settings.tell(&console);
    console.end(command(&console))
}

/// A panic in any thread ends the process: the other threads would wait for ever. It is a bug, or
/// the machine has refused what cannot return an error.
fn install_panic_hook(verbose: bool) {
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_some_and(is_contained) {
            return;
        }
        if let Some(text) = refusal(info) {
            let error = CliError::from_machine(text).render(Style::plain());
            let _ = writeln!(io::stderr(), "{error}");
            std::process::exit(Exit::Stopped.code().into());
        }
        let mut text = bug_report(info);
        if verbose {
            text += &format!("\n{}", Backtrace::force_capture());
        }
        let _ = writeln!(io::stderr(), "{text}");
        std::process::exit(Exit::Internal.code().into());
    }));
}

/// What the machine has refused, where that is what a panic is about. The standard library panics
/// where a thread that has begun gets no memory for its handler of signals.
fn refusal<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let refused = info.payload().downcast_ref().map(|Refused(text)| text.as_str());
    refused.or_else(|| message_of(info).filter(|text| is_lack(text)))
}

fn message_of<'a>(info: &'a PanicHookInfo<'_>) -> Option<&'a str> {
    let text = info.payload().downcast_ref::<&str>().copied();
    text.or_else(|| info.payload().downcast_ref::<String>().map(String::as_str))
}

fn bug_report(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map(|place| format!(" ({place})")).unwrap_or_default();
    let message = sanitized(message_of(info).unwrap_or("no message"));
    format!(
        "error[internal]: internal error, a bug in vllm-batch: {message}{place}\n\
         help: please report it with the command and the output of a run with -v"
    )
}

fn printed(result: io::Result<()>) -> Exit {
    match result {
        Ok(()) => Exit::Success,
        Err(error) => said(&CliError::from_stdout(&error)),
    }
}

/// Says what ended a command that has no console.
fn said(error: &CliError) -> Exit {
    let error = error.clone().or_of_machine();
    if error.exit != Exit::BrokenPipe {
        let _ = writeln!(io::stderr(), "{}", error.render(Style::plain()));
    }
    error.exit
}
