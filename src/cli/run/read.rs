//! The thread that reads: records to rows to requests. It starts before the model is loaded, so
//! that an input that cannot be run is refused at once, and waits for the tokenizer with the first
//! row in hand.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::write::{Message, Waiting};

use crate::cli::config::{InputConfig, RunConfig};
use crate::cli::console::{Console, ProgressMode};
use crate::cli::error::{CliError, sanitized};
use crate::cli::exit::Exit;
use crate::cli::fields::Passthrough;
use crate::cli::output::{RowFormat, Shape};
use crate::cli::progress::Counters;
use crate::cli::reader::{Content, InputError, MAX_LINE, Record, Records};
use crate::cli::row::{BadRow, Row, RowParser};
use crate::cli::row_error::RowError;
use crate::cli::row_key::{RowName, row_key};
use crate::cli::window::Window;
use crate::engine::input_processor::InputProcessor;
use crate::engine::request::{Request, SamplingParams};

/// Where rows go, once the model is loaded. Both channels are bounded by the window: a row in them
/// has entered it.
pub struct Feed {
    /// Tokenizes and checks.
    pub processor: Arc<InputProcessor>,
    /// How rows are written.
    pub format: RowFormat,
    /// What rows override.
    pub base: SamplingParams,
    /// Bounds what is read ahead.
    pub window: Arc<Window>,
    /// Every row, to the thread that writes.
    pub rows: Sender<Message>,
    /// Rows that can be asked, to the engine; an error ends the run.
    pub requests: Sender<Result<Request, CliError>>,
}

/// The two ends of the reading thread. It is not joined: it may be blocked on standard input for
/// ever.
pub struct ReadThread {
    /// Says once what the input is, or why it is refused.
    pub shape: Receiver<Result<Shape, CliError>>,
    /// Takes where rows go.
    pub feed: Sender<Feed>,
}

/// Opens the input.
///
/// # Errors
/// There is no such file.
pub fn open(config: &InputConfig) -> Result<Box<dyn Read + Send>, CliError> {
    let Some(path) = &config.path else { return Ok(Box::new(std::io::stdin())) };
    let refuse = |text: String| {
        let message = format!("cannot read {}: {text}", path.display());
        CliError::new(Exit::Refused, "input", message).help("check --input")
    };
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    match file.metadata() {
        Ok(metadata) if metadata.is_dir() => Err(refuse("it is a folder".to_owned())),
        _ => Ok(Box::new(file)),
    }
}

/// Starts the thread.
pub fn start(
    config: Arc<RunConfig>,
    input: Box<dyn Read + Send>,
    console: Console,
    counters: Arc<Counters>,
) -> ReadThread {
    let (shape_sender, shape) = channel();
    let (feed, feed_receiver) = channel::<Feed>();
    if console.mode() != ProgressMode::None {
        count(config.clone(), counters.clone());
    }
    std::thread::spawn(move || {
        let mut input = match Input::open(&config.input, input) {
            Ok(input) => input,
            Err(error) => return drop(shape_sender.send(Err(error))),
        };
        input.say_shape(&config.input, &console);
        let _ = shape_sender.send(Ok(input.shape()));
        // Without a feed the run has ended.
        let Ok(feed) = feed_receiver.recv() else { return };
        match feed_all(&mut input, &config, &feed, &console) {
            Ok(Some(rows)) => counters.set_total(rows),
            Ok(None) => {}
            Err(error) => drop(feed.requests.send(Err(error))),
        }
    });
    ReadThread { shape, feed }
}

/// Counts the rows of a file, so that progress has a total before the file is read to its end.
/// Nothing depends on it: what cannot be counted (a pipe can be read once only) has no total for a
/// while.
fn count(config: Arc<RunConfig>, counters: Arc<Counters>) {
    std::thread::spawn(move || {
        let input = &config.input;
        let file = input.path.as_ref().filter(|path| path.is_file()).map(File::open);
        let Some(Ok(file)) = file else { return };
        let records = Records::open(Box::new(file), input.format, MAX_LINE);
        let Ok(mut records) = records else { return };
        let limit = input.limit.unwrap_or(u64::MAX);
        let mut rows = 0;
        while rows < limit {
            match records.next() {
                Some(Ok(_)) => rows += 1,
                Some(Err(_)) => return,
                None => break,
            }
        }
        counters.set_total(rows);
    });
}

/// A row, or why it is none, with the bytes that it takes of the window.
type Parsed = (usize, Result<Row, BadRow>);

/// Records with their parser, and the first row.
struct Input {
    records: Records,
    parser: RowParser,
    first: Option<Parsed>,
}

impl Input {
    /// Reads the first row: an input of the wrong shape is refused before the model is loaded.
    fn open(config: &InputConfig, input: Box<dyn Read + Send>) -> Result<Self, CliError> {
        let refused = |error| CliError::from_input(error, &config.name);
        let mut records = Records::open(input, config.format, MAX_LINE).map_err(refused)?;
        let parser = RowParser::new(&mut records, &config.rows).map_err(refused)?;
        let mut input = Self { records, parser, first: None };
        input.first = input.next().map_err(refused)?;
        if input.first.is_none() {
            let message = format!("{} has no rows", config.name);
            return Err(CliError::new(Exit::NoRows, "no_rows", message));
        }
        Ok(input)
    }

    fn shape(&self) -> Shape {
        let records = &self.records;
        Shape { format: records.format(), headers: records.headers(), crlf: records.crlf() }
    }

    /// Says what the first readable row decided, once it has.
    fn say_shape(&mut self, config: &InputConfig, console: &Console) {
        if let Some(note) = self.parser.take_note() {
            console.note(&format!("{}: {note}", config.name));
        }
    }

    fn next(&mut self) -> Result<Option<Parsed>, InputError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let Some(record) = self.records.next().transpose()? else { return Ok(None) };
        Ok(Some((size(&record), self.parser.parse(record)?)))
    }
}

/// Sends every row on its way. Returns how many there were; None if the run ended before.
fn feed_all(
    input: &mut Input,
    run: &RunConfig,
    feed: &Feed,
    console: &Console,
) -> Result<Option<u64>, CliError> {
    let config = &run.input;
    let mut rows = 0;
    let mut warnings = Warnings { console, of_collisions: false, of_two_bos: false };
    while config.limit.is_none_or(|limit| rows < limit) {
        let next = input.next().map_err(|error| CliError::from_input(error, &config.name))?;
        let Some((bytes, parsed)) = next else { break };
        input.say_shape(config, console);
        if !warnings.of_collisions
            && let Ok(row) = &parsed
        {
            warnings.collisions(&feed.format.collisions(&row.passthrough, run));
        }
        if !feed.window.enter(bytes) || !feed_row(parsed, bytes, config, (feed, &mut warnings))? {
            return Ok(None);
        }
        rows += 1;
    }
    Ok(Some(rows))
}

fn size(record: &Record) -> usize {
    match &record.content {
        Content::Line(line) => line.len(),
        Content::Cells(cells) => cells.iter().map(String::len).sum(),
    }
}

/// What is said once, at the first row that gives cause.
struct Warnings<'a> {
    console: &'a Console,
    of_collisions: bool,
    of_two_bos: bool,
}

impl Warnings<'_> {
    /// Says which fields of the input are renamed because ours have their names.
    fn collisions(&mut self, names: &[String]) {
        if names.is_empty() {
            return;
        }
        self.of_collisions = true;
        let renamed: Vec<String> = names.iter().map(|name| format!("input_{name}")).collect();
        let (names, renamed) = (sanitized(&names.join(", ")), sanitized(&renamed.join(", ")));
        self.console.warn(&format!(
            "fields of the input are named like ours: {names}; written as {renamed}"
        ));
    }

    /// Says that a prompt's text brings the BOS that the tokenizer adds anyway.
    fn two_bos(&mut self, request: &Request, line: u64, processor: &InputProcessor) {
        if !self.of_two_bos && processor.begins_with_two_bos(&request.prompt_token_ids) {
            self.of_two_bos = true;
            self.console.warn(&format!(
                "line {line}: the prompt begins with the BOS token, and the tokenizer adds another; leave \
                 it out of the text, or give chat rows as `messages`"
            ));
        }
    }
}

/// Sends a row to who writes it, and its request to the engine. False: nobody listens any more.
fn feed_row(
    parsed: Result<Row, BadRow>,
    bytes: usize,
    config: &InputConfig,
    (feed, warnings): (&Feed, &mut Warnings<'_>),
) -> Result<bool, CliError> {
    let (index, line, passthrough, request) = match parsed {
        Ok(row) => {
            let (index, line) = (row.index, row.line);
            let (passthrough, request) = request(row, feed);
            (index, line, passthrough, request)
        }
        Err(BadRow { index, passthrough, error }) => (index, error.line, passthrough, Err(error)),
    };
    match &request {
        Ok(request) => warnings.two_bos(request, line, &feed.processor),
        Err(error) if config.fail_on_bad_row => {
            return Err(CliError::from_row(error, &config.name));
        }
        Err(_) => {}
    }
    // The row goes first, so that whoever writes knows it before its answer comes.
    if feed.rows.send(Message::Row(Waiting { index, line, bytes, passthrough })).is_err() {
        return Ok(false);
    }
    Ok(match request {
        Ok(request) => feed.requests.send(Ok(request)).is_ok(),
        Err(error) => feed.rows.send(Message::Failed { index, error }).is_ok(),
    })
}

/// The engine's request, or why there is none.
fn request(row: Row, feed: &Feed) -> (Passthrough, Result<Request, RowError>) {
    let Row { index, line, prompt, overrides, id, passthrough } = row;
    let name = match (overrides.seed(), &id) {
        (Some(seed), _) => RowName::Seed(seed),
        (None, Some(id)) => RowName::Id(id),
        (None, None) => RowName::Index(index),
    };
    let request = overrides
        .apply(&feed.base)
        .and_then(|params| feed.processor.process(index, prompt, params, row_key(name)))
        .map_err(|error| RowError::from_request(&error, line));
    (passthrough, request)
}
