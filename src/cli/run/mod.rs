//! `run`: three threads (read, engine, write) and one that shows progress. This thread owns the
//! engine.

mod read;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::args::RunArgs;
use super::config::RunConfig;
use super::console::Console;
use super::error::CliError;
use super::exit::Exit;
use super::model;
use super::output::{RowFormat, Shape};
use super::progress::{Counters, Progress};
use super::report::Report;
use super::result_file;
use super::signals::Signals;
use super::window::Window;
use super::writer::Sink;
use crate::engine::Engine;
use crate::engine::request::Request;
use read::{Feed, ReadThread};
use write::{Message, WriteThread, Written};

/// How often an engine without work looks for signals.
const IDLE: Duration = Duration::from_millis(50);

/// How long loading waits for the first row of standard input: what is there already can be refused
/// at once.
const FIRST_ROW: Duration = Duration::from_millis(50);

/// Runs a dataset through a model.
///
/// # Errors
/// Whatever ends the run before its last row.
pub fn run(args: RunArgs, console: &Console) -> Result<Exit, CliError> {
    let config = Arc::new(RunConfig::new(args)?);
    let signals = Signals::install().map_err(|error| {
        CliError::new(Exit::Internal, "signals", format!("cannot handle signals: {error}"))
    })?;
    let counters = Arc::new(Counters::default());
    let input = read::open(&config.input)?;
    let reading = read::start(config.clone(), input, console.clone(), counters.clone());
    // A file shows its first row at once, and is refused before anything else happens. Standard
    // input may take its time: the model is loaded meanwhile.
    let shape = match config.input.path {
        Some(_) => Some(shape(&reading)?),
        None => reading.shape.recv_timeout(FIRST_ROW).ok().transpose()?,
    };
    let sink = open_sink(&config)?;
    let part = sink.part().map(Path::to_owned);
    let job = Job { config, console, signals, counters, part };
    job.run(reading, shape, sink)
}

fn shape(reading: &ReadThread) -> Result<Shape, CliError> {
    reading.shape.recv().expect("the reading thread says what it found")
}

fn open_sink(config: &RunConfig) -> Result<Sink, CliError> {
    let Some(path) = &config.output.path else { return Ok(Sink::stdout()) };
    let input = config.input.path.as_deref().unwrap_or(Path::new("/dev/stdin"));
    Sink::create(path, Some(input), config.output.overwrite).map_err(CliError::from_output)
}

/// A run whose input and output are open.
struct Job<'a> {
    config: Arc<RunConfig>,
    console: &'a Console,
    signals: Signals,
    counters: Arc<Counters>,
    /// The unfinished output, where it is a file.
    part: Option<PathBuf>,
}

/// What there is once the model is loaded.
struct Loaded {
    engine: Engine,
    seconds: Duration,
    shape: Shape,
    format: RowFormat,
}

/// Why the engine has nothing more to do.
enum Ended {
    /// Every row is answered.
    Complete,
    /// The writing thread is gone; it knows why.
    NoWriter,
    /// By the user.
    Signal(Exit),
}

impl Job<'_> {
    fn run(&self, reading: ReadThread, known: Option<Shape>, sink: Sink) -> Result<Exit, CliError> {
        let loaded = self.load(&reading, known)?;
        let Loaded { mut engine, seconds, shape, format } = loaded;
        self.signals.begin();

        let started = Instant::now();
        let progress = Progress::start(self.console.clone(), self.counters.clone());
        let (ended, written) = self.flow(&mut engine, reading, sink, (format, shape));
        progress.stop();
        let params =
            self.config.sampling_params(engine.input_processor().default_sampling_params());
        let complete = matches!(ended, Ok(Ended::Complete)) && written.result.is_ok();
        let report = Report {
            tally: written.tally.clone(),
            engine: engine.stats(),
            elapsed: started.elapsed(),
            load: seconds,
            model: self.config.model.name.clone(),
            input: self.config.input.name.clone(),
            output: self.output_name(complete, written.emitted),
            max_tokens: params.max_tokens,
            max_model_len: engine.input_processor().max_model_len(),
            complete,
        };
        self.conclude(ended, written, &report)
    }

    fn load(&self, reading: &ReadThread, known: Option<Shape>) -> Result<Loaded, CliError> {
        if let Some(shape) = &known {
            // Before the model is loaded, where that is possible.
            RowFormat::new(&self.config, shape)?;
        }
        let loaded = model::load(&self.config, self.console)?;
        let processor = loaded.engine.input_processor();
        self.config.check_sampling(processor.default_sampling_params())?;
        self.config.check_chat(processor.has_chat_template())?;
        loaded.announce(&self.config.model, self.console);
        let shape = known.map_or_else(|| shape(reading), Ok)?;
        let format = RowFormat::new(&self.config, &shape)?;
        let model::Loaded { engine, load_time, .. } = loaded;
        Ok(Loaded { engine, seconds: load_time, shape, format })
    }

    /// Lets rows flow through the three threads until none is left, or one of them cannot go on.
    fn flow(
        &self,
        engine: &mut Engine,
        reading: ReadThread,
        sink: Sink,
        (format, shape): (RowFormat, Shape),
    ) -> (Result<Ended, CliError>, Written) {
        let config = &self.config;
        let window = Arc::new(Window::new(config.window_rows, config.window_bytes));
        let processor = engine.input_processor();
        let (rows, messages) = channel();
        let (requests, incoming) = channel();
        let writing = WriteThread::new(
            config.clone(),
            format.clone(),
            processor.clone(),
            window.clone(),
            self.counters.clone(),
        );
        let writing = std::thread::spawn(move || writing.run(sink, &shape, &messages));
        let base = config.row_params(processor.default_sampling_params());
        let (window_of_reader, rows_of_reader) = (window.clone(), rows.clone());
        let feed = Feed {
            processor,
            format,
            base,
            window: window_of_reader,
            rows: rows_of_reader,
            requests,
        };
        let _ = reading.feed.send(feed);

        let ended = self.drive(engine, &incoming, &rows, &window);
        if !matches!(ended, Ok(Ended::Complete)) {
            // The reader may hold its end for ever, so the writer is told.
            let _ = rows.send(Message::Stop);
        }
        drop(rows);
        let written = writing.join().expect("a panic ends the process in its hook");
        (ended, written)
    }

    /// Steps the engine until every row is answered.
    fn drive(
        &self,
        engine: &mut Engine,
        incoming: &Receiver<Result<Request, CliError>>,
        rows: &Sender<Message>,
        window: &Window,
    ) -> Result<Ended, CliError> {
        loop {
            if let Some(exit) = self.signals.exit() {
                return Ok(Ended::Signal(exit));
            }
            if window.is_closed() {
                return Ok(Ended::NoWriter);
            }
            for request in incoming.try_iter() {
                engine.add_request(request?);
            }
            if !engine.has_unfinished_requests() {
                match incoming.recv_timeout(IDLE) {
                    Ok(request) => engine.add_request(request?),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(Ended::Complete),
                }
                continue;
            }
            let outputs = engine.step()?;
            self.counters.set_engine(&engine.stats());
            for output in outputs {
                if rows.send(Message::Done(output)).is_err() {
                    return Ok(Ended::NoWriter);
                }
            }
        }
    }

    /// Summary, `--stats`, and how the process ends.
    fn conclude(
        &self,
        ended: Result<Ended, CliError>,
        written: Written,
        report: &Report,
    ) -> Result<Exit, CliError> {
        let emitted = written.emitted;
        let result = match (ended, written.result) {
            // Who reads our output wants no more of us.
            (_, Err(error)) if error.exit == Exit::BrokenPipe => return Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Ended::Signal(exit)), Ok(())) => Err(interrupted(exit)),
            (Ok(_), Ok(())) if report.tally.num_failed() > 0 => Ok(Exit::ErrorRows),
            (Ok(_), Ok(())) => Ok(Exit::Success),
        };
        let result = result.map_err(|error| self.what_is_left(error, emitted));
        if self.console.shows_summary() && report.tally.rows() > 0 {
            self.console.print(&report.summary(self.console.style()));
        }
        let exit = result.as_ref().map_or_else(|error| error.exit, |exit| *exit);
        self.write_stats(report, exit)?;
        result
    }

    fn write_stats(&self, report: &Report, exit: Exit) -> Result<(), CliError> {
        let Some(path) = &self.config.output.stats else { return Ok(()) };
        let written = result_file::write(path, "stats", &report.stats(exit.code()));
        written.map_err(|error| error.help("the rows are written"))
    }

    /// Says what of an unfinished run can be used.
    fn what_is_left(&self, error: CliError, emitted: Option<u64>) -> CliError {
        if error.exit == Exit::Refused && emitted == Some(0) {
            return error;
        }
        let left = self.left(emitted);
        let kept = match (emitted, left) {
            (Some(0), _) => "no row was finished".to_owned(),
            (Some(1), Some(part)) => format!("the first row is in {}", part.display()),
            (Some(rows), Some(part)) => format!("the first {rows} rows are in {}", part.display()),
            (Some(1), None) => "the first row was written".to_owned(),
            (Some(rows), None) => format!("the first {rows} rows were written"),
            (None, Some(part)) => format!("some rows may be in {}", part.display()),
            (None, None) => "some rows may have been written".to_owned(),
        };
        let overwrite = match left {
            Some(_) if !self.config.output.overwrite => " with --overwrite",
            _ => "",
        };
        let again = format!("the same command{overwrite} starts from the first row again");
        let help = error.help.as_ref().map(|help| format!("{help}; ")).unwrap_or_default();
        error.help(format!("{help}{kept}; {again}"))
    }

    /// The file that holds the first rows of an unfinished run.
    fn left(&self, emitted: Option<u64>) -> Option<&Path> {
        self.part.as_deref().filter(|part| emitted != Some(0) && part.exists())
    }

    /// Where rows are; None where none is.
    fn output_name(&self, complete: bool, emitted: Option<u64>) -> Option<String> {
        let path = match (&self.config.output.path, &self.part) {
            (None, _) => return Some("<stdout>".to_owned()),
            (Some(_), Some(_)) if !complete => self.left(emitted)?,
            (Some(path), _) => path,
        };
        Some(path.display().to_string())
    }
}

fn interrupted(exit: Exit) -> CliError {
    let name = if exit == Exit::Terminated { "SIGTERM" } else { "SIGINT" };
    CliError::new(exit, "interrupted", format!("stopped by {name}"))
}
