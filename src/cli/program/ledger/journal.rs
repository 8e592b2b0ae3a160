//! `Journal`: the file of finished rows in the order in which they finish. Append-only, one writer.
//! Its bytes are in `record`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::{Claim, open_locked_in_time};
use super::error::{LedgerError, unreadable};
use super::record::{Header, Kind, RECORD_LEN, Record, RecordHead};
use super::scan::{Scanned, Scanner};
use super::storage::{Access, Storage, StoredFile, read_at_most, write_all_at};

/// Records are handed to the system when there are this many bytes of them.
const BUFFER: usize = 64 << 10;

/// Where a row is in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Of its first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What a journal held when it was opened.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which run.
    pub header: Header,
    /// The side file's text, where all rows were in the output.
    pub end: Option<String>,
    /// Whole records of rows.
    pub num_rows: u64,
    /// How often it was continued.
    pub num_resumes: u64,
    /// The first byte that was damaged although it was synced.
    pub damaged_at: Option<u64>,
    /// Where records begin.
    pub start: u64,
    /// Where the last whole record ends.
    pub length: u64,
}

/// Removes a journal that holds nothing that anyone could miss.
struct RemoveEmpty {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    is_empty: bool,
}

impl Drop for RemoveEmpty {
    fn drop(&mut self) {
        if self.is_empty {
            let _ = self.storage.remove(&self.path);
        }
    }
}

/// A journal that is locked, and not yet written.
pub struct LockedJournal {
    // Before the file: its name goes while it is still locked, so it is no other run's.
    remove_empty: RemoveEmpty,
    storage: Arc<dyn Storage>,
    file: Box<dyn StoredFile>,
    path: PathBuf,
}

impl LockedJournal {
    /// Opens or creates the file, and locks it.
    ///
    /// # Errors
    /// Another run has it, or it cannot be created.
    pub fn open(storage: Arc<dyn Storage>, path: &Path) -> Result<Self, LedgerError> {
        let failed = |error| LedgerError::of(format!("create {}", path.display()), error);
        // Until it is locked: nobody else's file gets this name.
        let claim = Claim::take(&storage, path)?;
        let file = open_locked_in_time(&*storage, path)?;
        claim.release()?;
        let path = path.to_owned();
        let is_empty = file.length().map_err(failed)? == 0;
        let remove_empty =
            RemoveEmpty { storage: Arc::clone(&storage), path: path.clone(), is_empty };
        Ok(Self { remove_empty, storage, file, path })
    }

    /// Lets those read it who may read the file of another name: it holds the same rows.
    ///
    /// # Errors
    /// The system's.
    pub fn take_permissions_of(&self, path: &Path) -> Result<(), LedgerError> {
        self.file.take_permissions_of(path).map_err(|error| {
            LedgerError::of(format!("set the permissions of {}", self.path.display()), error)
        })
    }

    /// Refuses a file that no run can have written, even in part: it is not to be replaced.
    ///
    /// # Errors
    /// It is one, or cannot be read.
    pub fn refuse_foreign(&self) -> Result<(), LedgerError> {
        let is_one = || -> io::Result<bool> {
            let length = self.file.length()?;
            let mut prefix = vec![0; length.min(Header::MAX_LEN as u64) as usize];
            let count = read_at_most(&*self.file, &mut prefix, 0)?;
            // A header that did not become durable is zeros to the end.
            let is_zeros = length == count as u64 && prefix.iter().all(|byte| *byte == 0);
            Ok(is_zeros
                || Header::is_begun(&prefix)
                || Scanner::new(&*self.file, 0)?.next_record()?.is_some())
        };
        match is_one().map_err(|error| unreadable(&self.path, error))? {
            true => Ok(()),
            false => Err(LedgerError::Foreign(self.path.clone())),
        }
    }

    /// Reads all of it; None if no run got as far as its first row.
    ///
    /// # Errors
    /// It cannot be read, or is no journal.
    pub fn read(&mut self) -> Result<Option<Found>, LedgerError> {
        let failed = |error| unreadable(&self.path, error);
        let length = self.file.length().map_err(failed)?;
        let mut prefix = vec![0; length.min(Header::MAX_LEN as u64) as usize];
        let count = read_at_most(&*self.file, &mut prefix, 0).map_err(failed)?;
        prefix.truncate(count);
        let Some(header) = Header::decode(&prefix) else {
            // The header is durable before anything follows it, so a run that has rows has one.
            let mut scanner = Scanner::new(&*self.file, 0).map_err(failed)?;
            let has_rows = scanner.next_record().map_err(failed)?.is_some();
            match Header::may_be_torn(&prefix) {
                _ if has_rows => return Err(LedgerError::NoJournal(self.path.clone())),
                true => {}
                false if Header::is_begun(&prefix) => {
                    return Err(LedgerError::NoJournal(self.path.clone()));
                }
                false => return Err(LedgerError::Foreign(self.path.clone())),
            }
            self.remove_empty.is_empty = true;
            return Ok(None);
        };
        let start = Header::encoded_len(&prefix).expect("it was decoded") as u64;
        self.read_records(header, start).map(Some).map_err(failed)
    }

    fn read_records(&self, header: Header, start: u64) -> io::Result<Found> {
        let mut scanner = Scanner::new(&*self.file, start)?;
        let (mut num_rows, mut num_resumes) = (0, 0);
        let (mut last, mut synced) = (None, 0);
        while let Some(scanned) = scanner.next_record()? {
            match scanned.head.kind {
                Kind::Answer | Kind::Error => num_rows += 1,
                Kind::Resumed => num_resumes += 1,
                Kind::End | Kind::Columns | Kind::Media => {}
            }
            synced = synced.max(scanned.head.synced);
            last = Some(scanned);
        }
        let end = match last.filter(|scanned| scanned.head.kind == Kind::End) {
            Some(end) => self.text(&end)?,
            None => None,
        };
        Ok(Found {
            header,
            end,
            num_rows,
            num_resumes,
            damaged_at: scanner.damaged().first().copied().filter(|at| *at < synced),
            start,
            length: last.map_or(start, |scanned| scanned.end()),
        })
    }

    fn text(&self, end: &Scanned) -> io::Result<Option<String>> {
        let mut bytes = vec![0; end.row_len() as usize];
        read_at_most(&*self.file, &mut bytes, end.row_offset())?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// A second handle, to read what is there.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reader(&self) -> Result<Box<dyn StoredFile>, LedgerError> {
        let reader = self.storage.open(&self.path, Access::Read);
        reader.map_err(|error| unreadable(&self.path, error))
    }

    /// Reads a row that was found.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_row(&self, location: Location) -> Result<Vec<u8>, LedgerError> {
        let row = read_row(&*self.file, location);
        row.map_err(|error| unreadable(&self.path, error))
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a new journal: what was in it is gone.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(mut self, header: &Header) -> Result<Journal, LedgerError> {
        let bytes = header.encode();
        self.write_header(&bytes)
            .map_err(|error| LedgerError::of(format!("write {}", self.path.display()), error))?;
        Ok(self.into_journal(bytes.len() as u64))
    }

    fn write_header(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.remove_empty.is_empty = false;
        self.file.set_length(0)?;
        write_all_at(&mut *self.file, bytes, 0)?;
        // A record must not be durable before the header, nor the header before its name.
        self.file.sync()?;
        self.storage.sync_folder_of(&self.path)
    }

    /// Continues behind the last whole record, and notes that.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn resume(mut self, found: &Found) -> Result<Journal, LedgerError> {
        self.remove_empty.is_empty = false;
        // What a crash left must not come to stand before new records as if it were one.
        self.file
            .set_length(found.length)
            .map_err(|error| LedgerError::of(format!("write {}", self.path.display()), error))?;
        let mut journal = self.into_journal(found.length);
        journal.append(&Record::mark(Kind::Resumed, b""))?;
        Ok(journal)
    }

    fn into_journal(self, length: u64) -> Journal {
        let Self { remove_empty: _, storage, file, path } = self;
        let buffer = Vec::new();
        Journal { storage, file, path, buffer, length, synced: length, is_broken: false }
    }
}

/// A journal that is being written.
pub struct Journal {
    storage: Arc<dyn Storage>,
    file: Box<dyn StoredFile>,
    path: PathBuf,
    /// Not yet handed to the system.
    buffer: Vec<u8>,
    /// Bytes handed to the system.
    length: u64,
    /// Bytes that are durable.
    synced: u64,
    /// An operation failed: nobody knows what is there.
    is_broken: bool,
}

impl Journal {
    /// Appends a record. It is durable after the next `sync`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn append(&mut self, record: &Record<'_>) -> Result<Location, LedgerError> {
        let start = self.length + self.buffer.len() as u64;
        RecordHead::encode(record, self.synced, &mut self.buffer);
        let offset = start + (RECORD_LEN + record.code.len()) as u64;
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        Ok(Location { offset, length: record.row.len() as u64 })
    }

    /// Hands all records to the system.
    ///
    /// # Errors
    /// They cannot be written; then nobody knows how many are, and nothing more may follow.
    pub fn flush(&mut self) -> Result<(), LedgerError> {
        let written = write_all_at(&mut *self.file, &self.buffer, self.length);
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        self.is_broken |= written.is_err();
        written.map_err(|error| self.failed("write", error))
    }

    /// Makes all records durable.
    ///
    /// # Errors
    /// The system does not say so. It is not asked again: what it forgot it does not know.
    pub fn sync(&mut self) -> Result<(), LedgerError> {
        self.flush()?;
        if self.synced < self.length {
            let synced = self.file.sync();
            self.is_broken |= synced.is_err();
            synced.map_err(|error| self.failed("sync", error))?;
            self.synced = self.length;
        }
        Ok(())
    }

    /// Whether it took everything so far.
    pub fn is_usable(&self) -> bool {
        !self.is_broken
    }

    /// Whether some record is not durable yet.
    pub fn is_unsynced(&self) -> bool {
        self.synced < self.length + self.buffer.len() as u64
    }

    /// Reads a row.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&mut self, location: Location) -> Result<Vec<u8>, LedgerError> {
        if location.offset + location.length > self.length {
            self.flush()?;
        }
        read_row(&*self.file, location).map_err(|error| self.failed("read", error))
    }

    /// Removes it: its rows are in the output.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> Result<(), LedgerError> {
        // Still locked: no other run can have begun with it.
        self.storage.remove(&self.path).map_err(|error| self.failed("remove", error))
    }

    fn failed(&self, verb: &str, error: io::Error) -> LedgerError {
        LedgerError::of(format!("{verb} {}", self.path.display()), error)
    }
}

/// Reads a row of a journal.
///
/// # Errors
/// The file's; or it ends before the row does.
pub fn read_row(file: &dyn StoredFile, location: Location) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; location.length as usize];
    match read_at_most(file, &mut bytes, location.offset)? {
        count if count == bytes.len() => Ok(bytes),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
