//! `Ready`: the line on a descriptor of whoever started the program, when the model is loaded.
//! `docs/PROTOCOL.md` says what it is.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

use serde_json::json;

use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Number of the protocol that `docs/PROTOCOL.md` writes down.
const PROTOCOL: u32 = 1;

/// Standard input and standard output carry rows.
const FIRST_FREE: u32 = 2;

/// `--ready-fd`, open for writing until the line is written.
pub struct Ready(Cell<Option<File>>);

impl Ready {
    /// Opens the descriptor again, before anything else may get its number.
    ///
    /// # Errors
    /// There is no such descriptor, or nobody reads it.
    pub fn open(fd: Option<u32>) -> Result<Self, CliError> {
        let Some(fd) = fd else { return Ok(Self(Cell::default())) };
        if fd < FIRST_FREE {
            let message = format!("--ready-fd {fd}: descriptors 0 and 1 carry rows");
            return Err(CliError::refused("ready_fd", message).help("give 2 or above"));
        }
        // A pipe whose reader has gone would be waited for.
        let mut options = OpenOptions::new();
        options.append(true).custom_flags(libc::O_NONBLOCK);
        let file = options.open(format!("/proc/self/fd/{fd}"));
        file.map(|file| Self(Cell::new(Some(file)))).map_err(|error| {
            let message = format!("--ready-fd {fd}: cannot open the descriptor: {error}");
            CliError::refused("ready_fd", message)
                .help("it must be a pipe or a file that the program inherits, open for writing")
        })
    }

    /// Whether somebody waits for the model before any row is sent.
    pub fn is_awaited(&self) -> bool {
        let file = self.0.take();
        let is_awaited = file.is_some();
        self.0.set(file);
        is_awaited
    }

    /// Says that the model is loaded; the first time only, if another is loaded in its place.
    ///
    /// # Errors
    /// Nobody reads the line, so nobody waits for the rows.
    pub fn say(&self, max_model_len: usize) -> Result<(), CliError> {
        let Some(mut file) = self.0.take() else { return Ok(()) };
        let version = env!("CARGO_PKG_VERSION");
        let line = json!({
            "ready": true, "protocol": PROTOCOL, "version": version, "max_model_len": max_model_len,
        });
        file.write_all(format!("{line}\n").as_bytes()).map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::BrokenPipe => Exit::BrokenPipe,
                _ => Exit::Stopped,
            };
            CliError::new(exit, "ready_fd", format!("cannot write to --ready-fd: {error}"))
        })
    }
}
