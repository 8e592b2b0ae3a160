//! PDF files as pages of pixels. They are parsed and drawn by processes of their own, which may die
//! or be ended without the run. A process has one file at a time, and keeps it while pages of it
//! are asked for.

mod child;
mod draw;
mod frames;
mod patience;
mod process;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::child::serve;
pub use self::draw::OpenPdf;
use self::process::{Failure, Process};
use vllm_batch_base::machine::{self, Refused};
use vllm_batch_media::MediaError;

/// Who draws pages. It is in the identity of each, so that pages of another version are others.
pub(super) const DRAWN_BY: &str = "hayro 0.9.0";

/// Processes that wait for work at most.
const MAX_IDLE: usize = 16;

/// Width and height of each page of a file, in units of 1/72 of an inch.
pub(super) type PageUnits = Vec<(f32, f32)>;

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    File(PathBuf),
    Bytes(Arc<Vec<u8>>),
}

impl Origin {
    /// Bytes that are in memory.
    pub(super) fn num_bytes_held(&self) -> usize {
        match self {
            Origin::File(_) => 0,
            Origin::Bytes(bytes) => bytes.len(),
        }
    }
}

/// A file that was opened once.
#[derive(Debug)]
pub(super) struct PdfFile {
    origin: Origin,
    hash: [u8; 32],
}

impl PdfFile {
    /// The blake3 of its bytes.
    pub(super) fn hash(&self) -> &[u8; 32] {
        &self.hash
    }
}

/// How large a page is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PageSize {
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Pixels of a unit.
    pub scale: f64,
}

/// The processes, as many as somebody asks at once.
pub(super) struct Renderers {
    idle: Mutex<Vec<Process>>,
    /// What a page may take, and a file to be parsed.
    limit: Duration,
}

impl fmt::Debug for Renderers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renderers")
    }
}

impl Renderers {
    pub(super) fn new(max_seconds: u64) -> Self {
        Self { idle: Mutex::default(), limit: Duration::from_secs(max_seconds) }
    }

    /// Reads a file, and says how large its pages are.
    pub(super) fn open(&self, origin: Origin) -> Result<(Arc<PdfFile>, PageUnits), MediaError> {
        self.with(None, |process| {
            let (hash, sizes) = process.load(&origin, self.limit)?;
            Ok((Arc::new(PdfFile { origin: origin.clone(), hash }), sizes))
        })
    }

    /// The pixels of a page from 1, as a bitmap of Windows.
    pub(super) fn draw(
        &self,
        file: &PdfFile,
        page: u32,
        size: PageSize,
    ) -> Result<Vec<u8>, MediaError> {
        self.with(Some(&file.hash), |process| {
            if process.loaded() != Some(&file.hash) {
                let (hash, _) = process.load(&file.origin, self.limit)?;
                if hash != file.hash {
                    return Err(Failure::Fault(MediaError::changed()));
                }
            }
            process.draw(page, size, self.limit)
        })
    }

    /// Asks a process, one that has the file if there is one. Who has died is not asked again.
    fn with<T>(
        &self,
        hash: Option<&[u8; 32]>,
        ask: impl FnOnce(&mut Process) -> Result<T, Failure>,
    ) -> Result<T, MediaError> {
        let mut process = self.taken(hash)?;
        match ask(&mut process) {
            Err(Failure::Ended(error)) => Err(error),
            asked => {
                let mut idle = self.idle();
                if idle.len() < MAX_IDLE {
                    idle.push(process);
                }
                asked.map_err(Failure::into_error)
            }
        }
    }

    fn taken(&self, hash: Option<&[u8; 32]>) -> Result<Process, MediaError> {
        let mut idle = self.idle();
        let has_it = |process: &Process| hash.is_some() && process.loaded() == hash;
        match idle.iter().position(has_it) {
            Some(at) => return Ok(idle.remove(at)),
            None if !idle.is_empty() => return Ok(idle.remove(0)),
            None => drop(idle),
        }
        Process::start().map_err(|error| {
            if machine::is_refusal(&error) {
                // No row is to blame.
                machine::granted(Err(Refused(format!("the system refused a process: {error}"))))
            }
            MediaError::Unsupported(format!("pages of PDF files cannot be drawn: {error}"))
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
