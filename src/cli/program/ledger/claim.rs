//! `Claim`: a name that one run writes, and no other run meanwhile.
//!
//! Whoever is to give a file the name `FILE` first locks `FILE.part`, then makes sure that `FILE`
//! itself is not locked: a journal that another run writes is locked under its own name. A journal
//! is claimed in the same way before it is opened. So of two runs that share a name, as whatever
//! file of theirs, one gets it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::{LedgerError, unreadable};
use super::names::folder_of;
use super::output::part_of;
use super::storage::{Access, FileKind, Storage, StoredFile, write_all_at};
use vllm_batch_dataset::object_store::is_object;

/// How often a file is opened again that was removed before it could be locked, or whose run has
/// just been killed and is still ending.
const MAX_OPENS: usize = 8;

/// Between two of them, where another run has the lock.
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// A name that is this run's until this is dropped: its part is open and locked. A part without a
/// byte goes with it.
pub struct Claim {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    part: PathBuf,
    file: Box<dyn StoredFile>,
}

impl Claim {
    /// Takes a name. What is in its part stays.
    ///
    /// # Errors
    /// Another run has it, or no file can get it.
    pub fn take(storage: &Arc<dyn Storage>, path: &Path) -> Result<Self, LedgerError> {
        refuse_odd(&**storage, path)?;
        let part = part_of(path);
        refuse_odd(&**storage, &part)?;
        let in_the_way = storage.in_the_way(path);
        let in_the_way = in_the_way.map_err(|error| unreadable(path, error))?;
        if let Some((path, what)) = in_the_way {
            return Err(LedgerError::NoFile { path, what });
        }
        let failed = |error| LedgerError::of(format!("create {}", part.display()), error);
        for _ in 0..MAX_OPENS {
            let Some(file) = open_locked(&**storage, &part)? else { continue };
            let storage = Arc::clone(storage);
            let claim = Self { storage, path: path.to_owned(), part: part.clone(), file };
            if claim.name_is_free()? {
                claim.file.take_permissions_of(path).map_err(failed)?;
                return Ok(claim);
            }
            std::thread::sleep(LOCK_WAIT);
        }
        Err(LedgerError::Locked(path.to_owned()))
    }

    /// Whether no run has the file of this name open as its own.
    fn name_is_free(&self) -> Result<bool, LedgerError> {
        match self.storage.open(&self.path, Access::Read) {
            Ok(file) => Ok(file.try_lock()),
            // Who may not read it cannot have opened it as its own either.
            Err(error) if is_absent(&error) || error.kind() == ErrorKind::PermissionDenied => {
                Ok(true)
            }
            Err(error) => Err(LedgerError::of(format!("open {}", self.path.display()), error)),
        }
    }

    /// The name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the unfinished file.
    pub fn part(&self) -> &Path {
        &self.part
    }

    /// The unfinished file.
    pub fn file(&mut self) -> &mut dyn StoredFile {
        &mut *self.file
    }

    /// Writes a small file, so that it is never there in part.
    ///
    /// # Errors
    /// The system's.
    pub fn publish_text(mut self, text: &str) -> Result<(), LedgerError> {
        let mut write = || {
            self.file.set_length(0)?;
            write_all_at(&mut *self.file, text.as_bytes(), 0)?;
            self.file.sync()
        };
        write()
            .map_err(|error| LedgerError::of(format!("write {}", self.part.display()), error))?;
        self.publish()
    }

    /// Gives the part its name, for good: its content is durable.
    ///
    /// # Errors
    /// The system's; the part stays.
    pub fn publish(&self) -> Result<(), LedgerError> {
        let Self { storage, path, part, .. } = self;
        storage
            .rename(part, path)
            .map_err(|error| LedgerError::of(format!("rename {}", part.display()), error))?;
        self.sync_folder_of(path)
    }

    /// Gives the name up: it was claimed to keep others away for a moment.
    ///
    /// # Errors
    /// The system's.
    pub fn release(self) -> Result<(), LedgerError> {
        let removed = self.remove_empty();
        removed.map_err(|error| LedgerError::of(format!("remove {}", self.part.display()), error))
    }

    fn remove_empty(&self) -> io::Result<()> {
        // Still locked: the name is no other run's.
        match self.file.length()? == 0 && self.file.is_named(&self.part) {
            true => self.storage.remove(&self.part),
            false => Ok(()),
        }
    }

    /// Makes the name of the part durable.
    ///
    /// # Errors
    /// The system's.
    pub fn sync_part_name(&self) -> Result<(), LedgerError> {
        self.sync_folder_of(&self.part)
    }

    fn sync_folder_of(&self, name: &Path) -> Result<(), LedgerError> {
        let synced = self.storage.sync_folder_of(name);
        synced.map_err(|error| {
            LedgerError::of(format!("sync the folder of {}", name.display()), error)
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // An empty file that stays is in nobody's way.
        let _ = self.remove_empty();
    }
}

/// Opens or creates a file, and locks it. None: another run has it, or has just removed it, and it
/// is worth another look.
///
/// # Errors
/// It cannot be opened.
pub fn open_locked(
    storage: &dyn Storage,
    path: &Path,
) -> Result<Option<Box<dyn StoredFile>>, LedgerError> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound if !folder_of(path).is_dir() => {
            LedgerError::NoFolder(folder_of(path).to_owned())
        }
        _ => LedgerError::of(format!("create {}", path.display()), error),
    };
    let file = match storage.open(path, Access::Write) {
        Err(error) if is_absent(&error) => match storage.open(path, Access::Create) {
            // Another run was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(None),
            file => file.map_err(failed)?,
        },
        file => file.map_err(failed)?,
    };
    if !file.try_lock() {
        std::thread::sleep(LOCK_WAIT);
        return Ok(None);
    }
    Ok(file.is_named(path).then_some(file))
}

/// Opens a file as `open_locked`, and waits a moment for a run that is just ending.
///
/// # Errors
/// Another run has it, or it cannot be opened.
pub fn open_locked_in_time(
    storage: &dyn Storage,
    path: &Path,
) -> Result<Box<dyn StoredFile>, LedgerError> {
    for _ in 0..MAX_OPENS {
        if let Some(file) = open_locked(storage, path)? {
            return Ok(file);
        }
    }
    Err(LedgerError::Locked(path.to_owned()))
}

fn is_absent(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Refuses a name that a folder, a link, a device or a pipe has: a file could not get it, or would
/// be written somewhere else.
fn refuse_odd(storage: &dyn Storage, path: &Path) -> Result<(), LedgerError> {
    if is_object(path) {
        let what = "an object, and only the output of a run is written as one";
        return Err(LedgerError::NoFile { path: path.to_owned(), what });
    }
    let what = match storage.kind(path) {
        None | Some(FileKind::File) => return Ok(()),
        Some(FileKind::Folder) => "a folder",
        Some(FileKind::Link) => "a symbolic link",
        Some(FileKind::Other) => "a device or a pipe",
    };
    Err(LedgerError::NoFile { path: path.to_owned(), what })
}
