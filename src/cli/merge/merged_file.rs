//! `MergedFile`: where the joined rows go: `FILE.part`, then `FILE`, then `FILE.meta.json`.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::shard_meta::{FileMeta, ShardMeta, meta_path};
use super::shard_set::ShardFile;
use crate::cli::error::CliError;
use crate::cli::writer::{OutputError, Sink};

/// Handed to the system at once.
const BUFFER: usize = 256 << 10;

/// The only place where `merge` opens an output. The file has its name when the sink is finished.
///
/// # Errors
/// It exists, is being written, or cannot be created.
fn create_output(path: &Path, overwrite: bool) -> Result<Sink, OutputError> {
    Sink::create(path, None, overwrite)
}

/// The joined rows on their way to the disk.
pub struct MergedFile {
    path: PathBuf,
    sink: Sink,
    buffer: Vec<u8>,
    hasher: blake3::Hasher,
    bytes: u64,
    /// Something was handed to the system.
    begun: bool,
}

impl MergedFile {
    /// Opens the output.
    ///
    /// # Errors
    /// It would replace a shard, exists, or cannot be created.
    pub fn create(path: &Path, shards: &[ShardFile], overwrite: bool) -> Result<Self, CliError> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let ours: Vec<_> = [path, Path::new(&part)].into_iter().filter_map(identity).collect();
        let replaced = shards
            .iter()
            .find(|shard| identity(&shard.path).is_some_and(|identity| ours.contains(&identity)));
        if let Some(shard) = replaced {
            let message = format!("{} is a shard: the output would replace it", shard.name());
            return Err(CliError::refused("output", message).help("choose another --out"));
        }
        let sink = create_output(path, overwrite).map_err(CliError::from_output)?;
        let (path, buffer) = (path.to_owned(), Vec::with_capacity(2 * BUFFER));
        Ok(Self { path, sink, buffer, hasher: blake3::Hasher::new(), bytes: 0, begun: false })
    }

    /// Takes bytes of a row.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < BUFFER {
            return Ok(());
        }
        self.write_buffer()
    }

    fn write_buffer(&mut self) -> Result<(), CliError> {
        self.begun |= !self.buffer.is_empty();
        self.sink.write_all(&self.buffer).map_err(|error| midway(&self.path, error))?;
        self.hasher.update(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Hands the last rows to the system; what the output's bytes are.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub fn flush(&mut self, rows: u64) -> Result<FileMeta, CliError> {
        self.write_buffer()?;
        self.sink.flush().map_err(|error| midway(&self.path, error))?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        Ok(FileMeta { rows, bytes: self.bytes, blake3 })
    }

    /// Gives the output its name, then writes its side file. A device has none.
    ///
    /// # Errors
    /// The disk fails.
    pub fn finish(self, meta: &ShardMeta) -> Result<(), CliError> {
        let path = self.path;
        if self.sink.part().is_none() {
            return self.sink.finish().map_err(CliError::from_output_midway);
        }
        // A side file beside bytes of which it does not tell is worse than none.
        let meta_path = meta_path(&path);
        match fs::remove_file(&meta_path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(midway(&path, error)),
            _ => {}
        }
        self.sink.finish().map_err(CliError::from_output_midway)?;
        let mut text = serde_json::to_string(meta).expect("plain values into memory");
        text.push('\n');
        let mut sink = create_output(&meta_path, true).map_err(CliError::from_output_midway)?;
        sink.write_all(text.as_bytes()).map_err(|error| midway(&meta_path, error))?;
        sink.finish().map_err(CliError::from_output_midway)
    }

    /// Removes what was written. What an earlier run left stays if nothing has replaced it.
    pub fn abandon(self) {
        // The part is still locked here, so it is nobody else's.
        if let Some(part) = self.sink.part().filter(|_| self.begun) {
            let _ = fs::remove_file(part);
        }
    }
}

fn midway(path: &Path, error: io::Error) -> CliError {
    CliError::from_output_midway(match error.kind() {
        ErrorKind::BrokenPipe => OutputError::BrokenPipe,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => OutputError::Full(error),
        _ => OutputError::Io { action: format!("write {}", path.display()), source: error },
    })
}

/// What tells one file from another, whatever its names.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}
