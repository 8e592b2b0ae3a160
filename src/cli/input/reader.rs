//! `Records`: the lines or CSV records of an input, or the rows of a Parquet file, each with its
//! number, in bounded memory.

mod csv;
mod decompress;
mod foreign;
mod lines;
mod sniff;
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
pub use self::foreign::{foreign_kind, refuse_name};
use self::lines::Lines;
pub(in crate::cli) use self::sniff::is_mark;
use super::compress::Compression;
use super::parquet::{MAGIC_LEN, ParquetFile, ParquetRows, is_parquet, may_be_parquet};
use super::row_error::{RowError, code};
use crate::cli::object_store::{Object, ObjectName, Store, StoreError};
use crate::cli::terminal::error::CliError;
use crate::cli::terminal::exit::Exit;

/// Longest line or CSV record accepted.
pub const MAX_LINE: usize = 64 << 20;

/// Bytes shown of a line that is too long.
const SHOWN_OF_LONG: usize = 256;

/// How the input is divided into rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputFormat {
    /// By the file's extension, else by its first byte.
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
    /// What a file's extension says, the one before `.gz` or `.zst`; `Auto` if nothing.
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

    /// What separates the cells of a record, if records have cells.
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
        /// What is wrong.
        message: String,
        /// What to do about it.
        help: String,
    },
    /// It cannot be read.
    Io(io::Error),
}

impl InputError {
    /// What is wrong, and what to do about it.
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

/// What was read of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A line without its end.
    Line(String),
    /// The cells of a CSV record, as many as the header has.
    Cells(Vec<String>),
}

/// An input that is open, and how it is read.
pub enum Opened {
    /// From its first byte to its last.
    Stream(Box<dyn Read + Send>),
    /// At any place.
    Parquet(File),
}

impl Opened {
    /// A file: Parquet is known by its first and last bytes, whatever its name.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(file: File) -> io::Result<Self> {
        Ok(match is_parquet(&file)? {
            true => Opened::Parquet(file),
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

    /// What a name stands for: a file, or an object of the process environment's store.
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
    /// Its text. If `error` is set: what could be saved of it, for the user to find it again.
    pub content: Content,
    /// Set if it cannot be a row: not UTF-8, too long, wrong number of cells.
    pub error: Option<RowError>,
}

impl Record {
    /// What it takes in memory.
    pub fn num_bytes(&self) -> usize {
        match &self.content {
            Content::Line(line) => line.len(),
            Content::Cells(cells) => {
                cells.iter().map(|cell| cell.len() + size_of::<String>()).sum()
            }
        }
    }
}

/// The rows of an input. Iterate; blank lines are skipped and counted.
pub struct Records {
    format: InputFormat,
    body: Body,
    crlf: bool,
    blank_lines: u64,
    /// Read and given back.
    given_back: VecDeque<Record>,
}

/// Where records come from.
enum Body {
    Lines(Lines),
    Csv(CsvRecords, Lines),
    Parquet(Box<ParquetRows>),
}

impl Records {
    /// The records of an input that is open, as `open` reads it; of Parquet, the rows.
    ///
    /// # Errors
    /// As `open`; or the footer of a Parquet file says what cannot be read.
    pub fn of(input: Opened, format: InputFormat, max_line: usize) -> Result<Self, InputError> {
        match input {
            Opened::Stream(input) => Self::open(input, format, max_line),
            Opened::Parquet(file) => {
                let rows = Box::new(ParquetRows::new(ParquetFile::open(file)?));
                Ok(Self::new(InputFormat::Parquet, Body::Parquet(rows)))
            }
        }
    }

    fn new(format: InputFormat, body: Body) -> Self {
        Self { format, body, crlf: false, blank_lines: 0, given_back: VecDeque::new() }
    }

    /// Looks at the first bytes: decompresses, resolves the format, skips a UTF-8 BOM, reads a CSV
    /// header. `format` is the flag, or [`InputFormat::from_path`].
    ///
    /// # Errors
    /// The input cannot be read or decompressed, or is UTF-16, or otherwise not text.
    pub fn open(
        mut input: Box<dyn Read + Send>,
        format: InputFormat,
        max_line: usize,
    ) -> Result<Self, InputError> {
        let mut head = sniff::peek(&mut *input)?;
        let codec = Codec::of(&head);
        if let Some(codec) = codec {
            input = Box::new(Decoder::new(codec, Box::new(Cursor::new(head).chain(input)))?);
            head = sniff::peek(&mut *input).map_err(decompress::refusal)?;
        }
        sniff::refuse_unsupported(&head, codec)?;
        foreign::refuse_binary(&head, format)?;
        if format == InputFormat::Parquet {
            let message = "the input is no Parquet file: it does not begin and end with PAR1";
            return Err(InputError::refused(message, "leave --format out, or rename the file"));
        }
        if head.starts_with(sniff::UTF8_BOM) {
            head.drain(..sniff::UTF8_BOM.len());
        }
        let format = match format {
            InputFormat::Auto => sniff::format(&head),
            given => given,
        };
        let mut lines = Lines::new(Box::new(Cursor::new(head).chain(input)), max_line);
        let Some(delimiter) = format.delimiter() else {
            return Ok(Self::new(format, Body::Lines(lines)));
        };
        let records = CsvRecords::open(&mut lines, delimiter)?;
        let (crlf, blank_lines) = (records.crlf, records.blank_before_header);
        Ok(Self { crlf, blank_lines, ..Self::new(format, Body::Csv(records, lines)) })
    }

    /// The resolved format, never `Auto`.
    pub fn format(&self) -> InputFormat {
        self.format
    }

    /// Column names of a CSV.
    pub fn headers(&self) -> Option<Arc<[String]>> {
        match &self.body {
            Body::Csv(csv, _) => Some(Arc::clone(&csv.names)),
            Body::Lines(_) | Body::Parquet(_) => None,
        }
    }

    /// Whether a CSV's header line ends with CRLF: then its output does too.
    pub fn crlf(&self) -> bool {
        self.crlf
    }

    /// The number of the line that would come next, which no record so far has gone beyond.
    pub fn last_line(&self) -> u64 {
        match &self.body {
            Body::Lines(lines) | Body::Csv(_, lines) => lines.number,
            Body::Parquet(rows) => rows.next_number(),
        }
    }

    /// Blank lines skipped so far.
    pub fn blank_lines(&self) -> u64 {
        self.blank_lines
    }

    /// Takes records back that were read ahead: they come again, in their order.
    pub fn give_back(&mut self, records: VecDeque<Record>) {
        assert!(self.given_back.is_empty(), "records are read ahead once");
        self.given_back = records;
    }

    fn next_record(&mut self) -> io::Result<Option<Record>> {
        if let Some(record) = self.given_back.pop_front() {
            return Ok(Some(record));
        }
        match &mut self.body {
            Body::Parquet(rows) => rows.next_row(),
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
/// the first bad one count.
fn decode(bytes: Vec<u8>, line: u64, kept: usize) -> (String, Option<RowError>) {
    String::from_utf8(bytes).map_or_else(
        |error| {
            let offset = error.utf8_error().valid_up_to();
            let mut bytes = error.into_bytes();
            bytes.truncate(offset.saturating_add(kept));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            // From 1, as columns are.
            let (byte, place) = (bytes[offset], offset + 1);
            let message = format!("byte {byte:#04x} at offset {place} is not UTF-8");
            // Up to the offset the lossy text has the same bytes.
            let error = RowError::new(code::BAD_UTF8, line, message).at(&text, offset);
            (text, Some(error.with_help("convert the file with iconv, or remove the byte")))
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
