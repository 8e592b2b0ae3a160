//! One file on its way from the hub into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};

use hf_hub::api::sync::Api;
use hf_hub::{Cache, Repo};

use super::DownloadProgress;
use super::environment::NetworkLimits;
use super::failure::Failure;
use super::names::is_plain_etag;

/// One file of one commit.
#[derive(Clone)]
pub(super) struct Transfer {
    /// The hub.
    pub api: Api,
    /// The repository at the commit.
    pub repo: Repo,
    /// The cache folder.
    pub root: PathBuf,
    /// What the server must say the file is of.
    pub commit: String,
    /// Its name in the repository.
    pub file: String,
    /// Its place in the snapshot.
    pub pointer: PathBuf,
}

enum Event {
    Start { size: u64, done: u64 },
    Bytes(u64),
    End(Result<(), Failure>),
}

/// Runs a transfer on a thread of its own, since nothing else can notice that hf-hub waits forever.
pub(super) fn attempt(
    transfer: &Transfer,
    limits: NetworkLimits,
    progress: &mut dyn DownloadProgress,
) -> (Result<(), Failure>, bool) {
    let (events, received) = mpsc::channel();
    let worker = transfer.clone();
    std::thread::spawn(move || {
        let result = worker.run(events.clone());
        let _ = events.send(Event::End(result));
    });
    let mut brought_bytes = false;
    let result = loop {
        match received.recv_timeout(limits.stall) {
            Ok(Event::Start { size, done }) => progress.start(&transfer.file, size, done),
            Ok(Event::Bytes(bytes)) => {
                brought_bytes = true;
                progress.advance(bytes);
            }
            Ok(Event::End(result)) => break result,
            Err(RecvTimeoutError::Timeout) => break Err(Failure::Stalled),
            // hf-hub asserts some of what a server sends.
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Failure::Protocol(format!("{} cannot be fetched", transfer.file)));
            }
        }
    };
    if result.is_ok() && brought_bytes {
        progress.finish();
    }
    (result, brought_bytes)
}

impl Transfer {
    fn run(&self, events: Sender<Event>) -> Result<(), Failure> {
        let remote = self.api.repo(self.repo.clone());
        let metadata = self.api.metadata(&remote.url(&self.file))?;
        // Both become parts of paths.
        if metadata.commit_hash() != self.commit || !is_plain_etag(metadata.etag()) {
            return Err(Failure::Protocol(format!("{} is not of this commit", self.file)));
        }
        let size = metadata.size() as u64;
        let local = Cache::new(self.root.clone()).repo(self.repo.clone());
        let blob = local.blob_path(metadata.etag());
        if fs::symlink_metadata(&self.pointer).is_ok() && !self.pointer.exists() {
            // A dangling link would stop hf-hub from making its own.
            fs::remove_file(&self.pointer)?;
        }
        if is_there(&blob, Some(size)) {
            return self.link(metadata.etag());
        }
        prepare_part(&blob.with_extension("part"), size)?;
        remote.download_with_progress(&self.file, Sink { events, size: 0, started: false })?;
        if is_there(&self.pointer, Some(size)) {
            return Ok(());
        }
        // A server that ignores Range gives the whole file again after the part that was there.
        let _ = fs::remove_file(&blob);
        let _ = fs::remove_file(&self.pointer);
        Err(Failure::Damaged(format!("{} came with a wrong length", self.file)))
    }

    /// The blob of another revision: hf-hub would fetch it again.
    fn link(&self, etag: &str) -> Result<(), Failure> {
        if let Some(folder) = self.pointer.parent() {
            fs::create_dir_all(folder)?;
        }
        let _ = fs::remove_file(&self.pointer);
        let target = Path::new("../../blobs").join(etag);
        Ok(std::os::unix::fs::symlink(target, &self.pointer)?)
    }
}

/// hf-hub asks for what lies after the part's end. A complete part (killed before its renaming)
/// would be answered with 416 for ever, so it loses its last byte; a part that is too long begins
/// anew.
fn prepare_part(part: &Path, size: u64) -> Result<(), Failure> {
    let Ok(metadata) = fs::metadata(part) else { return Ok(()) };
    if metadata.len() > size || size == 0 {
        fs::remove_file(part)?;
    } else if metadata.len() == size {
        fs::OpenOptions::new().write(true).open(part)?.set_len(size - 1)?;
    }
    Ok(())
}

pub(super) fn is_there(path: &Path, size: Option<u64>) -> bool {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|found| found.len());
    found.is_some() && (size.is_none() || found == size)
}

/// Passes hf-hub's progress on. Its first update is where the download continues.
struct Sink {
    events: Sender<Event>,
    size: u64,
    started: bool,
}

impl hf_hub::api::Progress for Sink {
    fn init(&mut self, size: usize, _filename: &str) {
        self.size = size as u64;
    }

    fn update(&mut self, bytes: usize) {
        let event = match self.started {
            false => Event::Start { size: self.size, done: bytes as u64 },
            true => Event::Bytes(bytes as u64),
        };
        // At the end hf-hub reports a read of nothing.
        if !self.started || bytes > 0 {
            let _ = self.events.send(event);
        }
        self.started = true;
    }

    fn finish(&mut self) {}
}
