//! `ShardReader`: the records of one shard as bytes, passed on in pieces. The file is hashed as it
//! is read, before it is decompressed: what is verified is what is merged.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::shard_set::ShardFile;
use vllm_batch_dataset::input::reader::{Decoder, MAX_LINE};
use vllm_batch_dataset::output::{FileFormat, csv_record_end, npy};
use vllm_batch_dataset::terminal::error::CliError;

/// Read at once. There are as many buffers as shards.
const BUFFER: usize = 64 << 10;

/// One shard, from its first record to its last.
pub struct ShardReader<'a> {
    file: &'a ShardFile,
    /// Its records.
    input: BufReader<Box<dyn Read + Send>>,
    /// What they come from.
    raw: RawFile,
    ends: Ends,
    rows: u64,
}

/// Where records end.
#[derive(Clone, Copy)]
enum Ends {
    /// At a line end.
    Line,
    /// At one outside of quotes.
    CsvRecord,
    /// After so many bytes.
    Length(usize),
}

/// The bytes on the disk. A decoder keeps what it reads from, so this is shared with it.
#[derive(Clone)]
struct RawFile(Arc<Mutex<Hashed<File>>>);

/// A reader that hashes what passes through it.
struct Hashed<R> {
    inner: R,
    hasher: Option<blake3::Hasher>,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}

impl RawFile {
    fn lock(&self) -> MutexGuard<'_, Hashed<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hash of the whole file, where it is wanted. A decoder may leave bytes behind what it needs.
    fn finish(&self) -> io::Result<Option<blake3::Hash>> {
        let mut file = self.lock();
        if file.hasher.is_some() {
            io::copy(&mut *file, &mut io::sink())?;
        }
        Ok(file.hasher.as_ref().map(blake3::Hasher::finalize))
    }
}

impl Read for RawFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.lock().read(buffer)
    }
}

/// How the copying of a record ended.
#[derive(Debug, PartialEq, Eq)]
enum Copied {
    /// With the record's line end.
    Record,
    /// Before its first byte: there is none.
    Nothing,
    /// In the middle of it.
    Cut,
}

impl<'a> ShardReader<'a> {
    /// Opens a shard. `verify`: hash its bytes.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(file: &'a ShardFile, verify: bool) -> Result<Self, CliError> {
        let failed = |error| unreadable(file, &error);
        let inner = File::open(&file.path).map_err(failed)?;
        let hasher = verify.then(blake3::Hasher::new);
        let raw = RawFile(Arc::new(Mutex::new(Hashed { inner, hasher })));
        let input = Box::new(raw.clone());
        let input: Box<dyn Read + Send> = match file.codec {
            None => input,
            Some(codec) => Box::new(Decoder::new(codec, input).map_err(failed)?),
        };
        let input = BufReader::with_capacity(BUFFER, input);
        let ends = match file.meta.format {
            FileFormat::Jsonl => Ends::Line,
            FileFormat::Csv | FileFormat::Tsv => Ends::CsvRecord,
            FileFormat::Npy => Ends::Length(npy::HEADER_BYTES),
            FileFormat::Parquet => unreachable!("`table` reads them"),
        };
        Ok(Self { file, input, raw, ends, rows: 0 })
    }

    /// The shard.
    pub fn file(&self) -> &'a ShardFile {
        self.file
    }

    /// The header of a CSV with its line end. Empty if the file is: a CSV without rows has none.
    ///
    /// # Errors
    /// It cannot be read, is endless or cut.
    pub fn read_header(&mut self) -> Result<Vec<u8>, CliError> {
        let (file, mut header) = (self.file, Vec::new());
        let copied = self.copy(&mut |bytes| {
            header.extend_from_slice(bytes);
            match header.len() > MAX_LINE {
                true => Err(file.changed("has a CSV header without end")),
                false => Ok(()),
            }
        })?;
        match copied {
            Copied::Cut => Err(file.changed("ends in its CSV header")),
            Copied::Record | Copied::Nothing => Ok(header),
        }
    }

    /// The width of a matrix, from its header.
    ///
    /// # Errors
    /// It cannot be read, or is not what the run left.
    pub fn read_matrix_header(&mut self) -> Result<usize, CliError> {
        let mut header = Vec::new();
        self.copy(&mut |bytes| {
            header.extend_from_slice(bytes);
            Ok(())
        })?;
        let shape = header.as_slice().try_into().ok().and_then(npy::shape);
        match shape {
            Some((rows, width)) if rows == self.file.meta.output.rows && width > 0 => {
                self.ends = Ends::Length(width.saturating_mul(size_of::<f32>()));
                Ok(width)
            }
            _ => Err(self.file.changed("does not begin with the header of its matrix")),
        }
    }

    /// Passes the next record on, line end included.
    ///
    /// # Errors
    /// There is none, it is cut, cannot be read or not be taken.
    pub fn copy_record(
        &mut self,
        take: &mut dyn FnMut(&[u8]) -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        match self.copy(take)? {
            Copied::Record => {
                self.rows += 1;
                Ok(())
            }
            Copied::Nothing => {
                let (found, wanted) = (self.rows, self.file.meta.output.rows);
                Err(self.file.changed(&format!("has {found} rows, its run left {wanted}")))
            }
            Copied::Cut => Err(self.file.changed(match self.ends {
                Ends::Length(_) => "does not end with a whole row",
                Ends::Line | Ends::CsvRecord => "does not end with a line end",
            })),
        }
    }

    /// Compares the shard with what its run left, after its last record.
    ///
    /// # Errors
    /// There is more in it, or its bytes are others.
    pub fn finish(mut self) -> Result<(), CliError> {
        if self.copy(&mut |_| Ok(()))? != Copied::Nothing {
            let wanted = self.file.meta.output.rows;
            return Err(self.file.changed(&format!("has more than the {wanted} rows of its run")));
        }
        let hash = self.raw.finish().map_err(|error| unreadable(self.file, &error))?;
        hash.map_or(Ok(()), |hash| self.file.check_hash(&hash.to_hex()))
    }

    fn copy(
        &mut self,
        take: &mut dyn FnMut(&[u8]) -> Result<(), CliError>,
    ) -> Result<Copied, CliError> {
        let (mut in_quotes, mut copied, mut taken) = (false, Copied::Nothing, 0);
        loop {
            let buffer = match self.input.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(unreadable(self.file, &error)),
                Ok([]) => return Ok(copied),
                Ok(buffer) => buffer,
            };
            let end = match self.ends {
                Ends::CsvRecord => csv_record_end(buffer, &mut in_quotes),
                Ends::Line => buffer.iter().position(|byte| *byte == b'\n').map(|at| at + 1),
                Ends::Length(length) => Some(length - taken).filter(|left| *left <= buffer.len()),
            };
            let count = end.unwrap_or(buffer.len());
            take(&buffer[..count])?;
            self.input.consume(count);
            taken += count;
            if end.is_some() {
                return Ok(Copied::Record);
            }
            copied = Copied::Cut;
        }
    }
}

/// The error of a file that cannot be read, or not be decoded.
pub(super) fn unreadable(file: &ShardFile, error: &io::Error) -> CliError {
    let is_of_decoder = file.codec.is_some() && error.raw_os_error().is_none();
    match error.kind() {
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof | ErrorKind::Unsupported
            if is_of_decoder =>
        {
            file.changed(&format!("cannot be decoded ({error})"))
        }
        _ => CliError::refused("input", format!("cannot read {}: {error}", file.name())),
    }
}
