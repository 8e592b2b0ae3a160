//! A weight file mapped into memory, and what happens when somebody shortens it meanwhile.
//!
//! Reading a page that a file no longer has raises SIGBUS, which no code around the read can turn
//! into an error. So a handler says which file it was and ends the process, where the program asks
//! for it. What is not a fault in these files takes its usual course.

use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use memmap2::{Mmap, UncheckedAdvice};
use signal_hook::consts::SIGBUS;
use signal_hook::low_level::emulate_default_handler;

use vllm_batch_base::config::OnLostFile;
use vllm_batch_base::files;

/// A file, mapped.
#[derive(Debug)]
pub(super) struct MappedFile {
    map: Mmap,
    path: PathBuf,
    stamp: Stamp,
}

/// Values that a write to the file changes: device and inode, length, time of the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    len: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            changed: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = files::open(path)?;
        let stamp = Stamp::of(&file.metadata()?);
        if stamp.len == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty"));
        }
        // SAFETY: the mapping is read-only, and nothing here writes the file. Whoever else does
        // changes weights, which `is_unchanged` finds, or ends the process with SIGBUS, see above.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { map, path: path.to_owned(), stamp })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Takes what was read of the file out of this process's memory. It stays in the system's
    /// cache, and what is read again comes back from there.
    pub(super) fn release(&self) {
        // SAFETY: the mapping is read-only and of a file, so its pages come back as the file
        // has them. A system that refuses only keeps more in memory.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is as it was when it was mapped. One that another has taken the place of
    /// is: the mapping keeps the old one.
    pub(super) fn is_unchanged(&self) -> bool {
        let now = std::fs::metadata(&self.path).map(|metadata| Stamp::of(&metadata));
        now.map_or(true, |now| now.file != self.stamp.file || now == self.stamp)
    }
}

/// Mapped files, with a watch over them where it was asked for.
#[derive(Debug)]
pub(super) struct Maps {
    files: Vec<MappedFile>,
    _watch: Option<Watch>,
}

impl Maps {
    /// Watches files of which no byte was read yet.
    pub(super) fn watched(files: Vec<MappedFile>, on_lost: Option<OnLostFile>) -> io::Result<Self> {
        let watch = on_lost.map(|on_lost| watch(&files, on_lost)).transpose()?;
        Ok(Self { files, _watch: watch })
    }
}

impl Deref for Maps {
    type Target = [MappedFile];

    fn deref(&self) -> &[MappedFile] {
        &self.files
    }
}

/// A watch over mapped files, until it is dropped.
#[derive(Debug)]
struct Watch {
    is_on: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_on.store(false, SeqCst);
    }
}

/// From now on a fault in one of these files is said and ends the process. The handler stays for
/// good; once the watch is dropped, SIGBUS takes its usual course.
fn watch(files: &[MappedFile], on_lost: OnLostFile) -> io::Result<Watch> {
    let places: Vec<(Range<usize>, String)> = files
        .iter()
        .map(|file| {
            let start = file.map.as_ptr().addr();
            (start..start + file.map.len(), (on_lost.message)(&file.path))
        })
        .collect();
    let is_on = Arc::new(AtomicBool::new(true));
    let watched = is_on.clone();
    let action = move |info: &libc::siginfo_t| {
        // Signals that a process sent have no address.
        if watched.load(SeqCst) && info.si_code > 0 {
            // SAFETY: the kernel fills in the address of a fault.
            let address = unsafe { info.si_addr() }.addr();
            if let Some((_, message)) = places.iter().find(|(range, _)| range.contains(&address)) {
                (on_lost.end)(message);
            }
        }
        let _ = emulate_default_handler(SIGBUS);
    };
    // SAFETY: the action reads what was made before it, and neither allocates nor locks; that `end`
    // does neither is its contract.
    unsafe { signal_hook_registry::register_sigaction(SIGBUS, action) }?;
    Ok(Watch { is_on })
}
