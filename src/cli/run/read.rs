//! The thread that reads: records to rows to requests. It starts before the model is loaded, so
//! that an input that cannot be run is refused at once, and waits for the tokenizer with the first
//! row in hand.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::feed::{Feed, feed_all};
use super::write::InputRead;
use crate::cli::config::InputConfig;
use crate::cli::console::{Console, ProgressMode};
use crate::cli::custom_ids::CustomIds;
use crate::cli::error::{CliError, sanitized};
use crate::cli::exit::Exit;
use crate::cli::output::Shape;
use crate::cli::progress::Counters;
use crate::cli::reader::{Content, InputError, MAX_LINE, Record, Records, refuse_name};
use crate::cli::row::{BadRow, Row, RowParser};
use crate::cli::row_hash::{ContentHash, InputDigest};
use crate::engine::input_processor::Prompt;

/// What becomes of the rows.
pub enum Order {
    /// They are run.
    Feed(Box<Feed>),
    /// They are only counted and hashed.
    Digest(Sender<Result<InputRead, CliError>>),
}

/// The two ends of the reading thread. It is not joined: it may be blocked on standard input for
/// ever.
pub struct ReadThread {
    /// Says once what the input is, or why it is refused.
    pub shape: Receiver<Result<Shape, CliError>>,
    /// Takes where rows go.
    pub order: Sender<Order>,
    /// Says whether a file may be run. Disconnected: nothing speaks against it.
    pub checked: Receiver<Checked>,
}

/// Whether a file that was read ahead may be run, and if so, whether it has batch requests and all
/// of them are chat.
pub type Checked = Result<bool, CliError>;

/// Opens the input.
///
/// # Errors
/// There is no such file.
pub fn open(config: &InputConfig) -> Result<Box<dyn Read + Send>, CliError> {
    let Some(path) = &config.path else { return Ok(Box::new(std::io::stdin())) };
    refuse_name(path, config.format).map_err(|error| CliError::from_input(error, &config.name))?;
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
    config: Arc<InputConfig>,
    input: Box<dyn Read + Send>,
    console: Console,
    counters: Arc<Counters>,
) -> ReadThread {
    let (shape_sender, shape) = channel();
    let (order, orders) = channel::<Order>();
    let counts = console.mode() != ProgressMode::None;
    let checked = look_ahead(config.clone(), counters.clone(), counts);
    std::thread::spawn(move || {
        let mut input = match Input::open(&config, input) {
            Ok(input) => input,
            Err(error) => return drop(shape_sender.send(Err(error))),
        };
        input.decide_shape();
        let _ = shape_sender.send(Ok(input.shape()));
        match orders.recv() {
            Ok(Order::Feed(feed)) => {
                // Only now: who is told that there is nothing to do asks for no shape.
                input.say_shape(&config, &console);
                feed_all(&mut input, *feed, &console, &counters);
            }
            Ok(Order::Digest(digest)) => drop(digest.send(input.digest(&config))),
            // The run has ended.
            Err(_) => {}
        }
    });
    ReadThread { shape, order, checked }
}

/// Reads a file ahead of the run, on a thread of its own. Progress has a total before the file is
/// read to its end. And of batch requests no two may have one `custom_id`: said before the run
/// begins. What can be read once only (a pipe) is not looked at.
fn look_ahead(input: Arc<InputConfig>, counters: Arc<Counters>, counts: bool) -> Receiver<Checked> {
    let (sender, checked) = channel();
    std::thread::spawn(move || {
        let file = input.path.as_ref().filter(|path| path.is_file()).map(File::open);
        let Some(Ok(file)) = file else { return };
        // Whatever is wrong with the input, the reading thread says it.
        let records = Records::open(Box::new(file), input.format, MAX_LINE);
        let Ok(mut records) = records else { return };
        let Ok(mut parser) = RowParser::new(&mut records, &input.rows) else { return };
        let mut ids = parser.is_batch().then(CustomIds::default);
        if ids.is_none() {
            let _ = sender.send(Ok(false));
        }
        if ids.is_none() && !counts {
            return;
        }
        let limit = input.limit.unwrap_or(u64::MAX);
        let (mut rows, mut some_chat, mut only_chat) = (0, false, true);
        while rows < limit {
            let Some(Ok(record)) = records.next() else { break };
            rows += 1;
            let Some(ids) = &mut ids else { continue };
            let Ok(row) = parser.parse(record) else { return };
            // A bad row is an error row in any case, and says nothing of the others.
            if let Ok(row) = &row {
                let is_chat = matches!(row.prompt, Prompt::Messages(_));
                some_chat |= is_chat;
                only_chat &= is_chat;
            }
            if let Some(error) = ids.check(&row) {
                return drop(sender.send(Err(CliError::from_row(&error, &input.name))));
            }
        }
        counters.set_total(input.shard.num_rows(rows));
        let _ = sender.send(Ok(some_chat && only_chat));
    });
    checked
}

/// A row, or why it is none.
pub struct Parsed {
    /// What it takes of the window.
    pub bytes: usize,
    /// What was read.
    pub content: ContentHash,
    /// What it is.
    pub row: Result<Row, BadRow>,
}

/// Records with their parser, and the first row.
pub struct Input {
    records: Records,
    parser: RowParser,
    first: Option<Parsed>,
    /// What the first readable row decided, in words.
    note: String,
}

impl Input {
    /// Reads the first row: an input of the wrong shape is refused before the model is loaded.
    ///
    /// # Errors
    /// There are no rows, or none of the shape that was asked for.
    pub fn open(config: &InputConfig, input: Box<dyn Read + Send>) -> Result<Self, CliError> {
        let refused = |error| CliError::from_input(error, &config.name);
        let mut records = Records::open(input, config.format, MAX_LINE).map_err(refused)?;
        let parser = RowParser::new(&mut records, &config.rows).map_err(refused)?;
        let mut input = Self { records, parser, first: None, note: String::new() };
        input.first = input.next_row().map_err(refused)?;
        if input.first.is_none() {
            let message = format!("{} has no rows", config.name);
            return Err(CliError::new(Exit::NoRows, "no_rows", message));
        }
        Ok(input)
    }

    fn shape(&self) -> Shape {
        let records = &self.records;
        Shape {
            format: records.format(),
            headers: records.headers(),
            crlf: records.crlf(),
            has_batch_lines: self.parser.writes_batch_lines(),
            is_chat: self.parser.is_chat(),
        }
    }

    /// Whether rows are requests of a batch API that are read once only: no file was looked at
    /// before.
    pub fn is_batch_stream(&self, config: &InputConfig) -> bool {
        self.parser.is_batch() && !config.path.as_ref().is_some_and(|path| path.is_file())
    }

    /// Whether no readable row has come yet.
    pub fn is_undecided(&self) -> bool {
        self.note.is_empty()
    }

    /// Takes what the first readable row decided, once it has.
    pub fn decide_shape(&mut self) {
        if let Some(note) = self.parser.take_note() {
            self.note = note;
        }
    }

    /// Says what was decided, if it is.
    pub fn say_shape(&self, config: &InputConfig, console: &Console) {
        if !self.is_undecided() {
            console.note(&format!("{}: {}", config.name, self.note));
        }
    }

    /// Says what may surprise about the rows that were read, each thing once.
    pub fn say_remarks(&mut self, config: &InputConfig, console: &Console) {
        for remark in self.parser.take_remarks() {
            console.note(&sanitized(&format!("{}: {remark}", config.name)));
        }
    }

    /// Says how many rows these held for.
    pub fn say_totals(&self, config: &InputConfig, console: &Console) {
        for total in self.parser.remark_totals() {
            console.note(&sanitized(&format!("{}: {total}", config.name)));
        }
    }

    /// What a row's output depends on besides the row: part of its hash.
    pub fn shape_text(&self) -> String {
        let Shape { headers, crlf, .. } = self.shape();
        format!("{} {headers:?} {crlf}", self.note)
    }

    /// The next row.
    ///
    /// # Errors
    /// The input cannot be read, or its first row has no shape that can be run.
    pub fn next_row(&mut self) -> Result<Option<Parsed>, InputError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        let Some(record) = self.records.next().transpose()? else { return Ok(None) };
        let (bytes, content) = (size(&record), ContentHash::of(&record));
        Ok(Some(Parsed { bytes, content, row: self.parser.parse(record)? }))
    }

    /// Reads to the end.
    fn digest(&mut self, config: &InputConfig) -> Result<InputRead, CliError> {
        let mut digest = InputDigest::default();
        while config.limit.is_none_or(|limit| digest.num_rows() < limit) {
            let next =
                self.next_row().map_err(|error| CliError::from_input(error, &config.name))?;
            let Some(parsed) = next else { break };
            digest.add(parsed.content);
        }
        Ok(digest.into())
    }
}

impl From<InputDigest> for InputRead {
    fn from(digest: InputDigest) -> Self {
        Self { num_rows: digest.num_rows(), digest: digest.finish() }
    }
}

fn size(record: &Record) -> usize {
    match &record.content {
        Content::Line(line) => line.len(),
        Content::Cells(cells) => cells.iter().map(String::len).sum(),
    }
}
