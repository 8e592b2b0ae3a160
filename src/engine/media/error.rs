//! Why a medium cannot be used: a fault of one row, with a stable code.

use std::fmt;
use std::io;

/// A fault of one medium. Its message says what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MediaError {
    /// The bytes are not what their format says: cut, damaged, or of no known format.
    Decode(String),
    /// There are more pixels, seconds or bytes than the limits allow.
    TooLarge(String),
    /// There is no such file, or it cannot be read.
    NotFound(String),
    /// It may not be read: it is outside the folders that are allowed, or at an address that is
    /// not.
    Forbidden(String),
    /// Its bytes are others than when it was first read.
    Changed(String),
    /// A valid file of a kind that is not read, such as 12 bits for each sample of a JPEG.
    Unsupported(String),
    /// It is elsewhere, and cannot be had: the code of whoever asked for it, and why.
    Unfetched(&'static str, String),
}

impl MediaError {
    /// Stable code of an error row.
    pub fn code(&self) -> &'static str {
        match self {
            MediaError::Decode(_) => "media_decode",
            MediaError::TooLarge(_) => "media_too_large",
            MediaError::NotFound(_) => "media_not_found",
            MediaError::Forbidden(_) => "media_forbidden",
            MediaError::Changed(_) => "media_changed",
            MediaError::Unsupported(_) => "media_unsupported",
            MediaError::Unfetched(code, _) => code,
        }
    }

    /// A file that the system does not give.
    pub fn unreadable(error: &io::Error) -> Self {
        MediaError::NotFound(match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            io::ErrorKind::InvalidData => error.to_string(),
            _ => format!("cannot be read: {error}"),
        })
    }

    /// Its bytes are others than those that its row was read with.
    pub fn changed() -> Self {
        let what = "it has changed since its row was read; leave files as they are during a run";
        MediaError::Changed(what.to_owned())
    }

    pub(crate) fn decode(what: impl fmt::Display) -> Self {
        MediaError::Decode(what.to_string())
    }

    pub(crate) fn unsupported(what: impl fmt::Display) -> Self {
        MediaError::Unsupported(what.to_string())
    }
}

impl fmt::Display for MediaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MediaError::Decode(message)
            | MediaError::TooLarge(message)
            | MediaError::NotFound(message)
            | MediaError::Forbidden(message)
            | MediaError::Changed(message)
            | MediaError::Unsupported(message)
            | MediaError::Unfetched(_, message) => f.write_str(message),
        }
    }
}

impl std::error::Error for MediaError {}
