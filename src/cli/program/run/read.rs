//! The thread that reads: records to rows to requests. It starts before the model is loaded, so
//! that an input that cannot be run is refused at once, and waits for the tokenizer with the first
//! row in hand.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::feed::{Feed, feed_all};
use super::progress::Counters;
use super::write::InputRead;
use crate::config::InputConfig;
use crate::ledger::Recovered;
use crate::ledger::row_hash::{ContentHash, InputDigest};
use vllm_batch_base::machine;
use vllm_batch_dataset::input::custom_ids::CustomIds;
use vllm_batch_dataset::input::files::{self, Files, Shape};
use vllm_batch_dataset::input::reader::{Opened, Record};
use vllm_batch_dataset::input::row::{BadRow, Row};
use vllm_batch_dataset::input::row_error::code;
use vllm_batch_dataset::input::sample::RowsThen;
use vllm_batch_dataset::terminal::console::{Console, ProgressMode};
use vllm_batch_dataset::terminal::error::{CliError, sanitized};
use vllm_batch_dataset::terminal::exit::Exit;

/// What becomes of the rows.
pub enum Order {
    /// They are run.
    Feed(Box<Feed>),
    /// They are only counted and hashed; those that an earlier run had on their own too. With the
    /// numbers of rows whose images could not be used then.
    Digest(RowsThen, HashSet<u64>, Sender<Result<Digested, CliError>>),
}

/// Hashes of an input.
pub struct Digested {
    /// Of all of it.
    pub all: InputRead,
    /// Of the rows that an earlier run had.
    pub then: InputRead,
}

/// The two ends of the reading thread. It is not joined: it may be blocked on standard input for
/// ever.
pub struct ReadThread {
    /// Says once what the input is, or why it is refused.
    shape: Receiver<Result<Shape, CliError>>,
    /// Takes where rows go.
    pub order: Sender<Order>,
    /// Says whether a file may be run. Disconnected: nothing speaks against it.
    pub checked: Receiver<Checked>,
}

/// Whether a file that was read ahead may be run, and if so, what its batch requests are.
pub type Checked = Result<Requests, CliError>;

/// The batch requests of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requests {
    /// There are none, or they were not looked at.
    Unknown,
    /// All are chat.
    Chats,
    /// Some are chat.
    SomeChats,
    /// None is chat.
    NoChats,
}

impl ReadThread {
    /// Waits for the first row.
    ///
    /// # Errors
    /// The input is refused.
    pub fn shape(&self) -> Result<Shape, CliError> {
        self.shape.recv().expect("the reading thread says what it found")
    }

    /// Waits for it no longer than this.
    ///
    /// # Errors
    /// The input is refused.
    pub fn shape_within(&self, time: Duration) -> Result<Option<Shape>, CliError> {
        self.shape.recv_timeout(time).ok().transpose()
    }
}

/// Opens an input, and starts the thread that reads it.
///
/// # Errors
/// It cannot be opened.
pub fn start(
    config: &Arc<InputConfig>,
    console: &Console,
    counters: &Arc<Counters>,
) -> Result<ReadThread, CliError> {
    let input = files::open(&config.sources, &config.rows)?;
    let (config, console) = (config.clone(), console.clone());
    let (shape_sender, shape) = channel();
    let (order, orders) = channel::<Order>();
    let counts = console.mode() != ProgressMode::None;
    let checked = look_ahead(config.clone(), counters.clone(), counts);
    machine::started(std::thread::Builder::new().spawn(move || {
        let mut input = match Input::open(&config, input) {
            Ok(input) => input,
            Err(error) => return drop(shape_sender.send(Err(error))),
        };
        input.take_notes();
        let _ = shape_sender.send(Ok(input.shape()));
        match orders.recv() {
            Ok(Order::Feed(feed)) => {
                input.say_notes(&console);
                feed_all(&mut input, *feed, &console);
            }
            Ok(Order::Digest(then, unread, digest)) => {
                input.begin(None);
                drop(digest.send(input.digest(&config, &then, &unread)));
            }
            // The run has ended.
            Err(_) => {}
        }
    }));
    Ok(ReadThread { shape, order, checked })
}

/// Reads a file ahead of the run, on a thread of its own. Progress has a total before the file is
/// read to its end. And of batch requests no two may have one `custom_id`: said before the run
/// begins. What can be read once only (a pipe) is not looked at.
fn look_ahead(input: Arc<InputConfig>, counters: Arc<Counters>, counts: bool) -> Receiver<Checked> {
    let (sender, checked) = channel();
    machine::started(std::thread::Builder::new().spawn(move || {
        if input.is_checked {
            return;
        }
        let sources = &input.sources;
        let total = |rows: u64| {
            let limit = input.limit.unwrap_or(u64::MAX);
            counters.set_total(input.shard.num_rows(rows.min(limit)));
        };
        if !sources.are_files() {
            // Nobody waits for it: what is read once only may still say how long it is.
            drop(sender);
            let rows = (counts && sources.are_seekable()).then(|| files::num_rows(sources));
            return rows.flatten().map_or((), total);
        }
        // Whatever is wrong with the input, the reading thread says it.
        let Ok(chosen) = input.chosen() else { return };
        let Ok(first) = files::open(sources, &input.rows) else { return };
        let Ok(files) = Files::new(Arc::clone(sources), first, &input.rows) else { return };
        let mut files = files.choosing(chosen.clone());
        // Whoever reads the rows to run them looks at their images.
        files.parser().skip_images();
        let mut ids = files.as_parser().is_batch().then(CustomIds::default);
        if ids.is_none() {
            let _ = sender.send(Ok(Requests::Unknown));
        }
        if ids.is_none() && !counts {
            return;
        }
        let limit = input.limit.unwrap_or(u64::MAX);
        let known = || match &chosen {
            Some(chosen) => Some(chosen.indices.len() as u64),
            None => files::num_rows(sources),
        };
        if let Some(rows) = ids.is_none().then(known).flatten() {
            return total(rows);
        }
        let (mut rows, mut some_chat, mut only_chat) = (0, false, true);
        while rows < limit {
            let Ok(Some(record)) = files.next_record() else { break };
            rows += 1;
            let Some(ids) = &mut ids else { continue };
            let Ok(row) = files.parse(record) else { return };
            if let Some(error) = row.as_ref().err().and_then(BadRow::of_other_task) {
                return drop(sender.send(Err(sources.row_error(error))));
            }
            // A bad row is an error row in any case, and says nothing of the others.
            if let Ok(row) = &row {
                let is_chat = row.prompt.chat().is_some();
                some_chat |= is_chat;
                only_chat &= is_chat;
            }
            if let Some(error) = ids.check(&row, &|line| sources.said(line)) {
                return drop(sender.send(Err(sources.row_error(&error))));
            }
        }
        total(rows);
        let _ = sender.send(Ok(match (some_chat, only_chat) {
            (true, true) => Requests::Chats,
            (true, false) => Requests::SomeChats,
            (false, false) => Requests::NoChats,
            // Every row is bad.
            (false, true) => Requests::Unknown,
        }));
    }));
    checked
}

/// A row, or why it is none.
pub struct Parsed {
    /// What it takes of the window.
    pub bytes: usize,
    /// What was read.
    pub text: ContentHash,
    /// The same with the bytes of its images.
    pub content: ContentHash,
    /// What it is.
    pub row: Result<Row, BadRow>,
}

impl Parsed {
    /// Its number among all rows of the input, from 0.
    pub fn index(&self) -> u64 {
        self.row.as_ref().map_or_else(|bad| bad.index, |row| row.index)
    }

    /// Takes it as the next row of an input. `unread`: rows whose images could not be used when
    /// the input was read before, and that count as they did then.
    pub fn add_to(&self, digest: &mut InputDigest, unread: &HashSet<u64>) {
        let is_fault = |bad: &BadRow| code::is_of_media(bad.error.code);
        match &self.row {
            Err(bad) if is_fault(bad) => digest.add_unread(self.text, bad.index),
            _ if unread.contains(&self.index()) => digest.add(self.text, self.text),
            _ => digest.add(self.text, self.content),
        }
        if self.row.as_ref().is_ok_and(|row| !row.fetched.is_empty()) {
            digest.note_urls();
        }
    }
}

/// The first row of an input.
enum First {
    Parsed(Box<Parsed>),
    /// Its images are not read before it is known what an earlier run has of them.
    Unread(Record),
}

/// The rows of all files, and the first of them.
pub struct Input {
    files: Files,
    /// The number of files.
    num_files: usize,
    first: Option<First>,
    /// What the first readable row decided, in words.
    note: String,
    /// The file whose notes were taken.
    noted_of: usize,
    /// Notes that were taken.
    unsaid: Vec<String>,
}

impl Input {
    /// Reads the first row: an input of the wrong shape is refused before the model is loaded.
    ///
    /// # Errors
    /// There are no rows, or none of the shape that was asked for.
    pub fn open(config: &InputConfig, input: Opened) -> Result<Self, CliError> {
        let files = Files::new(Arc::clone(&config.sources), input, &config.rows)?;
        let files = files.choosing(config.chosen()?);
        let num_files = config.sources.list().len();
        let mut input = Self {
            files,
            num_files,
            first: None,
            note: String::new(),
            noted_of: 0,
            unsaid: Vec::new(),
        };
        input.first = match config.trusts_media && input.files.as_parser().is_decided() {
            true => {
                input.files.parser().wait(true);
                input.files.next_record()?.map(First::Unread)
            }
            false => input.next_row()?.map(Box::new).map(First::Parsed),
        };
        if input.first.is_none() {
            let message = format!("{} has no rows", config.name);
            return Err(CliError::new(Exit::NoRows, "no_rows", message));
        }
        Ok(input)
    }

    /// Begins to read all rows. `recovered`: what an earlier run fetched of their images is taken
    /// as it was then.
    pub fn begin(&mut self, recovered: Option<Rc<RefCell<Recovered>>>) {
        if let Some(recovered) = recovered {
            self.files.recall(Box::new(move |record| {
                let found = recovered.borrow_mut().images_of(&ContentHash::of(record));
                // The row's own record is looked for in the same journal, and that is an error.
                found.unwrap_or_default()
            }));
        }
        self.files.parser().wait(false);
    }

    /// What is known of the rows.
    pub fn shape(&self) -> Shape {
        let records = self.files.records();
        Shape {
            format: records.format(),
            headers: records.headers(),
            delimiter: records.delimiter(),
            crlf: records.crlf(),
            is_marked: records.is_marked(),
            has_batch_lines: self.files.as_parser().writes_batch_lines(),
            is_chat: self.files.as_parser().is_chat(),
            is_batch: self.files.as_parser().is_batch(),
            is_fixed: self.files.as_parser().is_fixed() && self.num_files == 1,
            task: self.files.as_parser().task(),
        }
    }

    /// Whether rows are requests of a batch API that are read once only: no file was looked at
    /// before.
    pub fn is_batch_stream(&self, config: &InputConfig) -> bool {
        self.files.as_parser().is_batch() && !config.sources.are_files()
    }

    /// Takes what the first readable row decided, once it has, and what may surprise about the rows
    /// since. True: what rows' outputs depend on may be another than before.
    pub fn take_notes(&mut self) -> bool {
        let begins_file = self.noted_of != self.files.current();
        self.noted_of = self.files.current();
        let found = self.files.take_notes();
        let note = self.files.parser().take_note();
        let remarks = self.files.parser().take_remarks();
        for text in found.iter().chain(&note).chain(&remarks) {
            self.unsaid.push(sanitized(&format!("{}: {text}", self.files.name())));
        }
        let is_decided = note.is_some();
        self.note = note.unwrap_or(std::mem::take(&mut self.note));
        begins_file || is_decided
    }

    /// Says what was taken and not yet said: who is told that there is nothing to do asks for none
    /// of it.
    pub fn say_notes(&mut self, console: &Console) {
        for note in self.unsaid.drain(..) {
            console.note(&note);
        }
    }

    /// Says how many rows the remarks held for.
    pub fn say_totals(&self, name: &str, console: &Console) {
        for total in self.files.as_parser().remark_totals() {
            console.note(&sanitized(&format!("{name}: {total}")));
        }
    }

    /// What a row's output depends on besides the row: part of its hash.
    pub fn shape_text(&self) -> String {
        let Shape { headers, delimiter, crlf, .. } = self.shape();
        format!("{} {headers:?} {delimiter:?} {crlf}", self.note)
    }

    /// The same of a row that cannot be asked: where there are several files, it may show which.
    pub fn shape_text_of_bad(&self) -> String {
        let file = if self.num_files > 1 { self.files.name() } else { "" };
        format!("{} {file}", self.shape_text())
    }

    /// The next row.
    ///
    /// # Errors
    /// The input cannot be read, or its first row has no shape that can be run.
    pub fn next_row(&mut self) -> Result<Option<Parsed>, CliError> {
        let record = match self.first.take() {
            Some(First::Parsed(first)) => return Ok(Some(*first)),
            Some(First::Unread(record)) => record,
            None => match self.files.next_record()? {
                Some(record) => record,
                None => return Ok(None),
            },
        };
        let (bytes, text) = (record.num_bytes(), ContentHash::of(&record));
        let row = self.files.parse(record)?;
        let content = match &row {
            Ok(row) => text.with_media(&row.prompt),
            Err(bad) => text.with_fault(&bad.error),
        };
        let (Ok(Row { passthrough, .. }) | Err(BadRow { passthrough, .. })) = &row;
        let bytes = bytes + passthrough.num_bytes_beside() + row.as_ref().map_or(0, held);
        Ok(Some(Parsed { bytes, text, content, row }))
    }

    /// Reads to the end. `then`: rows that are hashed on their own; `unread`: as `add_to` has them.
    fn digest(
        &mut self,
        config: &InputConfig,
        then: &RowsThen,
        unread: &HashSet<u64>,
    ) -> Result<Digested, CliError> {
        let (mut digest, mut of_then) = (InputDigest::default(), InputDigest::default());
        while config.limit.is_none_or(|limit| digest.num_rows() < limit) {
            let Some(parsed) = self.next_row()? else { break };
            parsed.add_to(&mut digest, unread);
            if then.place(parsed.index()).is_some() {
                parsed.add_to(&mut of_then, unread);
            }
        }
        Ok(Digested { all: digest.into(), then: of_then.into() })
    }
}

/// Whether the rows of an input have this hash of what is read of them without their images, of
/// which none is looked at.
///
/// # Errors
/// The input cannot be read.
pub fn has_texts(config: &InputConfig, num_rows: u64, texts: &str) -> Result<bool, CliError> {
    let first = files::open(&config.sources, &config.rows)?;
    let files = Files::new(Arc::clone(&config.sources), first, &config.rows)?;
    let mut files = files.choosing(config.chosen()?);
    files.parser().skip_images();
    let mut digest = InputDigest::default();
    while config.limit.is_none_or(|limit| digest.num_rows() < limit) {
        let Some(record) = files.next_record()? else { break };
        let text = ContentHash::of(&record);
        digest.add(text, text);
    }
    digest.note_urls();
    Ok(digest.num_rows() == num_rows && digest.of_texts().as_deref() == Some(texts))
}

/// Bytes of the images of a row that are in memory until it is answered.
fn held(row: &Row) -> usize {
    row.prompt.media().into_iter().flatten().map(|medium| medium.num_bytes_held()).sum()
}

impl From<InputDigest> for InputRead {
    fn from(mut digest: InputDigest) -> Self {
        let unread_images = digest.take_unread();
        let (num_rows, texts) = (digest.num_rows(), digest.of_texts());
        Self { num_rows, unread_images, texts, digest: digest.finish() }
    }
}
