//! `Output`: rows in order, on their way to a stream or to a file that has its name only when it is
//! complete.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::claim::Claim;
use super::error::LedgerError;
use super::storage::{StoredFile, hash_of, write_all_at};
use super::table::write_table;
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::output::npy;
use vllm_batch_dataset::output::parquet::Table;

/// Rows are handed to the system when there are this many bytes of them.
const BUFFER: usize = 64 << 10;

/// Rows that are compressed together: a member ends with the first row that fills it, so its bytes
/// do not depend on when rows come.
const MEMBER: usize = 1 << 20;

/// What is known of an output that is written to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Rows in it, a header not counted.
    pub num_rows: u64,
    /// Its length.
    pub bytes: u64,
    /// blake3 of its bytes, as 64 hexadecimal digits.
    pub blake3: String,
}

/// Where rows go.
enum Target {
    /// Standard output, or a device or pipe that is not a regular file.
    Stream(Box<dyn Write + Send>),
    /// `FILE.part`, renamed to `FILE` when it is complete.
    File(PartFile),
}

/// A file under the name of its part. What an earlier run left in it stays until the first row.
struct PartFile {
    claim: Claim,
    is_emptied: bool,
}

impl PartFile {
    /// The file, empty when it is first asked for.
    fn open(&mut self) -> Result<&mut dyn StoredFile, LedgerError> {
        if !self.is_emptied {
            self.claim.file().set_length(0).map_err(|error| self.failed("write", error))?;
            self.is_emptied = true;
        }
        Ok(self.claim.file())
    }

    fn failed(&self, verb: &str, error: io::Error) -> LedgerError {
        LedgerError::of(format!("{verb} {}", self.claim.part().display()), error)
    }
}

/// Rows in order: whole lines, a prefix of the final output at any time.
pub struct Output {
    target: Target,
    compression: Compression,
    /// Values of a row, where the rows are a matrix.
    matrix: Option<usize>,
    /// Of rows that become a Parquet file.
    table: Option<Table>,
    /// Emitted, not yet written: plain text, less than a member of it where it is compressed.
    buffer: Vec<u8>,
    num_rows: u64,
    /// Bytes of the next row that are out already.
    num_begun: usize,
    /// Handed to the system.
    bytes: u64,
    hasher: blake3::Hasher,
}

impl Output {
    /// Rows to a stream, as they are.
    pub fn to_stream(stream: Box<dyn Write + Send>) -> Self {
        Self::new(Target::Stream(stream), Compression::None)
    }

    /// Rows to a file, compressed as its name says.
    pub fn to_file(claim: Claim) -> Self {
        let compression = Compression::from_path(claim.path());
        Self::new(Target::File(PartFile { claim, is_emptied: false }), compression)
    }

    fn new(target: Target, compression: Compression) -> Self {
        let (buffer, hasher) = (Vec::new(), blake3::Hasher::new());
        let (matrix, table) = (None, None);
        Self {
            target,
            compression,
            matrix,
            table,
            buffer,
            num_rows: 0,
            num_begun: 0,
            bytes: 0,
            hasher,
        }
    }

    /// Takes bytes that belong to no row (a CSV header), before the first row. A file gets them
    /// with it, a stream at the next flush.
    pub fn write_header(&mut self, bytes: &[u8]) {
        assert_eq!(self.num_rows, 0, "a header comes before the first row");
        self.buffer.extend_from_slice(bytes);
    }

    /// Makes a matrix of the rows to come. Its header says how many there are, so it is written
    /// last: until then nobody takes the part for a matrix.
    ///
    /// # Panics
    /// It is no file.
    pub fn begin_matrix(&mut self, width: usize) {
        assert!(self.part().is_some(), "a matrix is a file");
        self.write_header(&[0; npy::HEADER_BYTES]);
        self.matrix = Some(width);
    }

    /// Makes a Parquet file of the rows to come, when all are there: until then the part has them
    /// as JSON lines.
    ///
    /// # Panics
    /// It is no file.
    pub fn begin_table(&mut self, table: Table) {
        assert!(self.part().is_some(), "a table is a file");
        self.table = Some(table);
    }

    /// Takes a row that is elsewhere. A matrix has a row for it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn emit_hole(&mut self) -> Result<(), LedgerError> {
        self.matrix.map_or(Ok(()), |width| self.emit(&npy::hole(width)))
    }

    /// Takes the next row, newline included. Where it was begun, it begins so.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn emit(&mut self, row: &[u8]) -> Result<(), LedgerError> {
        if let Some(table) = &mut self.table {
            table.look_at(row);
        }
        let num_begun = std::mem::take(&mut self.num_begun);
        self.add_piece(&row[num_begun..]);
        self.end_row()
    }

    /// Hands a piece of the next row to the system, which is not finished yet.
    ///
    /// # Errors
    /// It cannot be written.
    ///
    /// # Panics
    /// It is a file: those have whole rows.
    pub fn begin_row(&mut self, piece: &[u8]) -> Result<(), LedgerError> {
        assert!(self.part().is_none(), "files have whole rows");
        self.num_begun += piece.len();
        self.add_piece(piece);
        self.flush()
    }

    /// Takes a piece of the next row.
    pub fn add_piece(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The row whose pieces came is whole.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end_row(&mut self) -> Result<(), LedgerError> {
        self.num_rows += 1;
        let limit = if self.compression == Compression::None { BUFFER } else { MEMBER };
        if self.buffer.len() >= limit { self.write_buffer() } else { Ok(()) }
    }

    /// How it is compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Hands everything emitted to the system: call it when no further row is immediately ready, so
    /// that a reader of a pipe sees what is done. Rows of a member that is not full wait.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        // A file begins with its first row; the reader of a stream sees the header at once.
        let has_begun = self.num_rows > 0 || matches!(self.target, Target::Stream(_));
        if has_begun && self.compression == Compression::None {
            self.write_buffer()?;
        }
        match &mut self.target {
            Target::Stream(stream) => {
                stream.flush().map_err(|error| LedgerError::of("write the output", error))
            }
            Target::File(_) => Ok(()),
        }
    }

    /// Writes all, and makes it durable where it is a file.
    ///
    /// # Errors
    /// It cannot be written or synced.
    pub fn complete(&mut self) -> Result<Facts, LedgerError> {
        if self.bytes == 0 || !self.buffer.is_empty() {
            // Even without rows: a file of no member at all is no compressed file.
            self.write_buffer()?;
        }
        self.flush()?;
        let mut blake3 = self.hasher.finalize().to_hex().to_string();
        if let Target::File(part) = &mut self.target {
            if let Some(width) = self.matrix {
                let (file, header) = (part.open()?, npy::header(self.num_rows, width));
                let hash = write_all_at(file, &header, 0).and_then(|()| hash_of(file));
                blake3 = hash.map_err(|error| part.failed("write", error))?;
            }
            if let Some(table) = &self.table {
                let file = part.open()?;
                let written = write_table(file, table, self.bytes);
                let written = written.and_then(|length| Ok((length, hash_of(&*file)?)));
                (self.bytes, blake3) = written.map_err(|error| part.failed("write", error))?;
            }
            part.open()?.sync().map_err(|error| part.failed("sync", error))?;
            // Its name too: one of two outputs must not be published while the other can vanish.
            part.claim.sync_part_name()?;
        }
        Ok(Facts { num_rows: self.num_rows, bytes: self.bytes, blake3 })
    }

    /// The file that holds the rows of an unfinished run.
    pub fn part(&self) -> Option<&Path> {
        match &self.target {
            Target::Stream(_) => None,
            Target::File(part) => Some(part.claim.part()),
        }
    }

    /// Whether something was handed to the system.
    pub fn has_begun(&self) -> bool {
        self.bytes > 0
    }

    /// Gives the file its name, for good.
    ///
    /// # Errors
    /// It cannot be renamed; the part stays.
    pub fn publish(&self) -> Result<(), LedgerError> {
        match &self.target {
            Target::Stream(_) => Ok(()),
            Target::File(part) => part.claim.publish(),
        }
    }

    fn write_buffer(&mut self) -> Result<(), LedgerError> {
        let mut bytes = std::mem::take(&mut self.buffer);
        if self.compression != Compression::None {
            let mut member = Vec::new();
            self.compression.encode(&bytes, &mut member);
            bytes = member;
        }
        // After an error nobody knows how much was written; writing again could double rows.
        self.hasher.update(&bytes);
        let offset = self.bytes;
        self.bytes += bytes.len() as u64;
        match &mut self.target {
            Target::Stream(stream) => stream
                .write_all(&bytes)
                .map_err(|error| LedgerError::of("write the output", error))?,
            Target::File(_) if bytes.is_empty() => {}
            Target::File(part) => {
                write_all_at(part.open()?, &bytes, offset)
                    .map_err(|error| part.failed("write", error))?;
            }
        }
        bytes.clear();
        self.buffer = bytes;
        Ok(())
    }
}

/// The name of an unfinished file.
pub fn part_of(path: &Path) -> PathBuf {
    with_suffix(path, ".part")
}

/// A name beside a file's.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
