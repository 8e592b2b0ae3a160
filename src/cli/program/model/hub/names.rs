//! Names that come from users and from other people's repositories, checked before they become
//! paths or URLs.

use std::fmt;
use std::path::Path;

use hf_hub::{Repo, RepoType};

use super::{HubError, HubErrorKind};

/// A well-formed `org/name` (or the hub's older one-part `name`): of a model, or of a dataset.
#[derive(Clone, Debug)]
pub(super) struct RepoId {
    id: String,
    kind: RepoType,
}

impl RepoId {
    /// By the hub's own rules: at most 96 characters, two parts of letters, digits, `-`, `_` and
    /// `.`.
    pub fn parse(name: &str) -> Result<Self, HubError> {
        let well_formed = name.len() <= 96
            && name.split('/').count() <= 2
            && name.split('/').all(is_repo_part)
            && !name.ends_with(".git");
        if well_formed {
            return Ok(Self { id: name.to_string(), kind: RepoType::Model });
        }
        Err(HubError::new(
            HubErrorKind::BadName,
            format!("{} is neither a folder nor a Hugging Face model id", quoted(name)),
            "give a folder that exists, or an id of the form org/name",
        ))
    }

    /// The same of a dataset.
    pub fn dataset(name: &str) -> Result<Self, HubError> {
        match Self::parse(name) {
            Ok(repo) => Ok(Self { kind: RepoType::Dataset, ..repo }),
            Err(_) => Err(HubError::new(
                HubErrorKind::BadName,
                format!("{} is no dataset of the hub", quoted(name)),
                "name files as in hf://datasets/OWNER/NAME/data/*.parquet",
            )),
        }
    }

    /// The repository at a revision, as hf-hub has it.
    pub fn at(&self, revision: &Revision) -> Repo {
        Repo::with_revision(self.id.clone(), self.kind, revision.0.clone())
    }

    /// `models--org--name`.
    pub fn folder_name(&self) -> String {
        Repo::new(self.id.clone(), self.kind).folder_name()
    }

    /// `models/org/name`, as the hub's API has it: no part of a name has `--` in it.
    pub fn api_name(&self) -> String {
        self.folder_name().replace("--", "/")
    }
}

/// As the paths of its files begin: `org/name`, `datasets/org/name`.
impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.api_name();
        f.write_str(name.strip_prefix("models/").unwrap_or(&name))
    }
}

fn is_repo_part(part: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let edge = |c: char| c.is_ascii_alphanumeric() || c == '_';
    part.starts_with(edge)
        && part.ends_with(edge)
        && part.chars().all(inner)
        && !part.contains("--")
        && !part.contains("..")
}

/// A well-formed branch, tag, `refs/pr/1` or commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision(String);

impl Revision {
    /// Only characters that stand for themselves in a path and in a URL.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '@');
        let part_is_plain = |part: &str| {
            !part.is_empty()
                && part != "."
                && !part.contains("..")
                && !part.starts_with('-')
                && part.chars().all(plain)
        };
        if text.len() <= 200 && text.split('/').all(part_is_plain) {
            return Ok(Self(text.to_string()));
        }
        Err(HubError::new(
            HubErrorKind::BadName,
            format!("{} is not a revision", quoted(text)),
            "give a branch, a tag or a 40-digit commit",
        ))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether the text can only have been meant as a path.
pub(super) fn looks_like_path(name: &str) -> bool {
    Path::new(name).is_absolute()
        || name.starts_with(['.', '~'])
        || name.ends_with('/')
        || name.contains('\\')
        || name.matches('/').count() > 1
}

/// A git commit, as it names a snapshot folder.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A blob name: git and sha256 hashes, and what mirrors make of them, but never a path.
pub(super) fn is_plain_etag(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    !text.is_empty() && text.len() <= 128 && text.bytes().all(plain)
}

/// What the hub names the blobs of large files by.
pub(super) fn is_sha256(etag: &str) -> bool {
    etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A file directly within a folder: no separator, no `..`, nothing a terminal or a C string would
/// misread.
pub(super) fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.contains("..")
        && !name.contains(['/', '\\', ':'])
        && !name.chars().any(char::is_control)
}

/// For messages: quoted, control characters escaped, long hostile text cut.
pub(super) fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(120).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("`{}{dots}`", cut.escape_debug())
}
