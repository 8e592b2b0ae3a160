//! `JournalView`: the records of a journal that a run may be writing. It takes no lock and writes
//! nothing. Records that are not whole yet are read later.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::record::{Header, Kind};
use super::scan::{Scanned, Scanner};
use super::storage::{Access, Disk, Storage, StoredFile, read_at_most};

/// The locks of this machine, one a line, with the file's device and inode.
const LOCKS: &str = "/proc/locks";

/// A journal, read from its beginning on.
pub struct JournalView {
    file: Box<dyn StoredFile>,
    path: PathBuf,
    /// End of the last record that was read; None before the header.
    at: Option<u64>,
}

/// A record with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewed {
    /// Where it is.
    pub offset: u64,
    /// What it says.
    pub kind: Kind,
    /// Of the row.
    pub position: u64,
    /// The row, or the text of a mark.
    pub bytes: Vec<u8>,
}

impl JournalView {
    /// Opens a journal; None where there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        match Disk.open(path, Access::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => Ok(Some(Self { file: file?, path: path.to_owned(), at: None })),
        }
    }

    /// The header, when it is whole; None before.
    ///
    /// # Errors
    /// The file cannot be read, or is no journal.
    pub fn header(&mut self) -> io::Result<Option<Header>> {
        let length = self.file.length()?.min(Header::MAX_LEN as u64);
        let mut prefix = vec![0; length as usize];
        let count = read_at_most(&*self.file, &mut prefix, 0)?;
        prefix.truncate(count);
        match Header::decode(&prefix) {
            Some(header) => {
                self.at.get_or_insert(Header::encoded_len(&prefix).expect("decoded") as u64);
                Ok(Some(header))
            }
            None if Header::is_begun(&prefix) || Header::may_be_torn(&prefix) => Ok(None),
            None => Err(io::Error::other("it is no journal")),
        }
    }

    /// Passes all further whole records to `take`, until it returns false or fails.
    ///
    /// # Errors
    /// The file cannot be read; or those of `take`.
    pub fn records<E: From<io::Error>>(
        &mut self,
        mut take: impl FnMut(Viewed) -> Result<bool, E>,
    ) -> Result<(), E> {
        let Some(start) = self.at else { return Ok(()) };
        let mut scanner = Scanner::new(&*self.file, start)?;
        while let Some(scanned) = scanner.next_record()? {
            let viewed = viewed(&*self.file, &scanned)?;
            self.at = Some(scanned.end());
            if !take(viewed)? {
                break;
            }
        }
        Ok(())
    }

    /// Begins again with the first record.
    ///
    /// # Errors
    /// As `header`.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.at = None;
        self.header().map(drop)
    }

    /// Whether its name is still that of this file: a run that is complete removes it.
    pub fn is_there(&self) -> bool {
        self.file.is_named(&self.path)
    }

    /// Whether a run writes it. The list of locks says so for runs of this machine; only where it
    /// names none, the lock is tried for a moment, which a run that begins just then waits for.
    pub fn is_written(&self) -> bool {
        is_listed(&self.path) || is_locked(&self.path)
    }
}

fn viewed(file: &dyn StoredFile, scanned: &Scanned) -> io::Result<Viewed> {
    let mut bytes = vec![0; scanned.row_len() as usize];
    let count = read_at_most(file, &mut bytes, scanned.row_offset())?;
    bytes.truncate(count);
    let (kind, position) = (scanned.head.kind, scanned.head.position);
    Ok(Viewed { offset: scanned.offset, kind, position, bytes })
}

/// Whether the system lists a lock on this file.
fn is_listed(path: &Path) -> bool {
    let (Ok(found), Ok(locks)) = (fs::metadata(path), fs::read_to_string(LOCKS)) else {
        return false;
    };
    let inode = found.ino().to_string();
    locks.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_flock = words.next() == Some("FLOCK");
        is_flock && words.any(|word| word.rsplit(':').next() == Some(&inode) && word.contains(':'))
    })
}

fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
