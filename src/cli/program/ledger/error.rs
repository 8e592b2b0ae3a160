//! `LedgerError`: why an output cannot be begun, or not be written to its end. `at_start` and
//! `midway` say how the process ends with it.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::names::Named;
use vllm_batch_dataset::object_store::StoreError;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Why rows cannot be kept or written.
#[derive(Debug)]
pub enum LedgerError {
    /// The file exists, and no run of this program made it (exit 6).
    Exists(PathBuf),
    /// The file exists, and is no document of the kind that a flag writes (exit 6).
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The flag.
        flag: String,
        /// What it writes.
        what: &'static str,
    },
    /// The file is complete, and made by another command or of another input (exit 6).
    Complete {
        /// The output.
        path: PathBuf,
        /// What is different.
        differences: Vec<String>,
    },
    /// The file is not what its run wrote (exit 6).
    Changed {
        /// The output, or the file of its error rows.
        path: PathBuf,
        /// How it differs.
        difference: String,
    },
    /// This part has rows, and the journal that they came from is gone (exit 6).
    Unfinished(PathBuf),
    /// Another run writes this file (exit 6).
    Locked(PathBuf),
    /// The beginning of this journal is damaged (exit 6).
    NoJournal(PathBuf),
    /// This file is no journal (exit 6).
    Foreign(PathBuf),
    /// The journal is that of a run whose bytes would differ (exit 6).
    Differs {
        /// The journal.
        path: PathBuf,
        /// What is different, one line each.
        differences: Vec<String>,
    },
    /// The first would replace the second, which is read (exit 2).
    IsRead(Box<(Named, Named)>),
    /// Two outputs of one run are one file (exit 2).
    Twice(Box<(Named, Named)>),
    /// This folder does not exist (exit 2).
    NoFolder(PathBuf),
    /// What has this name is not a regular file, and no file is to take its place (exit 2).
    NoFile {
        /// The name.
        path: PathBuf,
        /// What it is, e.g. `a folder`.
        what: &'static str,
    },
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
            LedgerError::NotOurs { path, flag, what } => {
                write!(f, "{} exists, and is no {what}: {flag} would replace it", path.display())
            }
            LedgerError::Complete { path, differences } => {
                write!(f, "{} is complete, of another run:", path.display())?;
                list(f, differences)
            }
            LedgerError::Changed { path, difference } => {
                write!(f, "{} is not what its run wrote: {difference}", path.display())
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
            LedgerError::Foreign(path) => write!(f, "{} is no journal", path.display()),
            LedgerError::IsRead(pair) => {
                let (Named { what: by, .. }, Named { what, path, .. }) = &**pair;
                write!(f, "{} is {what}: {by} would replace it", path.display())
            }
            LedgerError::Twice(pair) => {
                let (Named { what: one, .. }, Named { what: other, path, .. }) = &**pair;
                write!(f, "{one} and {other} are one file: {}", path.display())
            }
            LedgerError::NoFolder(folder) => write!(f, "no such folder: {}", folder.display()),
            LedgerError::NoFile { path, what } => write!(f, "{} is {what}", path.display()),
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

/// A file that cannot be read.
pub fn unreadable(path: &Path, error: io::Error) -> LedgerError {
    LedgerError::of(format!("read {}", path.display()), error)
}

impl LedgerError {
    /// Output that cannot be written, at the start of a run.
    pub fn at_start(self) -> CliError {
        if let LedgerError::Io { source, .. } = &self
            && let Some(error) =
                source.get_ref().and_then(|inner| inner.downcast_ref::<StoreError>())
        {
            return CliError::from_store(error.clone());
        }
        let (exit, code, help) = match &self {
            LedgerError::Exists(_) => {
                let help = "choose another --out, or replace it with --overwrite";
                (Exit::OutputExists, "output_exists", Some(help))
            }
            LedgerError::NotOurs { flag, .. } => {
                let help = format!("choose another name for {flag}, or move the file away");
                let error = CliError::new(Exit::OutputExists, "output_exists", self.to_string());
                return error.help(help);
            }
            LedgerError::Complete { .. } => {
                let help = "choose another --out, or start over with --overwrite";
                (Exit::OutputExists, "output_complete", Some(help))
            }
            LedgerError::Unfinished(_) => {
                let help = "move it away, or give --overwrite";
                (Exit::OutputExists, "output_unfinished", Some(help))
            }
            LedgerError::Locked(_) => {
                let help = "wait until it ends, or choose another name";
                (Exit::OutputExists, "output_locked", Some(help))
            }
            LedgerError::Changed { .. } => {
                let help = "put back what the run wrote, or start over with --overwrite";
                (Exit::OutputExists, "output_changed", Some(help))
            }
            LedgerError::NoJournal(_) => {
                let help = "move it away, or start over with --overwrite";
                (Exit::OutputExists, "journal", Some(help))
            }
            LedgerError::Foreign(_) => {
                (Exit::OutputExists, "journal", Some("move it away, or choose another --journal"))
            }
            LedgerError::Differs { .. } => {
                let help = "give the flags and the model of that run to continue it, or start over \
                            with --overwrite";
                (Exit::OutputExists, "journal_differs", Some(help))
            }
            LedgerError::IsRead(_) | LedgerError::Twice(_) => {
                (Exit::Refused, "output", Some("choose another name"))
            }
            LedgerError::NoFolder(_) => {
                (Exit::Refused, "output", Some("make it with mkdir -p, or choose another name"))
            }
            LedgerError::NoFile { .. } => {
                (Exit::Refused, "output", Some("move it away, or choose another name"))
            }
            LedgerError::BrokenPipe => (Exit::BrokenPipe, "broken_pipe", None),
            LedgerError::Full { .. } => (Exit::Stopped, "disk_full", Some("free some space")),
            LedgerError::Io { .. } => (Exit::Refused, "output", None),
        };
        let help = help.map(str::to_owned);
        CliError { help, ..CliError::new(exit, code, self.to_string()) }
    }

    /// Output that cannot be written in the middle of a run: what was written stays, so it is no
    /// refusal.
    pub fn midway(self) -> CliError {
        let error = self.at_start();
        let exit = if error.exit == Exit::Refused { Exit::Stopped } else { error.exit };
        CliError { exit, ..error }
    }
}
