//! Why a model could not be found or fetched, and what to do about it.

use std::fmt;

/// The classes of failure that scripts may tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubErrorKind {
    /// The name or revision is not well formed.
    BadName,
    /// No such folder, repository or revision.
    NotFound,
    /// The hub wants a token, or another one.
    Access,
    /// Not in the cache, and a variable forbids requests.
    Offline,
    /// The hub cannot be reached, or the connection broke.
    Network,
    /// The cache folder cannot be read or written.
    Storage,
    /// The machine refuses what reading takes.
    Machine,
    /// A file that every model has is not there.
    Incomplete,
    /// A file name or link that leads out of the folder.
    Unsafe,
    /// Weights only in a format that is not read.
    Unsupported,
}

/// A failure with its remedy. Its text never holds the token nor a URL.
#[derive(Clone, Debug)]
pub struct HubError {
    kind: HubErrorKind,
    message: String,
    help: String,
}

impl HubError {
    pub(super) fn new(
        kind: HubErrorKind,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { kind, message: message.into(), help: help.into() }
    }

    /// The class of the failure.
    pub fn kind(&self) -> HubErrorKind {
        self.kind
    }

    /// What goes after `help: `.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// The stable word of `error[word]`.
    pub fn code(&self) -> &'static str {
        match self.kind {
            HubErrorKind::BadName => "bad_model_name",
            HubErrorKind::NotFound => "model_not_found",
            HubErrorKind::Access => "model_access",
            HubErrorKind::Offline => "hub_offline",
            HubErrorKind::Network => "hub_unreachable",
            HubErrorKind::Storage => "model_cache",
            HubErrorKind::Machine => "machine",
            HubErrorKind::Incomplete => "model_incomplete",
            HubErrorKind::Unsafe => "model_unsafe",
            HubErrorKind::Unsupported => "model_unsupported",
        }
    }

    /// 7 when the files are rejected, 5 when the disk or the machine stopped it (a rerun
    /// continues), else 2.
    pub fn exit_code(&self) -> u8 {
        match self.kind {
            HubErrorKind::Incomplete | HubErrorKind::Unsafe | HubErrorKind::Unsupported => 7,
            HubErrorKind::Storage | HubErrorKind::Machine => 5,
            HubErrorKind::BadName
            | HubErrorKind::NotFound
            | HubErrorKind::Access
            | HubErrorKind::Offline
            | HubErrorKind::Network => 2,
        }
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HubError {}
