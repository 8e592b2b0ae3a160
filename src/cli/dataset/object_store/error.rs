//! `StoreError`: why an object cannot be read or written. Its text shows no URL and no secret.

use std::fmt;
use std::io;

use crate::terminal::error::CliError;
use crate::terminal::exit::Exit;

/// What callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A name, a variable or a profile that cannot be used.
    BadName,
    /// No such bucket or object.
    NotFound,
    /// No credentials, or they do not suffice.
    Access,
    /// It cannot be reached, or broke off again and again.
    Network,
    /// The object is another one than before.
    Changed,
    /// There is an object already, which is not to be replaced.
    Exists,
    /// The file on this machine that takes part.
    Disk,
}

/// A failure with its remedy.
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: ErrorKind,
    message: String,
    help: Option<String>,
}

impl StoreError {
    /// A failure without remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), help: None }
    }

    /// Adds what to do about it.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// A file on this machine.
    pub fn disk(action: impl fmt::Display, error: &io::Error) -> Self {
        Self::new(ErrorKind::Disk, format!("cannot {action}: {error}"))
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}

impl From<StoreError> for io::Error {
    fn from(error: StoreError) -> Self {
        io::Error::other(error)
    }
}

impl CliError {
    /// An object store, before the first row.
    pub fn from_store(error: StoreError) -> Self {
        let (exit, code) = match error.kind {
            ErrorKind::BadName => (Exit::Refused, "object_name"),
            ErrorKind::NotFound => (Exit::Refused, "object_not_found"),
            ErrorKind::Access => (Exit::Refused, "object_access"),
            ErrorKind::Network => (Exit::Refused, "object_store"),
            ErrorKind::Changed => (Exit::Stopped, "object_changed"),
            ErrorKind::Exists => (Exit::OutputExists, "output_exists"),
            ErrorKind::Disk => (Exit::Stopped, "object_copy"),
        };
        Self { help: error.help, ..Self::new(exit, code, error.message) }
    }

    /// The same in the middle of a run: what was written stays.
    pub fn from_store_midway(error: StoreError) -> Self {
        let error = Self::from_store(error);
        let exit = if error.exit == Exit::Refused { Exit::Stopped } else { error.exit };
        Self { exit, ..error }
    }
}
