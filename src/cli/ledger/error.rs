//! `LedgerError`: why an output cannot be begun, or not be written to its end.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why rows cannot be kept or written.
#[derive(Debug)]
pub enum LedgerError {
    /// The file exists, and no run of this program made it (exit 6).
    Exists(PathBuf),
    /// The file is complete, and made by another command or of another input (exit 6).
    Complete {
        /// The output.
        path: PathBuf,
        /// What is different.
        differences: Vec<String>,
    },
    /// This part has rows, and the journal that they came from is gone (exit 6).
    Unfinished(PathBuf),
    /// Another run has this journal (exit 6).
    Locked(PathBuf),
    /// This file is no journal, or its beginning is damaged (exit 6).
    NoJournal(PathBuf),
    /// The journal is that of a run whose bytes would differ (exit 6).
    Differs {
        /// The journal.
        path: PathBuf,
        /// What is different, one line each.
        differences: Vec<String>,
    },
    /// It would replace the input (exit 2).
    SameAsInput(PathBuf),
    /// Two outputs of one run have this name (exit 2).
    Twice(PathBuf),
    /// The reader of standard output went away (exit 141).
    BrokenPipe,
    /// No space, or over quota (exit 5).
    Full {
        /// What was tried, e.g. `write out.jsonl.part`.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else (exit 5 in the middle of a run, 2 at its start).
    Io {
        /// What was tried.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

impl LedgerError {
    /// What the system said about an action.
    pub fn of(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        match source.kind() {
            ErrorKind::BrokenPipe => LedgerError::BrokenPipe,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                LedgerError::Full { action, source }
            }
            _ => LedgerError::Io { action, source },
        }
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerError::Exists(path) => write!(f, "{} exists", path.display()),
            LedgerError::Complete { path, differences } => {
                write!(f, "{} is complete, of another run:", path.display())?;
                list(f, differences)
            }
            LedgerError::Unfinished(part) => {
                write!(f, "{} holds rows of an unfinished run without journal", part.display())
            }
            LedgerError::Locked(path) => write!(f, "another run has {}", path.display()),
            LedgerError::NoJournal(path) => {
                write!(f, "{} is no journal, or damaged at its beginning", path.display())
            }
            LedgerError::Differs { path, differences } => {
                write!(f, "{} belongs to another run:", path.display())?;
                list(f, differences)
            }
            LedgerError::SameAsInput(path) => {
                write!(f, "{} is the input: the output would replace it", path.display())
            }
            LedgerError::Twice(path) => {
                write!(f, "{} is named for two outputs", path.display())
            }
            LedgerError::BrokenPipe => f.write_str("the reader of the output went away"),
            LedgerError::Full { action, source } | LedgerError::Io { action, source } => {
                write!(f, "cannot {action}: {source}")
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, lines: &[String]) -> fmt::Result {
    lines.iter().try_for_each(|line| write!(f, "\n  {line}"))
}

impl std::error::Error for LedgerError {}
