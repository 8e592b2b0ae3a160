//! `run`: a dataset through a model, in four phases. Each is a type, made of the one before it.
//!
//! 1. `Opened`: the input is read on its thread, signals are looked for, the output is locked.
//! 2. `Decided`: the first row has said the task; the configuration is final. An output that is
//!    complete is compared, and may end the run here. Flags as typed are gone.
//! 3. `Loaded`: the engine is there, and the fingerprint of the run.
//! 4. `Running`: the ledger has begun, and the threads work; they share a `Shared`.
//!
//! Where standard input takes its time, the second phase loads the model meanwhile. Knows no other
//! command.

pub mod by_model;
mod complete;
mod decided;
mod end;
mod feed;
mod fingerprinted;
mod loaded;
pub mod lora_of_row;
pub mod meter;
mod model_hashes;
pub mod one_prompt;
pub mod open_model;
mod opened;
pub mod previous;
pub mod progress;
pub mod read;
mod read_ahead;
mod ready;
pub mod report;
pub mod row_params;
mod running;
mod shared;
pub mod signals;
pub mod surroundings;
pub mod tally;
mod unfinished;
mod warnings;
pub mod window;
mod write;

pub use self::end::{interrupted, utc};
pub use self::fingerprinted::{FileFields, JUDGE};
pub use self::loaded::signed;
pub use self::open_model::files_of;
pub use self::opened::inputs;
use crate::args::{FlagFiles, PoolingFlags, RunArgs};
use crate::config::RunConfig;
use crate::ledger::Document;
use crate::ledger::remote::Staged;
use crate::model::{self, Folders};
use decided::{Decided, Next};
use loaded::Loaded;
use opened::{OpenInput, Opened};
use running::Running;
use surroundings::{ModelFrom, Surroundings};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::load::model_summary::ModelSummary;
pub use write::no_verdict;

/// Makes the engine of a run that has one, of a configuration, the folders of its model and what
/// its small files say.
pub type Load<'a> =
    &'a dyn Fn(&RunConfig, &Folders, &ModelSummary) -> Result<model::Loaded, CliError>;

/// Completes the rows of a dataset; or does what its lines of a batch API ask for, which may be
/// vectors or scores.
///
/// # Errors
/// Whatever ends the run before its last row.
pub fn run(
    mut args: RunArgs,
    files: FlagFiles,
    console: &Console,
    load: Load<'_>,
) -> Result<Exit, CliError> {
    model::fetch_inputs(&mut args.input.input, &args.input.dataset, console)?;
    let staged = Staged::of(&mut args.output)?;
    let config = RunConfig::new(args.clone())?.by_lines();
    let typed = Typed { files, flags: Some(args), staged };
    let surroundings = Surroundings::of_process(console, load)?;
    run_config(config, typed, surroundings).map(|(exit, _)| exit)
}

/// Completes the rows of a dataset, and gives each a verdict. Says how it ended, and which
/// documents are to be written of it.
///
/// # Errors
/// As `run`.
pub fn judged(
    config: RunConfig,
    files: FlagFiles,
    console: &Console,
    load: Load<'_>,
) -> Result<(Exit, Vec<Document>), CliError> {
    let surroundings = Surroundings::of_process(console, load)?;
    run_config(config, Typed { files, flags: None, staged: None }, surroundings)
}

/// Answers the rows of a file beside whatever else the engine is asked.
///
/// # Errors
/// As `run`.
pub fn beside(config: RunConfig, surroundings: Surroundings<'_>) -> Result<Exit, CliError> {
    let typed = Typed { files: FlagFiles::default(), flags: None, staged: None };
    run_config(config, typed, surroundings).map(|(exit, _)| exit)
}

/// Makes vectors or classes of the rows of a dataset, as the task says.
///
/// # Errors
/// As `run`.
pub fn pool(
    task: Task,
    mut flags: (RunArgs, PoolingFlags),
    files: FlagFiles,
    console: &Console,
) -> Result<Exit, CliError> {
    let input = &mut flags.0.input;
    model::fetch_inputs(&mut input.input, &input.dataset, console)?;
    let staged = Staged::of(&mut flags.0.output)?;
    let typed = Typed { files, flags: None, staged };
    let config = RunConfig::pooling(task, flags)?;
    let surroundings = Surroundings::of_process(console, &model::load_from)?;
    run_config(config, typed, surroundings).map(|(exit, _)| exit)
}

/// What was typed and is no part of the configuration.
struct Typed {
    /// The files that flags name.
    files: FlagFiles,
    /// All of it, where the first row decides what it is typed for.
    flags: Option<RunArgs>,
    /// An output that is an object.
    staged: Option<Staged>,
}

/// Runs a dataset through a model. An output that is an object becomes one at the end. Reports are
/// for whoever asked for them: their names are this run's.
fn run_config(
    config: RunConfig,
    typed: Typed,
    surroundings: Surroundings<'_>,
) -> Result<(Exit, Vec<Document>), CliError> {
    let Typed { files, flags, staged } = typed;
    let (console, model) = (surroundings.console, surroundings.model);
    let input = OpenInput::open(&config, surroundings)?;
    if let Some(staged) = &staged {
        staged.refuse_read(&config.input.sources)?;
    }
    let overwrite = config.output.overwrite;
    let remote = staged.map(|staged| staged.begin(overwrite, console)).transpose()?;
    let opened = input.with_output(config, flags, files, remote.as_ref());
    let ended = opened.and_then(|opened| run_phases(opened, model));
    match (&remote, &ended) {
        (Some(remote), Ok(_)) => remote.publish(console)?,
        (Some(remote), Err(_)) => remote.leave(console),
        (None, _) => {}
    }
    ended
}

fn run_phases(
    mut opened: Opened<'_>,
    model: ModelFrom<'_>,
) -> Result<(Exit, Vec<Document>), CliError> {
    let reports = opened.take_reports();
    let exit = match Decided::of(opened, model)? {
        Next::Nothing(exit) => exit,
        Next::Run(decided) => Running::of(Loaded::of(*decided, model)?)?.finish()?,
    };
    Ok((exit, reports))
}
