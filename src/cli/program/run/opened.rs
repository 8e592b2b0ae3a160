//! `Opened`, the first phase: the input is read on its thread, the output is locked and looked at.
//! Nothing is decided by a row, and nothing is written.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::progress::Counters;
use super::read::{self, ReadThread};
use super::ready::Ready;
use super::signals::Signals;
use super::surroundings::{Rest, Surroundings};
use crate::args::{FlagFiles, PoolingFlags, RunArgs};
use crate::config::{InputConfig, RunConfig};
use crate::ledger::meta::Meta;
use crate::ledger::remote::Remote;
use crate::ledger::storage::{Disk, Storage};
use crate::ledger::{Document, LedgerError, LedgerOptions, LockedOutput, Named};
use vllm_batch_dataset::input::files::Shape;
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::stdout;

/// How long loading waits for the first row of standard input: what is there already can be refused
/// at once.
const FIRST_ROW: Duration = Duration::from_millis(50);

/// What a run has from its first phase to its last.
pub struct Session<'a> {
    /// Who is told.
    pub console: &'a Console,
    /// Looked at while the engine works.
    pub signals: Signals,
    /// What is done.
    pub counters: Arc<Counters>,
    /// What becomes of rows without an answer.
    pub rest: Rest,
    /// Whoever waits for the model.
    pub ready: Ready,
    /// Where the output goes at the end, if it is an object.
    pub remote: Option<&'a Remote>,
}

/// An input that is read, before the output is looked at.
pub struct OpenInput<'a> {
    console: &'a Console,
    signals: Signals,
    counters: Arc<Counters>,
    rest: Rest,
    ready: Ready,
    input: Arc<InputConfig>,
    reading: ReadThread,
    first: FirstRow,
}

/// What is known of the rows when the input is open.
pub enum FirstRow {
    /// The first is there, and says this.
    Seen(Shape),
    /// Standard input takes its time.
    Awaited,
}

/// A run whose input and output are open.
pub struct Opened<'a> {
    /// The rest of its surroundings.
    pub session: Session<'a>,
    /// How the input is read.
    pub input: Arc<InputConfig>,
    /// Who reads it.
    pub reading: ReadThread,
    /// What it says.
    pub first: FirstRow,
    /// What the first row decides.
    pub undecided: Undecided,
    /// Where rows will go.
    pub output: LockedOutput,
    /// The side file of an output that is complete, or from which an interrupted run went on.
    pub earlier: Option<Meta>,
}

/// A configuration, before the first row says what the flags were typed for.
pub struct Undecided {
    /// Of what the command is for.
    pub config: Arc<RunConfig>,
    /// All flags, where rows may ask for something else.
    pub flags: Option<RunArgs>,
}

impl Undecided {
    /// The configuration for what the first row asks for.
    ///
    /// # Errors
    /// A flag does not go with it.
    pub fn decide(self, task: Task) -> Result<Arc<RunConfig>, CliError> {
        let Self { config, flags } = self;
        let Some(flags) = flags.filter(|_| task != config.input.rows.task) else {
            return Ok(config);
        };
        let mut decided = RunConfig::of_lines(task, flags, PoolingFlags::default())?;
        decided.begin_at(config.started);
        Ok(Arc::new(decided))
    }
}

impl<'a> OpenInput<'a> {
    /// Opens the input, and begins to read it. A file shows its first row at once, and is refused
    /// before anything else happens. Standard input may take its time: the model is loaded
    /// meanwhile.
    ///
    /// # Errors
    /// `--ready-fd` or the input cannot be had, or the first row cannot be run.
    pub fn open(config: &RunConfig, surroundings: Surroundings<'a>) -> Result<Self, CliError> {
        let Surroundings { console, signals, counters, rest, model: _ } = surroundings;
        if config.output.path.is_none() && stdout::was_closed() {
            console.warn(
                "standard output is closed, or /dev/null: rows go nowhere. Give -o FILE to keep \
                 them",
            );
        }
        let ready = Ready::open(config.output.ready_fd)?;
        let input = Arc::new(config.input.clone());
        let reading = read::start(&input, console, &counters)?;
        let source = &input.sources.list()[0];
        let shape = match source.is_stdin() {
            false => Some(reading.shape()?),
            true => reading.shape_within(FIRST_ROW)?,
        };
        let first = shape.map_or(FirstRow::Awaited, FirstRow::Seen);
        Ok(Self { console, signals, counters, rest, ready, input, reading, first })
    }

    /// Locks the output and looks at what is there.
    ///
    /// # Errors
    /// It cannot be this run's.
    pub fn with_output(
        self,
        mut config: RunConfig,
        flags: Option<RunArgs>,
        named: FlagFiles,
        remote: Option<&'a Remote>,
    ) -> Result<Opened<'a>, CliError> {
        let Self { console, signals, counters, rest, ready, input, reading, first } = self;
        let files = remote.map_or_else(|| Arc::new(Disk) as Arc<dyn Storage>, Remote::files);
        let output = LockedOutput::open(files, ledger_options(&config, named));
        let output = output.map_err(LedgerError::at_start)?;
        let earlier = output.complete().or(output.previous()).cloned();
        let found = output.found().map(|found| &found.header);
        if let Some(remote) = remote.filter(|_| found.is_some_and(|header| header.replaces)) {
            remote.replaces();
        }
        // Chat templates see the day on which the run began.
        let began = found.map(|header| header.started);
        if let Some(at) = began.or(earlier.as_ref().and_then(Meta::date)) {
            config.begin_at(at);
        }
        let session = Session { console, signals, counters, rest, ready, remote };
        let undecided = Undecided { config: Arc::new(config), flags };
        Ok(Opened { session, input, reading, first, undecided, output, earlier })
    }
}

impl Opened<'_> {
    /// Documents of whoever started the run.
    pub fn take_reports(&mut self) -> Vec<Document> {
        self.output.take_documents("--report")
    }
}

/// The inputs as they were found. Files of the model are known when it is.
pub fn inputs(sources: &Sources) -> Vec<Named> {
    let mut inputs = Vec::new();
    for source in sources.list().iter().filter(|source| source.text.is_none()) {
        let of_input = |path: &PathBuf| Named::new("the input", path);
        match &source.pictures {
            Some(pictures) => inputs.extend(pictures.paths().iter().map(of_input)),
            None => inputs.push(of_input(&source.path.clone().unwrap_or("/dev/stdin".into()))),
        }
    }
    inputs
}

fn ledger_options(config: &RunConfig, flags: FlagFiles) -> LedgerOptions {
    LedgerOptions {
        out: config.output.path.clone(),
        errors: config.output.errors.clone(),
        journal: config.output.journal.clone(),
        flags,
        read: inputs(&config.input.sources),
        overwrite: config.output.overwrite,
        retry_failed: config.output.retry_failed,
        has_no_rows: false,
    }
}
