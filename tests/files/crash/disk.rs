//! A disk in memory that remembers every operation, so that it can be shown as a crash would leave
//! it; and that fails one operation, if asked.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use vllm_batch::cli::ledger::storage::{Access, FileKind, Storage, StoredFile};

/// What changes a disk. A file is a number; names point to it.
#[derive(Clone, Debug)]
pub enum Op {
    Create { path: PathBuf, file: usize },
    Write { file: usize, offset: u64, bytes: Vec<u8> },
    SetLength { file: usize, length: u64 },
    Sync { file: usize },
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
    SyncFolder,
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NoSpace,
    Io,
    /// A write takes only its first half; what is no write is not touched.
    Short,
}

/// Names and contents: what the next process finds.
pub type Tree = BTreeMap<PathBuf, Vec<u8>>;

#[derive(Default)]
struct State {
    names: BTreeMap<PathBuf, usize>,
    files: Vec<Vec<u8>>,
    locked: Vec<usize>,
    log: Vec<Op>,
    /// Operations so far, those that change nothing included.
    num_ops: usize,
    fault: Option<(usize, Fault)>,
    fault_struck: bool,
}

/// The disk, shared by the handles of its files.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<State>>);

impl MemoryDisk {
    /// A disk that was found so.
    pub fn holding(tree: &Tree) -> Self {
        let disk = Self::default();
        let mut state = disk.state();
        for (path, content) in tree {
            let file = state.files.len();
            state.files.push(content.clone());
            state.names.insert(path.clone(), file);
        }
        drop(state);
        disk
    }

    /// Lets the n-th operation fail, once.
    pub fn fail_at(&self, op: usize, fault: Fault) {
        self.state().fault = Some((op, fault));
    }

    /// Whether the fault came to pass.
    pub fn fault_struck(&self) -> bool {
        self.state().fault_struck
    }

    /// What was changed, in order.
    pub fn log(&self) -> Vec<Op> {
        self.state().log.clone()
    }

    /// What is there now.
    pub fn tree(&self) -> Tree {
        let state = self.state();
        state.names.iter().map(|(path, file)| (path.clone(), state.files[*file].clone())).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }
}

impl State {
    /// Counts an operation, and says whether it is cut short.
    fn step(&mut self) -> io::Result<bool> {
        let now = self.num_ops;
        self.num_ops += 1;
        let Some((_, fault)) = self.fault.filter(|(at, _)| *at == now) else { return Ok(false) };
        self.fault_struck = true;
        match fault {
            Fault::NoSpace => Err(ErrorKind::StorageFull.into()),
            Fault::Io => Err(io::Error::from_raw_os_error(5)),
            Fault::Short => Ok(true),
        }
    }

    fn file_of(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// A handle.
struct Handle {
    disk: MemoryDisk,
    file: usize,
    has_lock: Mutex<bool>,
}

impl Storage for MemoryDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn StoredFile>> {
        let mut state = self.state();
        state.step()?;
        let file = match (access, state.file_of(path)) {
            (Access::Create, Ok(_)) => return Err(ErrorKind::AlreadyExists.into()),
            (Access::Create, Err(_)) => {
                let file = state.files.len();
                state.files.push(Vec::new());
                state.names.insert(path.to_owned(), file);
                state.log.push(Op::Create { path: path.to_owned(), file });
                file
            }
            (_, file) => file?,
        };
        Ok(Box::new(Handle { disk: self.clone(), file, has_lock: Mutex::new(false) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        let file = state.file_of(from)?;
        state.names.remove(from);
        state.names.insert(to.to_owned(), file);
        state.log.push(Op::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.file_of(path)?;
        state.names.remove(path);
        state.log.push(Op::Remove { path: path.to_owned() });
        Ok(())
    }

    fn sync_folder_of(&self, _path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.step()?;
        state.log.push(Op::SyncFolder);
        Ok(())
    }

    fn kind(&self, path: &Path) -> Option<FileKind> {
        self.state().names.contains_key(path).then_some(FileKind::File)
    }
}

impl StoredFile for Handle {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state();
        let content = state.files[self.file].get(offset as usize..).unwrap_or_default();
        let count = content.len().min(bytes.len());
        bytes[..count].copy_from_slice(&content[..count]);
        Ok(count)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.disk.state();
        let is_short = state.step()?;
        let count = if is_short { bytes.len().div_ceil(2) } else { bytes.len() };
        let bytes = bytes[..count].to_vec();
        apply_write(&mut state.files[self.file], offset, &bytes);
        state.log.push(Op::Write { file: self.file, offset, bytes });
        Ok(count)
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.state().files[self.file].len() as u64)
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.files[self.file].resize(length as usize, 0);
        state.log.push(Op::SetLength { file: self.file, length });
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        state.log.push(Op::Sync { file: self.file });
        Ok(())
    }

    fn try_lock(&self) -> bool {
        let mut state = self.disk.state();
        let is_free = !state.locked.contains(&self.file);
        if is_free {
            state.locked.push(self.file);
            *self.has_lock.lock().expect("one thread") = true;
        }
        is_free
    }

    fn is_named(&self, path: &Path) -> bool {
        self.disk.state().names.get(path) == Some(&self.file)
    }

    fn take_permissions_of(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if *self.has_lock.lock().expect("one thread") {
            self.disk.state().locked.retain(|file| *file != self.file);
        }
    }
}

/// Writes into a content that grows as needed, with zeros where nothing was written.
pub fn apply_write(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(bytes);
}
