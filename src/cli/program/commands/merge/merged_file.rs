//! `MergedFile`: where the joined rows go: `FILE.part`, then `FILE`, then `FILE.meta.json`.
//!
//! Meanwhile `FILE.journal` keeps other runs out. It has no rows, only a header by which the next
//! merge knows that the part is of a merge and may be begun again: its rows are in the shards.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::args::FlagFiles;
use crate::ledger::claim::Claim;
use crate::ledger::fingerprint::Fingerprint;
use crate::ledger::journal::{Journal, LockedJournal};
use crate::ledger::meta::{FileFacts, Meta, NamedFile};
use crate::ledger::output::Output;
use crate::ledger::record::{Header, Kind, Record};
use crate::ledger::storage::{Disk, Storage};
use crate::ledger::{LedgerError, LedgerOptions, LockedOutput, Outputs};
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::output::parquet::Table;
use vllm_batch_dataset::terminal::clock::now;
use vllm_batch_dataset::terminal::error::CliError;

/// The joined rows on their way to the disk.
pub struct MergedFile {
    output: Output,
    /// Error rows, with their file's name, where the output is a matrix.
    errors: Option<(PathBuf, Output)>,
    /// A device has none.
    side_file: Option<Claim>,
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
    pub fn create(
        path: &Path,
        errors: Option<PathBuf>,
        flags: FlagFiles,
        overwrite: bool,
    ) -> Result<Self, CliError> {
        let out = Some(path.to_owned());
        let options = LedgerOptions { out, errors, overwrite, flags, ..LedgerOptions::default() };
        Self::open(options).map_err(LedgerError::at_start)
    }

    fn open(options: LedgerOptions) -> Result<Self, LedgerError> {
        let (overwrite, errors_path) = (options.overwrite, options.errors.clone());
        let header =
            Header { started: now(), replaces: false, keeps: false, fingerprint: of_merges() };
        let locked = LockedOutput::open(disk(), options)?;
        let Outputs { out: output, errors, side_file, journal } =
            locked.into_outputs(&header.fingerprint)?;
        let lock = match journal {
            None => Lock::None,
            Some(lock) if overwrite => Lock::Bare(lock),
            // There is no output, no other run's journal, and no part but that of a merge.
            Some(lock) => Lock::Marked(lock.create(&header)?),
        };
        Ok(Self { output, errors: errors_path.zip(errors), side_file, lock })
    }

    /// How the rows are compressed.
    pub fn compression(&self) -> Compression {
        self.output.compression()
    }

    /// Takes a header, before the first row.
    pub fn write_header(&mut self, bytes: &[u8]) {
        self.output.write_header(bytes);
    }

    /// Makes a matrix of the rows to come.
    pub fn begin_matrix(&mut self, width: usize) {
        self.output.begin_matrix(width);
    }

    /// Makes a Parquet file of the rows to come.
    pub fn begin_table(&mut self, table: Table) {
        self.output.begin_table(table);
    }

    /// Takes a row of a Parquet file, as a JSON line.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn write_row(&mut self, line: &[u8]) -> Result<(), CliError> {
        self.output.emit(line).map_err(LedgerError::midway)
    }

    /// Takes bytes of an error row of a matrix.
    pub fn write_error(&mut self, bytes: &[u8]) {
        let errors = self.errors.as_mut();
        errors.expect("a matrix has a file of errors").1.add_piece(bytes);
    }

    /// The error row is whole.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn end_error(&mut self) -> Result<(), CliError> {
        let ended = self.errors.as_mut().map_or(Ok(()), |(_, errors)| errors.end_row());
        ended.map_err(LedgerError::midway)
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
        self.output.end_row().map_err(LedgerError::midway)
    }

    /// Makes the rows durable; what their bytes are, and those of the file of errors.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn complete(&mut self) -> Result<(FileFacts, Option<NamedFile>), CliError> {
        let mut complete = || {
            let output = self.output.complete()?.into();
            let Some((path, errors)) = &mut self.errors else { return Ok((output, None)) };
            let (path, facts) = (path.display().to_string(), errors.complete()?.into());
            Ok((output, Some(NamedFile { path, facts })))
        };
        complete().map_err(LedgerError::midway)
    }

    /// Gives the output its name, then writes its side file. A device has none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(self, meta: &Meta) -> Result<(), CliError> {
        self.publish(&meta.text()).map_err(LedgerError::midway)
    }

    fn publish(mut self, text: &str) -> Result<(), LedgerError> {
        if let Lock::Marked(journal) = &mut self.lock {
            // Whoever comes next does the rest, if this process does not come to it.
            journal.append(&Record::mark(Kind::End, text.as_bytes()))?;
            journal.sync()?;
        }
        if let Some(side_file) = self.side_file.take() {
            // A side file beside bytes of which it does not tell is worse than none.
            remove_if_there(side_file.path())?;
            if let Some((_, errors)) = &self.errors {
                errors.publish()?;
            }
            self.output.publish()?;
            side_file.publish_text(text)?;
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
        let errors = self.errors.as_ref().map(|(_, errors)| errors);
        for output in [Some(&self.output), errors].into_iter().flatten() {
            if let Some(part) = output.part().filter(|_| output.has_begun() || is_of_merge) {
                let _ = fs::remove_file(part);
            }
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
