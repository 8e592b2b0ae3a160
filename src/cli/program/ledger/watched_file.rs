//! `WatchedFile`: a file, and somebody who learns what is done to it. An error of theirs is one of
//! the file.

use std::io;
use std::path::Path;

use super::storage::StoredFile;

/// Who learns what is done to a file. An error is that of the operation.
pub trait Watcher: Send {
    /// Bytes are to be written.
    ///
    /// # Errors
    /// They must not be.
    fn writes(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// So many bytes were written at a position.
    fn wrote(&mut self, _offset: u64, _count: usize) {}

    /// The file was cut to a length.
    fn cut(&mut self, _length: u64) {}

    /// The content is to be made durable.
    ///
    /// # Errors
    /// It must not be.
    fn syncs(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The content is durable.
    ///
    /// # Errors
    /// It is not kept where the watcher keeps it.
    fn synced(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is watched.
pub struct WatchedFile<W> {
    /// The file.
    pub file: Box<dyn StoredFile>,
    /// Who watches.
    pub watcher: W,
}

impl<W: Watcher> StoredFile for WatchedFile<W> {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(bytes, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.watcher.writes()?;
        let count = self.file.write_at(bytes, offset)?;
        self.watcher.wrote(offset, count);
        Ok(count)
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.file.set_length(length)?;
        self.watcher.cut(length);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.watcher.syncs()?;
        self.file.sync()?;
        self.watcher.synced()
    }

    fn try_lock(&self) -> bool {
        self.file.try_lock()
    }

    fn is_named(&self, path: &Path) -> bool {
        self.file.is_named(path)
    }

    fn take_permissions_of(&self, path: &Path) -> io::Result<()> {
        self.file.take_permissions_of(path)
    }
}
