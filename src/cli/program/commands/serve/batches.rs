//! Batches of a server as runs: each is what `run` does with its file, beside whatever else the
//! engine is asked.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::Flags;
use crate::args::{InputArgs, OutputArgs, ServerArgs};
use crate::config::{ParticularFlags, RunConfig};
use crate::model::{Loaded, Summary};
use crate::run::open_model::OpenModel;
use crate::run::progress::Counters;
use crate::run::row_params::RowParams;
use crate::run::signals::Signals;
use crate::run::surroundings::{ModelFrom, Rest, Surroundings};
use crate::run::{self, FileFields};
use vllm_batch_base::machine;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::input::row_error::NotRun;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::serve::runner::Runner;
use vllm_batch_server::{BatchRun, Batches, Job, RunBatches, Store, Unfinished};

/// The model that a server has loaded.
pub(super) struct ServedModel {
    /// What the flags mean for requests.
    pub(super) config: Arc<RunConfig>,
    /// What its small files say.
    pub(super) summary: Arc<Summary>,
    /// Hashes of its files.
    pub(super) files: FileFields,
    pub(super) model_dir: PathBuf,
}

/// Opens the folder of files and batches.
///
/// # Errors
/// It cannot be had.
pub(super) fn open(dir: &Path) -> Result<Store, CliError> {
    Store::open(dir).map_err(|error| {
        let message = format!("--batch-dir {}: {error}", dir.display());
        CliError::refused("batch_dir", message).help("give a folder that this server alone writes")
    })
}

/// Refuses batches of a model whose answers no line of a batch has.
///
/// # Errors
/// It is one.
pub(super) fn check(task: Task) -> Result<(), CliError> {
    match task {
        Task::Complete | Task::Embed | Task::Score | Task::Rerank => Ok(()),
        Task::Classify | Task::Reward => {
            let message = format!("--batch-dir: lines of batches do not ask for {}", task.gives());
            let help = format!("leave it out; `vllm-batch {}` takes datasets", task.command());
            Err(CliError::refused("flag", message).help(help))
        }
    }
}

/// What batches are run with.
pub(super) fn of(
    store: Store,
    server: &ServerArgs,
    flags: Flags,
    model: ServedModel,
    console: &Console,
) -> Batches {
    let task = model.config.input.rows.task;
    Batches {
        store: Arc::new(store),
        max_file_bytes: server.max_file_bytes,
        has_deadlines: server.enforce_completion_window,
        endpoints: match task {
            Task::Complete => vec!["/v1/chat/completions", "/v1/completions", "/v1/responses"],
            Task::Embed => vec!["/v1/embeddings"],
            Task::Score => vec!["/v1/score", "/score"],
            Task::Rerank => vec!["/v1/rerank", "/v2/rerank", "/rerank"],
            Task::Classify | Task::Reward => unreachable!("`check` refuses them"),
        },
        takes_messages: task == Task::Complete,
        runner: Arc::new(Runs(Arc::new(Setup { flags, model, console: console.clone() }))),
    }
}

/// What every batch is run with.
struct Setup {
    flags: Flags,
    model: ServedModel,
    console: Console,
}

struct Runs(Arc<Setup>);

impl RunBatches for Runs {
    fn prepare(&self) -> Arc<dyn BatchRun> {
        let (counters, rest) = Default::default();
        Arc::new(Batch { setup: Arc::clone(&self.0), signals: Signals::by_hand(), counters, rest })
    }

    fn say(&self, text: &str) {
        self.0.console.warn(text);
    }
}

/// A batch, as a run.
struct Batch {
    setup: Arc<Setup>,
    signals: Signals,
    counters: Arc<Counters>,
    rest: Rest,
}

impl BatchRun for Batch {
    fn run(&self, job: Job) -> Result<(), Unfinished> {
        let console = self.setup.console.silent();
        match self.answered(job, &console) {
            Ok(_) => Ok(()),
            Err(_) if self.signals.exit().is_some() => Err(Unfinished::Stopped),
            Err(error) if error.exit == Exit::Stopped => Err(Unfinished::Again(error.message)),
            Err(error) => Err(Unfinished::Failed(error.code, error.message)),
        }
    }

    fn give_up(&self, why: NotRun) {
        self.rest.give_up(why);
    }

    fn stop(&self) {
        self.signals.tell(Exit::Terminated);
    }

    fn counts(&self) -> (u64, u64) {
        self.counters.counts()
    }
}

impl Batch {
    fn answered(&self, job: Job, console: &Console) -> Result<Exit, CliError> {
        let Job { input, output, errors, engine } = job;
        let config = self.setup.config(input, output, errors)?;
        let engine = Cell::new(Some(Runner::Borrowed(engine)));
        let model = |config: &Arc<RunConfig>| {
            let engine = engine.take().expect("a run opens its model once");
            self.setup.model.open(config, engine)
        };
        let (signals, counters, rest) =
            (self.signals.clone(), self.counters.clone(), self.rest.clone());
        let model = ModelFrom::Served(&model);
        run::beside(config, Surroundings { console, signals, counters, rest, model })
    }
}

impl Setup {
    /// The configuration of a batch: that of requests, but for where rows come from and go to.
    fn config(
        &self,
        input: PathBuf,
        output: PathBuf,
        errors: Option<PathBuf>,
    ) -> Result<RunConfig, CliError> {
        let Flags { run, pooling, .. } = self.flags.clone();
        let of_requests = &self.model.config;
        let mut args = run;
        args.input = InputArgs { prompt: None, input: vec![input], ..args.input };
        args.output = OutputArgs { out: Some(output), errors, ..args.output };
        let mut config = match of_requests.input.rows.task {
            Task::Complete => RunConfig::new(args)?,
            task => RunConfig::of_lines(task, args, pooling)?,
        };
        // As it was loaded: files that flags name may be others by now.
        config.engine = of_requests.engine.clone();
        config.begin_at(config.started);
        config.input.is_checked = true;
        // Flags are for all batches, of which some use none of them.
        config.particular = ParticularFlags::default();
        Ok(config)
    }
}

impl ServedModel {
    /// The model for a run of this configuration, with its part of the engine.
    fn open(&self, config: &Arc<RunConfig>, engine: Runner) -> Result<OpenModel, CliError> {
        let summary = Arc::clone(&self.summary);
        let base = RowParams::start(config, &summary)?;
        let files = self.files.clone().of_run(config, &summary);
        let files = machine::started(std::thread::Builder::new().spawn(move || files));
        let load_time = Duration::ZERO;
        let loaded = Loaded { engine, model_dir: self.model_dir.clone(), load_time };
        Ok(OpenModel { summary, base, files, loaded })
    }
}
