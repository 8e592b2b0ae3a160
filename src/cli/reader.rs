//! `Records`: the lines or CSV records of an input, each with its physical line number, in bounded memory.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use super::row_error::RowError;

/// Longest line or CSV record accepted by default (`--max-line`).
pub const DEFAULT_MAX_LINE: usize = 64 << 20;

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
}

impl InputFormat {
    /// What a file's extension says; `Auto` if nothing.
    pub fn from_path(path: &Path) -> Self {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        match extension.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" | "json" => InputFormat::Jsonl,
            "csv" => InputFormat::Csv,
            "tsv" | "tab" => InputFormat::Tsv,
            "txt" | "text" => InputFormat::Txt,
            _ => InputFormat::Auto,
        }
    }
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

/// What was read of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A line without its end.
    Line(String),
    /// The cells of a CSV record, as many as the header has.
    Cells(Vec<String>),
}

/// One row as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Physical line where it starts, from 1.
    pub line: u64,
    /// Its text. If `error` is set: what could be saved of it, for the user to find it again.
    pub content: Content,
    /// Set if it cannot be a row: not UTF-8, too long, wrong number of cells.
    pub error: Option<RowError>,
}

/// The rows of an input. Iterate; blank lines are skipped and counted.
pub struct Records {}

impl Records {
    /// Looks at the first bytes: resolves the format, skips a UTF-8 BOM, reads a CSV header.
    /// `format` is the flag, or [`InputFormat::from_path`].
    ///
    /// # Errors
    /// The input cannot be read, or is compressed, UTF-16, or otherwise not text.
    pub fn open(
        input: Box<dyn Read + Send>,
        format: InputFormat,
        max_line: usize,
    ) -> Result<Self, InputError> {
        let _ = (input, format, max_line);
        unimplemented!()
    }

    /// The resolved format, never `Auto`.
    pub fn format(&self) -> InputFormat {
        unimplemented!()
    }

    /// Column names of a CSV.
    pub fn headers(&self) -> Option<Arc<[String]>> {
        unimplemented!()
    }

    /// Whether the first line ended with CRLF.
    pub fn crlf(&self) -> bool {
        unimplemented!()
    }

    /// Blank lines skipped so far.
    pub fn blank_lines(&self) -> u64 {
        unimplemented!()
    }
}

impl Iterator for Records {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        unimplemented!()
    }
}
