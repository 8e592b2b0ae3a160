//! `MergedFile`: where the joined rows go: `FILE.part`, then `FILE`, then `FILE.meta.json`.
//!
//! Meanwhile `FILE.journal` keeps other runs out. It has no rows, only a header by which the next
//! merge knows that the part is of a merge and may be begun again: its rows are in the shards.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::shard_set::ShardFile;
use crate::cli::config::now;
use crate::cli::input::compress::Compression;
use crate::cli::ledger::claim::publish_text;
use crate::cli::ledger::files::side_file_of;
use crate::cli::ledger::fingerprint::Fingerprint;
use crate::cli::ledger::journal::{Journal, LockedJournal};
use crate::cli::ledger::meta::{FileFacts, Meta};
use crate::cli::ledger::output::Output;
use crate::cli::ledger::record::{Header, Kind, Record};
use crate::cli::ledger::storage::{Disk, Storage};
use crate::cli::ledger::{Draft, LedgerError, LedgerOptions, Named};
use crate::cli::terminal::error::CliError;

/// The joined rows on their way to the disk.
pub struct MergedFile {
    path: PathBuf,
    output: Output,
    lock: Lock,
}

/// What keeps other runs out.
enum Lock {
    /// Nothing: a device.
    None,
    /// With `--overwrite`: what is there stays until the output is complete.
    Bare(LockedJournal),
    /// Of a merge.
    Marked(Journal),
}

impl MergedFile {
    /// Opens the output.
    ///
    /// # Errors
    /// It would replace a shard, exists, or cannot be created.
    pub fn create(path: &Path, shards: &[ShardFile], overwrite: bool) -> Result<Self, CliError> {
        let read = shards.iter().map(|shard| Named::new("a shard", &shard.path)).collect();
        let out = Some(path.to_owned());
        let options = LedgerOptions { out, overwrite, read, ..LedgerOptions::default() };
        Self::open(path, options).map_err(CliError::from_output)
    }

    fn open(path: &Path, options: LedgerOptions) -> Result<Self, LedgerError> {
        let overwrite = options.overwrite;
        let header = Header { started: now(), replaces: false, fingerprint: of_merges() };
        let draft = Draft::open(disk(), options)?;
        // A link stays a link.
        let path = draft.path().unwrap_or(path).to_owned();
        let (output, lock) = draft.into_output(&header.fingerprint)?;
        let lock = match lock {
            None => Lock::None,
            Some(lock) if overwrite => Lock::Bare(lock),
            // There is no output, no other run's journal, and no part but that of a merge.
            Some(lock) => Lock::Marked(lock.create(&header)?),
        };
        Ok(Self { path, output, lock })
    }

    /// How the rows are compressed.
    pub fn compression(&self) -> Compression {
        self.output.compression()
    }

    /// Takes a header, before the first row.
    pub fn write_header(&mut self, bytes: &[u8]) {
        self.output.write_header(bytes);
    }

    /// Takes bytes of a row.
    pub fn write(&mut self, bytes: &[u8]) {
        self.output.add_piece(bytes);
    }

    /// The row is whole.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn end_row(&mut self) -> Result<(), CliError> {
        self.output.end_row().map_err(CliError::from_output_midway)
    }

    /// Makes the rows durable; what their bytes are.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn complete(&mut self) -> Result<FileFacts, CliError> {
        self.output.complete().map(FileFacts::from).map_err(CliError::from_output_midway)
    }

    /// Gives the output its name, then writes its side file. A device has none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(self, meta: &Meta) -> Result<(), CliError> {
        self.publish(&meta.text()).map_err(CliError::from_output_midway)
    }

    fn publish(mut self, text: &str) -> Result<(), LedgerError> {
        if let Lock::Marked(journal) = &mut self.lock {
            // Whoever comes next does the rest, if this process does not come to it.
            journal.append(&Record::mark(Kind::End, text.as_bytes()))?;
            journal.sync()?;
        }
        if self.output.part().is_some() {
            let side_file = side_file_of(&self.path);
            // A side file beside bytes of which it does not tell is worse than none.
            remove_if_there(&side_file)?;
            self.output.publish()?;
            publish_text(&disk(), text, &side_file)?;
        }
        match self.lock {
            Lock::None => Ok(()),
            // It may be that of a run whose output this one replaces.
            Lock::Bare(journal) => remove_if_there(journal.path()),
            Lock::Marked(journal) => journal.remove(),
        }
    }

    /// Removes what was written. What an earlier run left stays if nothing has replaced it.
    pub fn abandon(self) {
        let is_of_merge = matches!(self.lock, Lock::Marked(_));
        if let Some(part) = self.output.part().filter(|_| self.output.has_begun() || is_of_merge) {
            let _ = fs::remove_file(part);
        }
        if let Lock::Marked(journal) = self.lock {
            let _ = journal.remove();
        }
    }
}

/// What is in the journal of a merge. A run has another version, and says so.
fn of_merges() -> Fingerprint {
    Fingerprint::new([("version".to_owned(), "a merge of shards".to_owned())].into())
}

fn remove_if_there(path: &Path) -> Result<(), LedgerError> {
    match Disk.remove(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(LedgerError::of(format!("remove {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

fn disk() -> Arc<dyn Storage> {
    Arc::new(Disk)
}
