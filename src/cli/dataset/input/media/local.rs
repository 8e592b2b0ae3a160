//! Files of images: which of them may be read, and how.

use std::borrow::Cow;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::Place;
use vllm_batch_base::{files, machine};
use vllm_batch_media::{Encoded, Limits, MediaError};

/// The folders beneath which files may be read, with all links resolved.
#[derive(Debug)]
pub(super) struct Folders {
    /// What paths are relative to.
    base: Option<PathBuf>,
    of_rows: OfRows,
    allowed: Option<PathBuf>,
}

/// What the place of the rows allows.
#[derive(Debug)]
enum OfRows {
    /// The user named each file.
    Any,
    /// Files beneath a folder, if it is there.
    Beneath(Option<PathBuf>),
}

impl Folders {
    pub(super) fn new(allowed: Option<&Path>) -> Self {
        Self {
            base: None,
            of_rows: OfRows::Beneath(None),
            allowed: allowed.and_then(|folder| folder.canonicalize().ok()),
        }
    }

    pub(super) fn begin(&mut self, place: Place<'_>) {
        let resolved = |folder: &Path| folder.canonicalize().ok();
        let current = || resolved(Path::new("."));
        (self.base, self.of_rows) = match place {
            Place::Folder(folder) => (resolved(folder), OfRows::Beneath(resolved(folder))),
            Place::Store => (None, OfRows::Beneath(None)),
            Place::Named => (current(), OfRows::Any),
            Place::Beneath(folder) => (current(), OfRows::Beneath(resolved(folder))),
        };
    }

    /// The file of a path. It may not lead out of the folders, by `..` or by a link.
    pub(super) fn file(&self, path: &Path) -> Result<ImageFile, MediaError> {
        let joined = match (&self.base, path.is_absolute()) {
            (_, true) => path.to_owned(),
            (Some(folder), false) => folder.join(path),
            (None, false) => {
                return Err(MediaError::Forbidden(
                    "the rows are in no folder of this machine; help: give absolute paths \
                     beneath --allowed-local-media-path DIR"
                        .to_owned(),
                ));
            }
        };
        match joined.canonicalize() {
            Ok(found) if self.is_allowed(&found) => Ok(ImageFile(found)),
            Err(error) if self.is_allowed(&without_dots(&joined)) => Err(unreadable(&error)),
            // Whether there is such a file is not said.
            Ok(_) | Err(_) => Err(MediaError::Forbidden(
                "outside of the folder of the dataset; help: --allowed-local-media-path DIR \
                 allows the files beneath DIR"
                    .to_owned(),
            )),
        }
    }

    fn is_allowed(&self, path: &Path) -> bool {
        let is_beneath = |folder: &Option<PathBuf>| {
            folder.as_ref().is_some_and(|folder| path.starts_with(folder))
        };
        match &self.of_rows {
            OfRows::Any => true,
            OfRows::Beneath(folder) => is_beneath(folder) || is_beneath(&self.allowed),
        }
    }
}

/// A path without `.` and `..`, by its text alone.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// A file that may be read. Its bytes are not kept.
#[derive(Clone, Debug)]
pub(super) struct ImageFile(PathBuf);

impl ImageFile {
    /// What the machine lacks to open it.
    pub(super) fn refusal(&self) -> Option<io::Error> {
        files::open(&self.0).err().filter(machine::is_refusal)
    }
}

impl Encoded for ImageFile {
    fn read(&self, limits: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        let max = limits.max_bytes;
        let file = files::open(&self.0).map_err(|error| unreadable(&error))?;
        let mut bytes = Vec::new();
        // Asked before it is read; a file may grow all the same.
        let mut len = file.metadata().map_err(|error| unreadable(&error))?.len();
        if len <= max {
            bytes.reserve_exact(len as usize + 1);
            let read = file.take(max + 1).read_to_end(&mut bytes);
            len = read.map_err(|error| unreadable(&error))? as u64;
        }
        match len > max {
            true => Err(MediaError::TooLarge(format!(
                "the file has {len} bytes, and {max} are the most; help: make it smaller"
            ))),
            false => Ok(Cow::Owned(bytes)),
        }
    }
}

/// Why a file that a row names cannot be read.
fn unreadable(error: &io::Error) -> MediaError {
    match error.kind() {
        io::ErrorKind::NotFound => MediaError::NotFound(
            "there is no such file; help: paths are relative to the folder of the dataset's file"
                .to_owned(),
        ),
        _ => MediaError::unreadable(error),
    }
}
