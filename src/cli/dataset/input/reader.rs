//! `Records`: the lines or CSV records of an input, or the rows of a Parquet file, each with its
//! number, in bounded memory.

mod csv;
mod decompress;
mod encoding;
mod foreign;
mod layout;
mod line_ends;
mod lines;
mod opening;
mod sniff;
mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use self::csv::CsvRecords;
pub use self::decompress::{Codec, Decoder};
pub use self::encoding::TextEncoding;
pub use self::foreign::{foreign_kind, refuse_name};
pub use self::layout::{HeaderNames, Layout, Reading};
use self::lines::Lines;
pub use self::sniff::{UTF8_BOM, is_mark};
pub use self::table::is_delimiter;
use super::compress::Compression;
use super::parquet::{MAGIC_LEN, ParquetFile, ParquetRows, is_parquet, may_be_parquet};
use super::parts::PartRows;
use super::pictures::{PictureRows, Pictures};
use super::row_error::{RowError, code};
use super::tar::TarRows;
use crate::object_store::{Object, ObjectName, Store, StoreError};
use crate::terminal::error::CliError;
use crate::terminal::exit::Exit;
use vllm_batch_media::{MediaKind, Medium};

/// Longest line or CSV record accepted.
pub const MAX_LINE: usize = 64 << 20;

/// Bytes shown of a line that is too long.
const SHOWN_OF_LONG: usize = 256;

/// Format of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputFormat {
    /// By the file's extension, else by its first line.
    #[default]
    Auto,
    /// One JSON value per line.
    Jsonl,
    /// Comma-separated, with a header.
    Csv,
    /// Tab-separated, with a header.
    Tsv,
    /// One prompt per line.
    Txt,
    /// The columns of a file.
    Parquet,
}

impl InputFormat {
    /// What `--format` calls it.
    pub fn name(self) -> &'static str {
        match self {
            InputFormat::Auto => "auto",
            InputFormat::Jsonl => "jsonl",
            InputFormat::Csv => "csv",
            InputFormat::Tsv => "tsv",
            InputFormat::Txt => "txt",
            InputFormat::Parquet => "parquet",
        }
    }

    /// Format by a file's extension, the one before `.gz` or `.zst`; `Auto` if there is none.
    pub fn from_path(path: &Path) -> Self {
        let extension = inner_name(path).extension().and_then(|e| e.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => InputFormat::Jsonl,
            "csv" => InputFormat::Csv,
            "tsv" | "tab" => InputFormat::Tsv,
            "txt" | "text" => InputFormat::Txt,
            "parquet" => InputFormat::Parquet,
            _ => InputFormat::Auto,
        }
    }

    /// Whether a file has an extension, and it stands for no format.
    pub fn is_unknown(path: &Path) -> bool {
        Self::from_path(path) == InputFormat::Auto && inner_name(path).extension().is_some()
    }

    /// Usual separator of the cells of a record, if records have cells.
    pub fn delimiter(self) -> Option<u8> {
        match self {
            InputFormat::Csv => Some(b','),
            InputFormat::Tsv => Some(b'\t'),
            InputFormat::Auto | InputFormat::Jsonl | InputFormat::Txt | InputFormat::Parquet => {
                None
            }
        }
    }
}

/// A path without the extension of what compresses it.
fn inner_name(path: &Path) -> &Path {
    let inner = match Compression::from_path(path) {
        Compression::None => None,
        _ => path.file_stem().map(Path::new),
    };
    inner.unwrap_or(path)
}

/// Why the input as a whole cannot be used.
#[derive(Debug)]
pub enum InputError {
    /// Exit 2.
    Refused {
        /// Message of the error.
        message: String,
        /// Advice for the user.
        help: String,
    },
    /// It cannot be read.
    Io(io::Error),
}

impl InputError {
    /// Error with its message and its advice.
    pub fn refused(message: impl Into<String>, help: impl Into<String>) -> Self {
        InputError::Refused { message: message.into(), help: help.into() }
    }
}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputError::Refused { message, .. } => f.write_str(message),
            InputError::Io(error) => write!(f, "the input cannot be read: {error}"),
        }
    }
}

impl std::error::Error for InputError {}

impl From<io::Error> for InputError {
    fn from(error: io::Error) -> Self {
        InputError::Io(error)
    }
}

/// Content of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A line without its end.
    Line(String),
    /// The cells of a CSV record, as many as the header has.
    Cells(Vec<String>),
    /// Members of an archive.
    Sample(Sample),
}

/// A row that has images with it: of an archive, or a part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The row in JSON. Images of an archive are in it by the names of their members.
    pub text: String,
    /// Names of the images, and what they are.
    pub members: Members,
}

/// Images that came with a row, by their names.
pub type Members = Vec<(String, Member)>;

/// An image that came with a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// Bytes of a member of an archive.
    Bytes(Arc<Vec<u8>>),
    /// A part of a file, which is made when somebody needs it.
    Made(Arc<Medium>),
}

impl Member {
    fn num_bytes(&self) -> usize {
        match self {
            Member::Bytes(bytes) => bytes.len(),
            Member::Made(medium) => medium.num_bytes_held(),
        }
    }
}

/// Which images come with the rows of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// None: rows say where they are.
    Nothing,
    /// Members of an archive, which fields name.
    Members,
    /// Each row is a part of a file, which is such a medium.
    Part(MediaKind),
}

/// An input that is open, and how it is read.
pub enum Opened {
    /// From its first byte to its last.
    Stream(Box<dyn Read + Send>),
    /// The same, and its bytes are there without waiting.
    File(File),
    /// At any place.
    Parquet(File),
    /// Files that are rows themselves, or whose parts are.
    Pictures(Arc<Pictures>),
}

impl Opened {
    /// A file: Parquet is known by its first and last bytes, whatever its name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(file: File) -> io::Result<Self> {
        Ok(match is_parquet(&file)? {
            true => Opened::Parquet(file),
            false if file.metadata()?.is_file() => Opened::File(file),
            false => Opened::Stream(Box::new(file)),
        })
    }

    /// An object: rows come while it is read. A Parquet file is copied first: all of its columns
    /// are read, in pages here and there, so asking for each of them would bring no less.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_object(object: &Object) -> Result<Self, StoreError> {
        let (mut reader, mut head) = (object.read()?, Vec::new());
        let read = (&mut reader).take(MAGIC_LEN as u64).read_to_end(&mut head);
        read.map_err(|error| StoreError::disk("read what came", &error))?;
        if may_be_parquet(&head) {
            let copy = object.copy()?;
            let file = is_parquet(&copy).and_then(|is| is.then(|| copy.try_clone()).transpose());
            let file = file.map_err(|error| StoreError::disk("read a temporary file", &error))?;
            if let Some(file) = file {
                return Ok(Opened::Parquet(file));
            }
        }
        Ok(Opened::Stream(Box::new(Cursor::new(head).chain(reader))))
    }

    /// Opens a name: a file, or an object of the process environment's store.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn named(path: &Path) -> io::Result<Self> {
        match ObjectName::of(path)? {
            None => Self::of_file(File::open(path)?),
            Some(name) => {
                let store = Arc::new(Store::from_env()?);
                Ok(Self::of_object(&Object::new(store, name))?)
            }
        }
    }
}

/// One row as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Physical line where it starts, or row of a Parquet file, from 1.
    pub line: u64,
    /// Text of the row. If `error` is set: the part that could be saved, for the user to find it.
    pub content: Content,
    /// Set if it cannot be a row: not UTF-8, too long, wrong number of cells.
    pub error: Option<RowError>,
}

impl Record {
    /// Bytes in memory.
    pub fn num_bytes(&self) -> usize {
        match &self.content {
            Content::Line(line) => line.len(),
            Content::Cells(cells) => {
                cells.iter().map(|cell| cell.len() + size_of::<String>()).sum()
            }
            Content::Sample(sample) => {
                let images: usize = sample.members.iter().map(|(_, m)| m.num_bytes()).sum();
                sample.text.len() + images
            }
        }
    }

    /// Takes the images out of it that came with it.
    pub fn take_members(&mut self) -> Members {
        match &mut self.content {
            Content::Sample(sample) => std::mem::take(&mut sample.members),
            Content::Line(_) | Content::Cells(_) => Members::new(),
        }
    }
}

/// The rows of an input. Iterate; blank lines are skipped and counted.
pub struct Records {
    format: InputFormat,
    body: Body,
    crlf: bool,
    is_marked: bool,
    blank_lines: u64,
    /// Read and given back.
    given_back: VecDeque<Record>,
    /// Findings about the input that a user may want to know.
    notes: Vec<String>,
}

/// Where records come from.
enum Body {
    Lines(Lines),
    Csv(CsvRecords, Lines),
    Parquet(Box<ParquetRows>),
    Pictures(PictureRows),
    Parts(PartRows),
    Tar(Box<TarRows>),
}

impl Records {
    /// The records of an input that is open, as `open` reads it; of Parquet, the rows.
    ///
    /// # Errors
    /// As `open`; or the footer of a Parquet file says what cannot be read.
    pub fn of<'a>(
        input: Opened,
        reading: impl Into<Reading<'a>>,
        max_line: usize,
    ) -> Result<Self, InputError> {
        let reading = reading.into();
        match input {
            Opened::Stream(input) => Self::open(input, reading, max_line),
            Opened::File(file) => {
                let sizes = (max_line, opening::FIRST_PART);
                opening::records(Box::new(file), &reading, sizes)
            }
            Opened::Pictures(files) => {
                let (body, note) = match files.kind() {
                    Some(kind) => {
                        let (rows, note) = PartRows::new(files, kind);
                        (Body::Parts(rows), note)
                    }
                    None => {
                        let (rows, note) = PictureRows::new(files);
                        (Body::Pictures(rows), note)
                    }
                };
                let notes = note.into_iter().collect();
                Ok(Self { notes, ..Self::new(InputFormat::Jsonl, body) })
            }
            Opened::Parquet(file) => {
                let rows = Box::new(ParquetRows::new(ParquetFile::open(file)?));
                let is_named = reading.layout.encoding != TextEncoding::Auto;
                let flag = is_named.then_some("--encoding").or(reading.layout.flag_of_tables());
                let note = flag.map(|flag| format!("{flag}: Parquet has no use for it"));
                let notes = note.into_iter().collect();
                Ok(Self { notes, ..Self::new(InputFormat::Parquet, Body::Parquet(rows)) })
            }
        }
    }

    fn new(format: InputFormat, body: Body) -> Self {
        let (given_back, notes) = (VecDeque::new(), Vec::new());
        let (crlf, is_marked, blank_lines) = (false, false, 0);
        Self { format, body, crlf, is_marked, blank_lines, given_back, notes }
    }

    /// Looks at the first line: decompresses, finds the encoding and the format, skips a mark,
    /// reads a CSV header.
    ///
    /// # Errors
    /// The input cannot be read or decompressed, or is not text, or in another encoding.
    pub fn open<'a>(
        input: Box<dyn Read + Send>,
        reading: impl Into<Reading<'a>>,
        max_line: usize,
    ) -> Result<Self, InputError> {
        opening::records(input, &reading.into(), (max_line, 0))
    }

    /// Findings about the input that a user may want to know, once.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The resolved format, never `Auto`.
    pub fn format(&self) -> InputFormat {
        self.format
    }

    /// Which images come with them.
    pub fn brought(&self) -> Brought {
        match &self.body {
            Body::Tar(_) => Brought::Members,
            Body::Parts(parts) => Brought::Part(parts.medium()),
            Body::Lines(_) | Body::Csv(..) | Body::Parquet(_) | Body::Pictures(_) => {
                Brought::Nothing
            }
        }
    }

    /// Column names of a CSV.
    pub fn headers(&self) -> Option<Arc<[String]>> {
        match &self.body {
            Body::Csv(csv, _) => Some(Arc::clone(&csv.names)),
            _ => None,
        }
    }

    /// Separator of the cells of a table.
    pub fn delimiter(&self) -> Option<u8> {
        match &self.body {
            Body::Csv(csv, _) => Some(csv.delimiter),
            _ => None,
        }
    }

    /// Whether a CSV's header line ends with CRLF: then its output does too.
    pub fn crlf(&self) -> bool {
        self.crlf
    }

    /// Whether the output of a CSV begins with the mark of UTF-8: the CSV does, or it is in another
    /// encoding. Without it spreadsheets take the output for text of another encoding, too.
    pub fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// The number of the line that would come next, which no record so far has gone beyond.
    pub fn last_line(&self) -> u64 {
        match &self.body {
            Body::Lines(lines) | Body::Csv(_, lines) => lines.number,
            Body::Parquet(rows) => rows.next_number(),
            Body::Pictures(rows) => rows.next_number(),
            Body::Parts(rows) => rows.next_number(),
            Body::Tar(rows) => rows.next_number(),
        }
    }

    /// Blank lines skipped so far.
    pub fn blank_lines(&self) -> u64 {
        self.blank_lines
    }

    /// Takes records back that were read ahead: they come again, in their order.
    pub fn give_back(&mut self, records: VecDeque<Record>) {
        records.into_iter().rev().for_each(|record| self.given_back.push_front(record));
    }

    fn next_record(&mut self) -> io::Result<Option<Record>> {
        if let Some(record) = self.given_back.pop_front() {
            return Ok(Some(record));
        }
        match &mut self.body {
            Body::Parquet(rows) => rows.next_row(),
            Body::Pictures(rows) => Ok(rows.next_row()),
            Body::Parts(rows) => rows.next_row(),
            Body::Tar(rows) => rows.next_row(),
            Body::Csv(csv, lines) => csv.next_record(lines, &mut self.blank_lines),
            Body::Lines(lines) => loop {
                match lines.next_line()? {
                    Some(Record { content: Content::Line(line), error: None, .. })
                        if line.bytes().all(|b| b.is_ascii_whitespace()) =>
                    {
                        self.blank_lines += 1;
                    }
                    record => return Ok(record),
                }
            },
        }
    }
}

impl Iterator for Records {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_record().transpose()
    }
}

/// Text of bytes: lossy, with an error, where they are not UTF-8. Then at most `kept` bytes after
/// the first bad one count. `encoding`: of the bytes that they were decoded from.
fn decode(
    bytes: Vec<u8>,
    (line, encoding): (u64, &str),
    kept: usize,
) -> (String, Option<RowError>) {
    String::from_utf8(bytes).map_or_else(
        |error| {
            let offset = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(offset.saturating_add(kept));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // From 1, as columns are.
            let (byte, place) = (bytes[offset], offset + 1);
            let (message, help) = match encoding {
                "UTF-8" => (
                    format!("byte {byte:#04x} at offset {place} is not UTF-8; see --encoding"),
                    "name the file's encoding, as in --encoding windows-1252, or remove the byte",
                ),
                _ => (
                    format!(
                        "character {} is not {encoding}; see --encoding",
                        text[..offset].chars().count() + 1
                    ),
                    "name the encoding of the file with --encoding, or remove the character",
                ),
            };
            // Up to the offset the lossy text has the same bytes.
            let error = RowError::new(code::BAD_UTF8, line, message).at(&text, offset);
            (text, Some(error.with_help(help)))
        },
        |text| (text, None),
    )
}

/// The error of a line or record over the limit, and what is shown of it.
fn too_long(what: &str, line: u64, head: &[u8], length: u64, limit: usize) -> (String, RowError) {
    let message = format!("the {what} has {length} bytes, the limit is {limit}");
    let error = RowError::new(code::LINE_TOO_LONG, line, message);
    let shown = String::from_utf8_lossy(&head[..head.len().min(SHOWN_OF_LONG)]).into_owned();
    let help = format!("split the row; a line may have at most {} MiB", MAX_LINE >> 20);
    (shown + "...", error.with_help(help))
}

impl CliError {
    /// An input that cannot be used.
    pub fn from_input(error: InputError, file: &str) -> Self {
        match error {
            InputError::Refused { message, help } => {
                Self::new(Exit::Refused, "input", format!("{file}: {message}")).help(help)
            }
            InputError::Io(error) => match error.downcast::<StoreError>() {
                Ok(error) => Self::from_store(error),
                Err(error) => {
                    Self::new(Exit::Refused, "input", format!("cannot read {file}: {error}"))
                }
            },
        }
    }
}
