//! `run`: three threads (read, engine, write), one that shows progress, and one that waits for the
//! end. This thread owns the engine. Knows no other command.

mod end;
mod feed;
mod fingerprinted;
pub mod meter;
pub mod previous;
pub mod progress;
pub mod read;
mod ready;
pub mod report;
pub mod row_params;
pub mod signals;
pub mod window;
mod write;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::previous::Previous;
use self::progress::{Counters, Progress};
use self::signals::Signals;
use self::window::Window;
use crate::cli::args::{PoolingFlags, RunArgs};
use crate::cli::config::{PoolingConfig, RunConfig};
use crate::cli::input::files::{self, Shape};
use crate::cli::input::row::Task;
use crate::cli::input::sources::Sources;
use crate::cli::ledger::fingerprint::Fingerprint;
use crate::cli::ledger::meta::Meta;
use crate::cli::ledger::names::files_of_model;
use crate::cli::ledger::record::Header;
use crate::cli::ledger::storage::Disk;
use crate::cli::ledger::{Draft, Ledger, LedgerError, LedgerOptions, Named, Recovered};
use crate::cli::model::resolved::{self, Resolved};
use crate::cli::model::{self, Folders, Summary};
use crate::cli::output::RowFormat;
use crate::cli::terminal::console::Console;
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;
use crate::cli::terminal::numbers::num_rows;
use crate::cli::terminal::stdout;
use crate::engine::config::GenerationConfigSource;
use crate::engine::input_processor::InputProcessor;
use crate::engine::machine;
use crate::engine::model_summary::ModelSummary;
use crate::engine::pooling::{PoolingParams, PoolingSummary, Scoring};
use crate::engine::request::SamplingParams;
use crate::engine::runner::{Runner, Work};
use crate::engine::stats::EngineStats;
use end::{Ended, Ending, Left};
use feed::Feed;
use fingerprinted::FileFields;
use read::{Order, ReadThread};
use ready::Ready;
use row_params::RowParams;
use write::{InputRead, Message, WriteThread};

/// How often an engine without work looks for signals.
const IDLE: Duration = Duration::from_millis(50);

/// How long loading waits for the first row of standard input: what is there already can be refused
/// at once.
const FIRST_ROW: Duration = Duration::from_millis(50);

/// Makes an engine of a configuration, the folders of its model and what its small files say.
pub type Load<'a> =
    &'a dyn Fn(&RunConfig, &Folders, &ModelSummary) -> Result<model::Loaded, CliError>;

/// Completes the rows of a dataset; or does what its lines of a batch API ask for, which may be
/// vectors or scores.
///
/// # Errors
/// Whatever ends the run before its last row.
pub fn run(mut args: RunArgs, console: &Console, load: Load<'_>) -> Result<Exit, CliError> {
    model::fetch_inputs(&mut args.input.input, console)?;
    let template = args.input.chat_template.clone();
    let config = RunConfig::new(args.clone())?.by_lines();
    run_config(config, (template, Some(args)), console, load)
}

/// Makes vectors or classes of the rows of a dataset, as the task says.
///
/// # Errors
/// As `run`.
pub fn pool(
    task: Task,
    mut flags: (RunArgs, PoolingFlags),
    console: &Console,
) -> Result<Exit, CliError> {
    model::fetch_inputs(&mut flags.0.input.input, console)?;
    let template = flags.0.input.chat_template.clone();
    run_config(RunConfig::pooling(task, flags)?, (template, None), console, &model::load_from)
}

/// Runs a dataset through a model.
///
/// `template`: the file of a chat template, where a flag names one. `flags`: what was typed, where
/// the first row decides what it is typed for.
fn run_config(
    mut config: RunConfig,
    (template, flags): (Option<PathBuf>, Option<RunArgs>),
    console: &Console,
    load: Load<'_>,
) -> Result<Exit, CliError> {
    if config.output.path.is_none() && stdout::was_closed() {
        console.warn(
            "standard output is closed, or /dev/null: rows go nowhere. Give -o FILE to keep them",
        );
    }
    let ready = Ready::open(config.output.ready_fd)?;
    let signals = Signals::install().map_err(|error| CliError::from_signals(&error))?;
    let counters = Arc::new(Counters::default());
    let input = files::open(&config.input.sources)?;
    let reading = {
        let config = Arc::new(config.input.clone());
        read::start(config, input, console.clone(), counters.clone())
    };
    // A file shows its first row at once, and is refused before anything else happens. Standard
    // input may take its time: the model is loaded meanwhile.
    let shape = match config.input.sources.list()[0].path {
        Some(_) => Some(shape(&reading)?),
        None => reading.shape.recv_timeout(FIRST_ROW).ok().transpose()?,
    };
    let read = read_files(&config.input.sources, template);
    let draft = Draft::open(Arc::new(Disk), ledger_options(&config, read));
    let draft = draft.map_err(CliError::from_output)?;
    if let Some(found) = draft.found() {
        // Chat templates see the day on which the run began.
        config.begin_at(found.header.started);
    }
    let mut job = Job { config: Arc::new(config), flags, console, signals, counters, ready };
    if let Some(shape) = &shape {
        job.turn_to(shape.task)?;
    }
    match draft.complete().cloned() {
        Some(meta) => job.nothing_to_do(&reading, shape, &draft, &meta),
        None => job.run(reading, shape, draft, load),
    }
}

/// Names of the classes of a classifier.
fn labels(summary: &Summary) -> Arc<[String]> {
    match summary {
        Summary::Generate(_) => Arc::default(),
        Summary::Pooling(summary) => {
            let classifier = summary.classifier.as_ref();
            classifier.map(|classifier| classifier.labels.clone().into()).unwrap_or_default()
        }
    }
}

fn shape(reading: &ReadThread) -> Result<Shape, CliError> {
    reading.shape.recv().expect("the reading thread says what it found")
}

/// Files that flags name and a run reads. Those of the model are known when it is found.
pub fn read_files(sources: &Sources, template: Option<PathBuf>) -> Vec<Named> {
    let of_input = |path: &Option<PathBuf>| {
        Named::new("the input", path.as_deref().unwrap_or(Path::new("/dev/stdin")))
    };
    let inputs = sources.list().iter().map(|source| of_input(&source.path));
    let template = template.map(|path| Named::new("the chat template", path));
    inputs.chain(template).collect()
}

fn ledger_options(config: &RunConfig, read: Vec<Named>) -> LedgerOptions {
    LedgerOptions {
        out: config.output.path.clone(),
        errors: config.output.errors.clone(),
        journal: config.output.journal.clone(),
        stats: config.output.stats.clone(),
        read,
        overwrite: config.output.overwrite,
        retry_failed: config.output.retry_failed,
    }
}

/// A run whose input and output are open.
struct Job<'a> {
    config: Arc<RunConfig>,
    /// Of `run`, whose first row decides the task.
    flags: Option<RunArgs>,
    console: &'a Console,
    signals: Signals,
    counters: Arc<Counters>,
    ready: Ready,
}

/// A model that is loaded, and what is known of it before the first row is.
struct Opened {
    summary: Arc<Summary>,
    base: RowParams,
    files: JoinHandle<Result<FileFields, CliError>>,
    loaded: model::Loaded<Runner>,
}

/// What there is once the model is loaded.
struct Loaded {
    engine: Runner,
    base: RowParams,
    load_time: Duration,
    shape: Shape,
    format: RowFormat,
    fingerprint: Fingerprint,
}

impl Job<'_> {
    fn run(
        mut self,
        reading: ReadThread,
        known: Option<Shape>,
        mut draft: Draft,
        load: Load<'_>,
    ) -> Result<Exit, CliError> {
        let Loaded { mut engine, base, load_time, shape, format, fingerprint } =
            self.load(&reading, known, &draft, load)?;
        let left = self.what_would_be_left(&draft);
        let previous = self.previous(&draft, &fingerprint)?;
        let document = draft.take_stats();
        let (ledger, recovered) = self.begin(draft, &fingerprint)?;
        self.signals.begin();

        let stats = Arc::new(Mutex::new(engine.stats()));
        let window = Arc::new(Window::new(self.config.window));
        let (rows, messages) = channel();
        let (requests, incoming) = channel();
        let processor = engine.input_processor();
        let defaults = processor.default_sampling_params();
        let max_tokens = self.start_of_rows(&defaults, &shape).max_tokens;
        let writing = WriteThread::new(
            self.config.clone(),
            format.clone(),
            processor.clone(),
            window.clone(),
            self.counters.clone(),
        );
        let side_text = self.side_text(fingerprint, &format);
        let writing = std::thread::Builder::new()
            .spawn(move || writing.run(ledger, &shape, &messages, side_text));
        let writing = machine::started(writing);
        let ending = Ending {
            config: &self.config,
            console: self.console,
            signals: &self.signals,
            started: Instant::now(),
            load_time,
            resolved: Resolved::new(&self.config, engine.info()),
            max_tokens,
            max_model_len: processor.max_model_len(),
            left,
            document,
            stats: stats.clone(),
            counters: self.counters.clone(),
        };
        let (window_of_feed, rows_of_feed) = (window.clone(), rows.clone());
        let feed = Feed {
            config: self.config.clone(),
            processor,
            format,
            base,
            window: window_of_feed,
            rows: rows_of_feed,
            requests,
            recovered,
            previous,
            ids: None,
        };
        let _ = reading.order.send(Order::Feed(Box::new(feed)));
        let progress = Progress::start(self.console.clone(), self.counters.clone());
        std::thread::scope(|scope| {
            let (ended_sender, ended) = channel();
            let rows_of_ending = rows.clone();
            let ending = move || ending.wait(&ended, rows_of_ending, writing, progress);
            let ending = std::thread::Builder::new().spawn_scoped(scope, ending);
            let ending = machine::started(ending);
            let ended = self.drive(&mut engine, &incoming, &rows, &window, &stats);
            drop(rows);
            let _ = ended_sender.send(ended);
            ending.join().expect("a panic ends the process in its hook")
        })
    }

    /// Goes on with what the first row asks for.
    ///
    /// # Errors
    /// A flag does not go with it.
    fn turn_to(&mut self, task: Task) -> Result<(), CliError> {
        let Some(flags) = self.flags.take().filter(|_| task != self.config.input.rows.task) else {
            return Ok(());
        };
        let mut config = RunConfig::of_lines(task, flags, PoolingFlags::default())?;
        config.begin_at(self.config.started);
        self.config = Arc::new(config);
        Ok(())
    }

    fn load(
        &mut self,
        reading: &ReadThread,
        known: Option<Shape>,
        draft: &Draft,
        load: Load<'_>,
    ) -> Result<Loaded, CliError> {
        if let Some(shape) = known {
            // Before the model is loaded, where that is possible.
            RowFormat::new(&self.config, &shape)?;
            let folders = model::find(&self.config, self.console)?;
            let opened = self.open(&folders, draft, load)?;
            return self.loaded(opened, shape, reading);
        }
        // A row that takes its time mostly asks for a completion: the model is loaded meanwhile.
        let folders = model::find(&self.config, self.console)?;
        let opened = self.open(&folders, draft, load);
        let may_pool = || self.flags.is_some() && model::makes_vectors(&self.config, &folders);
        let opened = match opened {
            Err(error) if !may_pool() => return Err(error),
            opened => opened,
        };
        let shape = shape(reading)?;
        let opened = match shape.task == self.config.input.rows.task {
            true => opened?,
            false => {
                drop(opened);
                self.turn_to(shape.task)?;
                // With what its vectors are made of.
                let folders = model::find(&self.config, self.console)?;
                self.open(&folders, draft, load)?
            }
        };
        self.loaded(opened, shape, reading)
    }

    /// Loads the model, while its files are hashed.
    fn open(&self, folders: &Folders, draft: &Draft, load: Load<'_>) -> Result<Opened, CliError> {
        draft.refuse_read(&self.files_of(folders)).map_err(CliError::from_output)?;
        let summary = Arc::new(model::summary_for(&self.config, folders)?);
        let base = RowParams::start(&self.config, &summary)?;
        let (config, of_model) = (self.config.clone(), folders.clone());
        let of_summary = summary.clone();
        // While the engine reads the same files. Its result is dropped if the engine refuses them.
        let files = std::thread::Builder::new()
            .spawn(move || fingerprinted::of_files(&config, &of_model, &of_summary));
        let files = machine::started(files);
        let loaded = match &*summary {
            Summary::Generate(summary) => load(&self.config, folders, summary)?.into_runner(),
            Summary::Pooling(summary) => model::load_pooling(&self.config, folders, summary)?,
        };
        self.ready.say(loaded.engine.info().max_model_len)?;
        Ok(Opened { summary, base, files, loaded })
    }

    /// What rows are run with, once both the model and the first row are there.
    fn loaded(
        &self,
        opened: Opened,
        shape: Shape,
        reading: &ReadThread,
    ) -> Result<Loaded, CliError> {
        let Opened { summary, base, files, loaded } = opened;
        let files = files.join().expect("a panic ends the process in its hook")?;
        // A file of batch requests was read to its end meanwhile.
        let all_requests_are_chat = reading.checked.recv().unwrap_or(Ok(false))?;
        let processor = loaded.engine.input_processor();
        let all_chat = shape.is_chat || all_requests_are_chat;
        self.config.check_chat(processor.has_chat_template(), all_chat)?;
        if let Some(outputs) = &self.config.structured_outputs {
            let checked = processor.check_structured_outputs(outputs);
            checked.map_err(|error| {
                let message = error.message.replacen("structured_outputs", "structured-outputs", 1);
                CliError::refused(error.code, format!("--{message}"))
            })?;
        }
        loaded.announce(loaded.engine.info(), &self.config, self.console);
        if let Some(parser) = processor.unused_reasoning_parser().filter(|_| all_chat) {
            self.console.note(&format!(
                "The model thinks before it answers, and rows show that as text; \
                 --reasoning-parser {parser} shows it apart"
            ));
        }
        match &base {
            RowParams::Sampling(_) => {
                self.say_sampling(&processor.default_sampling_params(), &shape);
            }
            RowParams::Pooling(params, summary) => {
                self.say_pooling(params, summary, &processor)?;
            }
        }
        let shows_date = shape.has_batch_lines || processor.shows_date();
        let date = shows_date.then_some(self.config.started);
        let files = files.showing(self.config.shown_model_name(&shape));
        let fingerprint = files.with_engine(loaded.engine.info(), date);
        let format = RowFormat::new(&self.config, &shape)?
            .with_width(base.width())
            .with_parser(*processor.answer_parser())
            .with_system_fingerprint(fingerprint.system())
            .with_labels(labels(&summary));
        let model::Loaded { engine, load_time, .. } = loaded;
        Ok(Loaded { engine, base, load_time, shape, format, fingerprint })
    }

    fn say_sampling(&self, defaults: &SamplingParams, shape: &Shape) {
        let rows = self.start_of_rows(defaults, shape);
        let flags = &self.config.sampling;
        self.console.detail(&resolved::sampling_line(flags, defaults, &rows));
    }

    /// Says what texts become; refuses a chat template that would leave out both texts of a pair.
    fn say_pooling(
        &self,
        params: &PoolingParams,
        summary: &PoolingSummary,
        processor: &InputProcessor,
    ) -> Result<(), CliError> {
        self.console.detail(&PoolingConfig::line(params, summary));
        let is_own = self.config.engine.model.chat_template.is_none();
        match params.scoring {
            Scoring::Joined => self.console.note(
                "The model reads the second text right behind the first; --chat-template FILE \
                 gives the words that it was trained with",
            ),
            Scoring::Template if is_own && !processor.template_mentions("document") => {
                let message = "the model's own chat template knows no turn of role `document`";
                return Err(CliError::refused("chat_template", message)
                    .help("give the one that it was trained with: --chat-template FILE"));
            }
            Scoring::Template | Scoring::Vectors(_) | Scoring::Pair => {}
        }
        Ok(())
    }

    /// What rows without own parameters are sampled with. The length of a batch request is its
    /// endpoint's, where nothing says it.
    fn start_of_rows(&self, defaults: &SamplingParams, shape: &Shape) -> SamplingParams {
        match shape.has_batch_lines {
            true => self.config.row_params(defaults.clone()),
            false => self.config.sampling_params(defaults.clone()),
        }
    }

    /// What is read of a model.
    fn files_of(&self, folders: &Folders) -> Vec<Named> {
        let defaults = match &self.config.engine.model.generation_config {
            GenerationConfigSource::Dir(folder) => Some(folder),
            _ => None,
        };
        let folders = [Some(&folders.model), folders.tokenizer.as_ref(), defaults];
        folders.into_iter().flatten().flat_map(|folder| files_of_model(folder)).collect()
    }

    /// Continues what was found, or starts over.
    fn begin(
        &self,
        draft: Draft,
        fingerprint: &Fingerprint,
    ) -> Result<(Ledger, Option<Recovered>), CliError> {
        let config = &self.config.output;
        if let Some(found) = draft.found() {
            let rows = found.num_rows;
            self.console.note(&format!(
                "Continuing a run with {rows} finished row{}",
                if rows == 1 { "" } else { "s" }
            ));
            if let Some(at) = found.damaged_at {
                self.console.warn(&format!(
                    "the journal is damaged at byte {at}; rows that are lost are computed again"
                ));
            }
        }
        let header = Header {
            started: self.config.started,
            replaces: config.overwrite || config.retry_failed,
            fingerprint: fingerprint.clone(),
        };
        let (mut ledger, recovered) = draft.begin(header).map_err(CliError::from_output)?;
        if config.unordered {
            ledger.emit_in_any_order();
        }
        Ok((ledger, recovered))
    }

    /// The good rows of a complete output whose error rows are asked again.
    fn previous(
        &self,
        draft: &Draft,
        fingerprint: &Fingerprint,
    ) -> Result<Option<Previous>, CliError> {
        let Some((path, meta)) = draft.path().zip(draft.previous()) else { return Ok(None) };
        let differences = meta.fingerprint.differences(fingerprint);
        if !differences.is_empty() {
            let error = LedgerError::Complete { path: path.to_owned(), differences };
            return Err(CliError::from_output(error));
        }
        Previous::open(path, meta).map(Some)
    }

    fn what_would_be_left(&self, draft: &Draft) -> Left {
        Left {
            part: draft.path().map(crate::cli::ledger::output::part_of),
            journal: draft.journal_path().map(Path::to_owned),
        }
    }

    /// The output is complete. It is this run's if the same flags and files made it of the same
    /// rows.
    fn nothing_to_do(
        mut self,
        reading: &ReadThread,
        known: Option<Shape>,
        draft: &Draft,
        meta: &Meta,
    ) -> Result<Exit, CliError> {
        let shape = known.map_or_else(|| shape(reading), Ok)?;
        self.turn_to(shape.task)?;
        let folders = model::find(&self.config, self.console)?;
        let summary = model::summary_for(&self.config, &folders)?;
        let files = fingerprinted::of_files(&self.config, &folders, &summary)?;
        let files = files.showing(self.config.shown_model_name(&shape)).alone();
        let mut differences = meta.fingerprint.differences(&files);
        let (sender, digest) = channel();
        let _ = reading.order.send(Order::Digest(sender));
        let read = digest.recv().expect("the reading thread answers")?;
        differences.extend(self.other_input(meta, &read));
        let path = draft.path().expect("a stream is never complete").to_owned();
        if !differences.is_empty() {
            let error = LedgerError::Complete { path, differences };
            return Err(CliError::from_output(error));
        }
        let (rows, failed) = (meta.rows.total, meta.rows.failed);
        self.console.note(&format!(
            "Nothing to do: {} is complete, with {}, {failed} of them error rows",
            path.display(),
            num_rows(rows)
        ));
        Ok(if failed > 0 { Exit::ErrorRows } else { Exit::Success })
    }

    fn other_input(&self, meta: &Meta, read: &InputRead) -> Option<String> {
        let then = (meta.input.rows, &meta.input.digest);
        (then != (read.num_rows, &read.digest)).then(|| {
            let name = &self.config.input.name;
            format!("input: {} rows then, {} in {name} now, not the same", then.0, read.num_rows)
        })
    }

    /// Steps the engine until every row is answered. An input that breaks off ends the run when
    /// what was read of it is answered; a row that ends it does so at once.
    fn drive(
        &self,
        engine: &mut Runner,
        incoming: &Receiver<Result<Work, CliError>>,
        rows: &Sender<Message>,
        window: &Window,
        stats: &Mutex<EngineStats>,
    ) -> Result<Ended, CliError> {
        let mut broken_off = None;
        loop {
            if let Some(exit) = self.signals.exit() {
                return Ok(Ended::Signal(exit));
            }
            if window.is_closed() {
                return Ok(Ended::NoWriter);
            }
            let next = match engine.has_unfinished_requests() {
                true => incoming.try_recv().ok(),
                false => match incoming.recv_timeout(IDLE) {
                    Ok(request) => Some(request),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => {
                        return broken_off.map_or(Ok(Ended::Complete), Err);
                    }
                },
            };
            for request in next.into_iter().chain(incoming.try_iter()) {
                match request {
                    Ok(request) => engine.add_request(request),
                    Err(error) if error.exit == Exit::Stopped => broken_off = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if !engine.has_unfinished_requests() {
                continue;
            }
            let outputs = engine.step()?;
            let now = engine.stats();
            self.counters.set_engine(&now);
            *stats.lock().unwrap_or_else(PoisonError::into_inner) = now;
            for output in outputs {
                if rows.send(Message::Done(output)).is_err() {
                    return Ok(Ended::NoWriter);
                }
            }
        }
    }
}
