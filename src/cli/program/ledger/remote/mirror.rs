//! `Mirror`: the files of this machine, of which the journal is also kept as objects. What is
//! written of it is noted here, and a thread puts it into the store, piece by piece.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::lease::{BEAT, Lease};
use super::segments::name;
use crate::ledger::storage::{Access, Disk, FileKind, Storage, StoredFile};
use crate::ledger::watched_file::{WatchedFile, Watcher};
use vllm_batch_base::machine;
use vllm_batch_dataset::object_store::{ErrorKind, ObjectName, Place, Store, StoreError};
use vllm_batch_dataset::terminal::console::Console;

/// The most bytes of a piece; as many are not waited with.
const PIECE: u64 = 8 << 20;

/// What the writing thread and the one that keeps pieces know together.
struct State {
    /// Bytes that are in the file.
    written: u64,
    /// Of them in the store.
    kept: u64,
    /// How often bytes that were written became others, or none.
    changes: u64,
    /// Why no more is kept.
    failed: Option<StoreError>,
    /// The thread is to end.
    ends: bool,
}

/// Bytes `from..to` of the journal, as they were after so many changes.
#[derive(Clone, Copy)]
struct Piece {
    from: u64,
    to: u64,
    changes: u64,
}

impl State {
    /// What was written from `offset` on is there no more.
    fn change_from(&mut self, offset: u64) {
        if offset < self.written {
            self.kept = self.kept.min(offset);
            self.changes += 1;
        }
    }

    /// The file ends here now.
    fn cut(&mut self, length: u64) {
        self.change_from(length);
        self.written = length;
    }

    fn wrote(&mut self, offset: u64, count: usize) {
        self.change_from(offset);
        self.written = self.written.max(offset + count as u64);
    }

    /// What is to be kept next.
    fn next_piece(&self) -> Option<Piece> {
        let Self { written, kept, changes, .. } = *self;
        let piece = Piece { from: kept, to: written.min(kept + PIECE), changes };
        (piece.from < piece.to).then_some(piece)
    }

    /// A piece is in the store. One that changed meanwhile is kept anew, in its place.
    fn keep(&mut self, piece: Piece) {
        if self.changes == piece.changes {
            self.kept = piece.to;
        }
    }
}

/// The state, and who waits for it to change.
struct Shared(Mutex<State>, Condvar);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_written(&self, offset: u64, count: usize) {
        self.lock().wrote(offset, count);
        self.1.notify_one();
    }

    fn check(&self) -> io::Result<()> {
        self.lock().failed.clone().map_or(Ok(()), |error| Err(error.into()))
    }
}

/// The files of this machine; writes to the journal are noted.
pub struct Mirror {
    journal: PathBuf,
    shared: Arc<Shared>,
}

impl Storage for Mirror {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let file = Disk.open(path, access)?;
        Ok(match path == self.journal && access != Access::Read {
            true => Box::new(WatchedFile { file, watcher: Arc::clone(&self.shared) }),
            false => file,
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if path == self.journal {
            self.shared.lock().cut(0);
        }
        Disk.remove(path)
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        Disk.sync_folder_of(path)
    }

    fn kind(&self, path: &Path) -> Option<FileKind> {
        Disk.kind(path)
    }

    fn in_the_way(&self, path: &Path) -> io::Result<Option<(PathBuf, &'static str)>> {
        Disk.in_the_way(path)
    }
}

impl Watcher for Arc<Shared> {
    fn writes(&mut self) -> io::Result<()> {
        self.check()
    }

    fn wrote(&mut self, offset: u64, count: usize) {
        self.note_written(offset, count);
    }

    fn cut(&mut self, length: u64) {
        self.lock().cut(length);
    }

    fn syncs(&mut self) -> io::Result<()> {
        self.check()
    }
}

/// Puts what is written into the store.
pub struct Keeper {
    store: Arc<Store>,
    lease: Arc<Lease>,
    prefix: ObjectName,
    journal: PathBuf,
    shared: Arc<Shared>,
    number: u32,
}

impl Keeper {
    /// For a journal of which the store has `kept` bytes; and the files that note what is written.
    pub fn new(
        store: Arc<Store>,
        lease: Arc<Lease>,
        prefix: ObjectName,
        journal: &Path,
        kept: u64,
    ) -> (Self, Mirror) {
        let state = State { written: kept, kept, changes: 0, failed: None, ends: false };
        let shared = Arc::new(Shared(Mutex::new(state), Condvar::new()));
        let mirror = Mirror { journal: journal.to_owned(), shared: Arc::clone(&shared) };
        let journal = journal.to_owned();
        (Self { store, lease, prefix, journal, shared, number: 0 }, mirror)
    }

    /// Puts all that is written into the store.
    ///
    /// # Errors
    /// Another run has the lease, or the store or the journal cannot be reached.
    pub fn keep(&mut self) -> Result<(), StoreError> {
        loop {
            let next = self.shared.lock().next_piece();
            let Some(piece) = next else { return Ok(()) };
            let Some(bytes) = self.read(piece)? else { return Ok(()) };
            self.lease.check()?;
            let name = name(&self.prefix, self.lease.epoch(), self.number, piece.from);
            self.store.put(&name, &bytes, Place::Any)?;
            self.number += 1;
            self.shared.lock().keep(piece);
        }
    }

    /// None: the file was removed, or cut meanwhile.
    fn read(&self, piece: Piece) -> Result<Option<Vec<u8>>, StoreError> {
        let Piece { from, to, .. } = piece;
        let mut bytes = vec![0; (to - from) as usize];
        let read = File::open(&self.journal).and_then(|file| file.read_exact_at(&mut bytes, from));
        match read {
            Ok(()) => Ok(Some(bytes)),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(StoreError::disk("read the journal", &error)),
        }
    }

    /// Keeps on a thread of its own, every so often.
    pub fn start(self, every: Duration, console: Console) -> KeeperThread {
        let shared = Arc::clone(&self.shared);
        let thread =
            machine::started(std::thread::Builder::new().spawn(move || self.work(every, &console)));
        KeeperThread { shared, thread }
    }

    fn work(mut self, every: Duration, console: &Console) -> Self {
        let (mut last, mut beaten, mut is_told) = (Instant::now(), Instant::now(), false);
        while self.wait(every, last, beaten) {
            last = Instant::now();
            let mut kept = self.keep();
            if beaten.elapsed() >= BEAT {
                beaten = last;
                kept = kept.and_then(|()| self.lease.check()).and_then(|()| self.lease.beat());
            }
            match kept {
                Ok(()) => is_told = false,
                // Rows are on this machine; a store that comes back gets them.
                Err(error) if error.kind() == ErrorKind::Network => {
                    if !is_told {
                        console.warn(&format!("{error}; finished rows are kept here until then"));
                    }
                    is_told = true;
                }
                Err(error) => {
                    self.shared.lock().failed = Some(error);
                    break;
                }
            }
        }
        self
    }

    /// Waits until there is something to do. False: the thread is to end.
    fn wait(&self, every: Duration, last: Instant, beaten: Instant) -> bool {
        let mut state = self.shared.lock();
        while !state.ends {
            let mut wait = BEAT.saturating_sub(beaten.elapsed());
            if state.written - state.kept >= PIECE {
                break;
            }
            if state.written > state.kept {
                wait = wait.min(every.saturating_sub(last.elapsed()));
            }
            if wait.is_zero() {
                break;
            }
            let waited = self.shared.1.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !state.ends
    }
}

/// A thread that keeps pieces.
pub struct KeeperThread {
    shared: Arc<Shared>,
    thread: JoinHandle<Keeper>,
}

impl KeeperThread {
    /// Ends it.
    pub fn end(self) -> Keeper {
        self.shared.lock().ends = true;
        self.shared.1.notify_one();
        self.thread.join().expect("a panic ends the process in its hook")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(kept: u64, written: u64) -> State {
        State { written, kept, changes: 0, failed: None, ends: false }
    }

    #[test]
    fn what_changes_while_a_piece_is_on_its_way_is_kept_anew() {
        type Change = fn(&mut State);
        let cases: [(Change, (u64, u64)); 5] = [
            (|state| state.cut(0), (0, 0)),
            (|state| state.cut(60), (40, 60)),
            (|state| state.cut(20), (20, 20)),
            (|state| state.wrote(50, 5), (40, 100)),
            // What comes behind it is no change.
            (|state| state.wrote(100, 30), (100, 130)),
        ];
        for (index, (change, expected)) in cases.into_iter().enumerate() {
            let mut state = state(40, 100);
            let piece = state.next_piece().unwrap();
            assert_eq!((piece.from, piece.to), (40, 100));
            change(&mut state);
            state.keep(piece);
            assert_eq!((state.kept, state.written), expected, "change {index}");
        }
        assert!(state(7, 7).next_piece().is_none());
        assert_eq!(state(0, 2 * PIECE).next_piece().unwrap().to, PIECE);
    }
}
