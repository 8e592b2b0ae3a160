//! `OrderedWriter`: rows arrive in any order and leave in input order. `Sink`: where they go.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why output cannot be written.
#[derive(Debug)]
pub enum OutputError {
    /// The file exists and `--overwrite` was not given (exit 6).
    Exists(PathBuf),
    /// It would replace the input (exit 2).
    SameAsInput(PathBuf),
    /// The reader of standard output went away (exit 141).
    BrokenPipe,
    /// No space, or over quota (exit 5).
    Full(io::Error),
    /// Anything else (exit 5 in the middle of a run, 2 at its start).
    Io {
        /// What was tried, e.g. `create out.jsonl.part`.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

/// Where rows go.
pub enum Sink {
    /// Standard output, or a device or pipe that is no regular file.
    Stream(Box<dyn Write + Send>),
    /// `FILE.part`, renamed to `FILE` by [`Sink::finish`].
    File(PartFile),
}

/// A file that does not exist under its name before it is complete.
pub struct PartFile {}

impl Sink {
    /// Standard output.
    pub fn stdout() -> Self {
        Sink::Stream(Box::new(io::stdout()))
    }

    /// A file. `input` is what is being read (`/dev/stdin` if that is standard input).
    ///
    /// # Errors
    /// It exists, is the input, or cannot be created.
    pub fn create(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<Self, OutputError> {
        let _ = (path, input, overwrite);
        unimplemented!()
    }

    /// Makes the output durable and gives it its name.
    ///
    /// # Errors
    /// It cannot be flushed, synced or renamed; `FILE.part` stays.
    pub fn finish(self) -> Result<(), OutputError> {
        unimplemented!()
    }
}

impl Write for Sink {
    fn write(&mut self, _buf: &[u8]) -> io::Result<usize> {
        unimplemented!()
    }

    fn flush(&mut self) -> io::Result<()> {
        unimplemented!()
    }
}

/// Emits rows in order, in whole lines.
pub struct OrderedWriter<W: Write> {
    sink: W,
    next: u64,
    pending: BTreeMap<u64, Vec<u8>>,
}

impl<W: Write> OrderedWriter<W> {
    /// Starts at row 0.
    pub fn new(sink: W) -> Self {
        Self { sink, next: 0, pending: BTreeMap::new() }
    }

    /// Writes bytes that belong to no row (a CSV header), before the first row.
    ///
    /// # Errors
    /// The sink's.
    pub fn write_header(&mut self, _bytes: &[u8]) -> Result<(), OutputError> {
        unimplemented!()
    }

    /// Takes a row, newline included; emits it and those that waited for it, when its turn has come.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, _index: u64, _row: Vec<u8>) -> Result<(), OutputError> {
        unimplemented!()
    }

    /// Hands everything emitted to the system: call it when no further row is immediately ready.
    ///
    /// # Errors
    /// The sink's.
    pub fn flush(&mut self) -> Result<(), OutputError> {
        unimplemented!()
    }

    /// Rows waiting for an earlier one.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Rows emitted.
    pub fn emitted(&self) -> u64 {
        self.next
    }

    /// Flushes and gives the sink back, for [`Sink::finish`].
    ///
    /// # Errors
    /// The sink's.
    pub fn into_inner(self) -> Result<W, OutputError> {
        let _ = self.sink;
        unimplemented!()
    }
}
