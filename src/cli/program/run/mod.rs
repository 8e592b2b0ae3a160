//! `run`: three threads (read, engine, write), one that shows progress, and one that waits for the
//! end. This thread owns the engine. Knows no other command.

mod complete;
mod end;
mod feed;
mod fingerprinted;
mod load;
pub mod meter;
pub mod one_prompt;
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
use std::time::{Duration, Instant};

pub use self::end::{interrupted, utc};
pub use self::fingerprinted::JUDGE;
pub use self::load::files_of;
use self::previous::Previous;
use self::progress::{Counters, Progress};
use self::signals::Signals;
use self::window::Window;
use crate::args::{FlagFiles, PoolingFlags, RunArgs};
use crate::config::{InputConfig, RunConfig};
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::meta::Meta;
use crate::ledger::record::Header;
use crate::ledger::remote::{Remote, Staged};
use crate::ledger::storage::{Disk, Storage};
use crate::ledger::{Document, Draft, Ledger, LedgerError, LedgerOptions, Named, Recovered};
use crate::model::resolved::Resolved;
use crate::model::{self, Folders};
use complete::{GoesOn, Next};
use end::{Ended, Ending, Left};
use feed::Feed;
use fingerprinted::FileFields;
use load::Loaded;
use read::{Order, ReadThread};
use ready::Ready;
use vllm_batch_api::request::SamplingParams;
use vllm_batch_base::machine;
use vllm_batch_dataset::input::files::{self, Shape};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::input::sources::Sources;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_dataset::terminal::stdout;
use vllm_batch_engine::load::model_summary::ModelSummary;
use vllm_batch_engine::serve::runner::{Runner, Work};
use vllm_batch_engine::stats::EngineStats;
pub use write::no_verdict;
use write::{Message, WriteThread};

/// How often an engine without work looks for signals.
const IDLE: Duration = Duration::from_millis(50);

/// How long loading waits for the first row of standard input: what is there already can be refused
/// at once.
const FIRST_ROW: Duration = Duration::from_millis(50);

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
    run_config(config, typed, console, load).map(|(exit, _)| exit)
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
    run_config(config, Typed { files, flags: None, staged: None }, console, load)
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
    run_config(config, typed, console, &model::load_from).map(|(exit, _)| exit)
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
    mut config: RunConfig,
    typed: Typed,
    console: &Console,
    load: Load<'_>,
) -> Result<(Exit, Vec<Document>), CliError> {
    if config.output.path.is_none() && stdout::was_closed() {
        console.warn(
            "standard output is closed, or /dev/null: rows go nowhere. Give -o FILE to keep them",
        );
    }
    let ready = Ready::open(config.output.ready_fd)?;
    let signals = Signals::install().map_err(|error| CliError::from_signals(&error))?;
    let counters = Arc::new(Counters::default());
    let input = files::open(&config.input.sources, &config.input.rows)?;
    let read = Arc::new(config.input.clone());
    let reading = read::start(read.clone(), input, console.clone(), counters.clone());
    // A file shows its first row at once, and is refused before anything else happens. Standard
    // input may take its time: the model is loaded meanwhile.
    let first = &config.input.sources.list()[0];
    let shape = match first.path.is_some() || first.text.is_some() {
        true => Some(shape(&reading)?),
        false => reading.shape.recv_timeout(FIRST_ROW).ok().transpose()?,
    };
    let Typed { files: named, flags, staged } = typed;
    let options = ledger_options(&config, named);
    if let Some(staged) = &staged {
        staged.refuse_read(&config.input.sources)?;
    }
    let remote = staged.map(|staged| staged.begin(config.output.overwrite, console)).transpose()?;
    let files = remote.as_ref().map_or_else(|| Arc::new(Disk) as Arc<dyn Storage>, Remote::files);
    let ended = Draft::open(files, options).map_err(LedgerError::at_start).and_then(|mut draft| {
        let reports = draft.take_documents("--report");
        let meta = draft.complete().or(draft.previous()).cloned();
        if let Some(found) = draft.found() {
            remote.iter().filter(|_| found.header.replaces).for_each(Remote::replaces);
        }
        // Chat templates see the day on which the run began.
        let began = draft.found().map(|found| found.header.started);
        began.or(meta.as_ref().and_then(Meta::date)).into_iter().for_each(|at| config.begin_at(at));
        let (config, remote) = (Arc::new(config), remote.as_ref());
        let files = None;
        let mut job = Job { config, read, files, flags, console, signals, counters, ready, remote };
        if let Some(shape) = &shape {
            job.turn_to(shape.task)?;
            job.check_flags(shape)?;
        }
        let next = match meta {
            Some(meta) => job.look_at_complete(reading, shape, &mut draft, &meta)?,
            None => Next::Run(GoesOn { reading, shape, then: None }),
        };
        let exit = match next {
            Next::Nothing(exit) => exit,
            Next::Run(input) => job.run(input, draft, load)?,
        };
        Ok((exit, reports))
    });
    match (&remote, &ended) {
        (Some(remote), Ok(_)) => remote.publish(console)?,
        (Some(remote), Err(_)) => remote.leave(console),
        (None, _) => {}
    }
    ended
}

fn shape(reading: &ReadThread) -> Result<Shape, CliError> {
    reading.shape.recv().expect("the reading thread says what it found")
}

/// The inputs as they were found. Files of the model are known when it is.
pub fn inputs(sources: &Sources) -> Vec<Named> {
    let of_input = |path: &Option<PathBuf>| {
        Named::new("the input", path.as_deref().unwrap_or(Path::new("/dev/stdin")))
    };
    let read = sources.list().iter().filter(|source| source.text.is_none());
    read.map(|source| of_input(&source.path)).collect()
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

/// A run whose input and output are open.
struct Job<'a> {
    config: Arc<RunConfig>,
    /// How the input is read, before its first row was seen.
    read: Arc<InputConfig>,
    /// What the model's files and the flags resolve to, where it is known already.
    files: Option<FileFields>,
    /// Of `run`, whose first row decides the task.
    flags: Option<RunArgs>,
    console: &'a Console,
    signals: Signals,
    counters: Arc<Counters>,
    ready: Ready,
    /// Where the output goes at the end, if it is an object.
    remote: Option<&'a Remote>,
}

impl Job<'_> {
    /// Refuses flags that no row can use, and says which rows may not.
    fn check_flags(&self, shape: &Shape) -> Result<(), CliError> {
        if let Some(headers) = shape.headers.as_deref().filter(|_| self.config.output.unordered)
            && !headers.iter().any(|name| name == "id" || name == "custom_id")
        {
            let message =
                "--unordered: the table has no column `id`, and its rows are told apart by it";
            return Err(CliError::refused("missing_id", message).help("add one, or leave it out"));
        }
        for note in self.config.particular.check(shape)? {
            match self.config.input.is_prompt() {
                // It has no notes.
                true => self.console.warn(&note),
                false => self.console.note(&note),
            }
        }
        Ok(())
    }

    /// Most tokens of an answer, which the estimate of the time goes by.
    fn max_tokens(&self, defaults: &SamplingParams, shape: &Shape) -> Option<u32> {
        let params = self.start_of_rows(defaults, shape);
        if let Some(tokens) = params.max_tokens.filter(|_| shape.task == Task::Complete) {
            self.counters.set_max_tokens(u64::from(tokens) * params.n as u64);
        }
        params.max_tokens
    }

    fn run(mut self, input: GoesOn, mut draft: Draft, load: Load<'_>) -> Result<Exit, CliError> {
        let GoesOn { reading, shape: known, then } = input;
        let Loaded { mut engine, base, load_time, shape, format, fingerprint } =
            self.load(&reading, known, &draft, load)?;
        let left = self.what_would_be_left(&draft);
        let previous = self.previous(&draft, &fingerprint, then)?;
        let document = draft.take_documents("--stats").pop();
        let (ledger, recovered) = self.begin(draft, &fingerprint)?;
        self.signals.begin();

        let stats = Arc::new(Mutex::new(engine.stats()));
        let max_num_seqs = engine.info().step_sizes.max_num_seqs;
        let window = Arc::new(Window::new(self.config.window(max_num_seqs)));
        let (rows, messages) = channel();
        let (requests, incoming) = channel();
        let processor = engine.input_processor();
        let defaults = processor.default_sampling_params();
        let max_tokens = self.max_tokens(&defaults, &shape);
        let writing = WriteThread::new(
            self.config.clone(),
            format.clone(),
            processor.clone(),
            window.clone(),
            self.counters.clone(),
        );
        let untold = previous.as_ref().map(Previous::untold).unwrap_or_default();
        let writing = writing.after(untold);
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
            remote: self.remote,
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
        let progress = self.show_progress();
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

    fn show_progress(&self) -> Progress {
        Progress::start(self.console.clone(), self.counters.clone(), self.signals.progress())
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
            replaces: config.overwrite || config.retry_failed || draft.previous().is_some(),
            keeps: draft.previous().is_some(),
            fingerprint: fingerprint.clone(),
        };
        let (mut ledger, recovered) = draft.begin(header).map_err(LedgerError::at_start)?;
        if config.unordered {
            ledger.emit_in_any_order();
        }
        Ok((ledger, recovered))
    }

    /// The good rows of a complete output that the run goes on from.
    fn previous(
        &self,
        draft: &Draft,
        fingerprint: &Fingerprint,
        then: Option<RowsThen>,
    ) -> Result<Option<Previous>, CliError> {
        let Some((path, meta)) = draft.path().zip(draft.previous()) else { return Ok(None) };
        let differences = match self.config.output.retry_failed {
            true => meta.fingerprint.differences_of_answers(fingerprint),
            false => meta.fingerprint.differences(fingerprint),
        };
        if !differences.is_empty() {
            let error = LedgerError::Complete { path: path.to_owned(), differences };
            return Err(LedgerError::at_start(error));
        }
        Previous::open(path, meta, then).map(Some)
    }

    fn what_would_be_left(&self, draft: &Draft) -> Left {
        Left {
            part: draft.path().map(crate::ledger::output::part_of),
            journal: draft.journal_path().map(Path::to_owned),
        }
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
