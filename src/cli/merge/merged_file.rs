//! `MergedFile`: where the joined rows go: `FILE.part`, then `FILE`, then `FILE.meta.json`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::shard_set::ShardFile;
use crate::cli::compress::Compression;
use crate::cli::error::CliError;
use crate::cli::ledger::draft::side_file_of;
use crate::cli::ledger::journal::LockedJournal;
use crate::cli::ledger::output::{Output, part_of, publish_text};
use crate::cli::ledger::{Draft, LedgerError, LedgerOptions};
use crate::cli::meta::{FileFacts, Meta};
use crate::cli::storage::{Disk, Storage};

/// The joined rows on their way to the disk.
pub struct MergedFile {
    path: PathBuf,
    output: Output,
    /// Keeps other runs out.
    _lock: Option<LockedJournal>,
}

impl MergedFile {
    /// Opens the output.
    ///
    /// # Errors
    /// It would replace a shard, exists, or cannot be created.
    pub fn create(path: &Path, shards: &[ShardFile], overwrite: bool) -> Result<Self, CliError> {
        let part = part_of(path);
        let ours: Vec<_> = [path, &part].into_iter().filter_map(identity).collect();
        let replaced = shards
            .iter()
            .find(|shard| identity(&shard.path).is_some_and(|identity| ours.contains(&identity)));
        if let Some(shard) = replaced {
            let message = format!("{} is a shard: the output would replace it", shard.name());
            return Err(CliError::refused("output", message).help("choose another --out"));
        }
        let out = Some(path.to_owned());
        let options = LedgerOptions { out, overwrite, ..LedgerOptions::default() };
        let draft = Draft::open(Arc::new(Disk), options).and_then(Draft::into_output);
        let (output, lock) = draft.map_err(CliError::from_output)?;
        Ok(Self { path: path.to_owned(), output, _lock: lock })
    }

    /// How the rows are compressed: as the output's name says.
    pub fn compression(&self) -> Compression {
        Compression::from_path(&self.path)
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
        if self.output.part().is_none() {
            return Ok(());
        }
        let side_file = side_file_of(&self.path);
        let finish = || {
            // A side file beside bytes of which it does not tell is worse than none.
            match Disk.remove(&side_file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    let action = format!("remove {}", side_file.display());
                    return Err(LedgerError::of(action, error));
                }
                _ => {}
            }
            self.output.publish()?;
            publish_text(&Disk, &meta.text(), &side_file)
        };
        finish().map_err(CliError::from_output_midway)
    }

    /// Removes what was written. What an earlier run left stays if nothing has replaced it.
    pub fn abandon(self) {
        if let Some(part) = self.output.part().filter(|_| self.output.has_begun()) {
            let _ = fs::remove_file(part);
        }
    }
}

/// What tells one file from another, whatever its names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
