//! What the files of a run are, whatever they are called: none of them may be another one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::LedgerError;
use super::storage::identity;
use crate::engine::weight_files::{gguf_parts, is_gguf_model};

/// A file of a run, and what it is to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As messages call it: a flag, or words.
    pub what: Cow<'static, str>,
    /// Its name.
    pub path: PathBuf,
}

impl Named {
    /// A file under a name.
    pub fn new(what: impl Into<Cow<'static, str>>, path: impl Into<PathBuf>) -> Self {
        Self { what: what.into(), path: path.into() }
    }
}

/// Where a name is, however it is spelled. Runs that claim several names do it in this order, so
/// that one of them gets all of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The name in a folder.
    In {
        /// What all names of the folder have in common.
        folder: (u64, u64),
        /// The last part of the name.
        name: OsString,
    },
    /// There is no such folder.
    Unknown(PathBuf),
}

impl Place {
    /// The place of a name. A link in the last part is not followed.
    pub fn of(path: &Path) -> Self {
        match (fs::metadata(folder_of(path)), path.file_name()) {
            (Ok(folder), Some(name)) => {
                Place::In { folder: identity(&folder), name: name.to_owned() }
            }
            _ => Place::Unknown(path.to_owned()),
        }
    }
}

/// The folder that a name is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file's identity. Devices and pipes have none: any number of outputs may go to `/dev/null`.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().filter(|found| found.is_file()).map(|found| identity(&found))
}

/// Refuses files to be written that are one, under any spelling or as hard links.
///
/// # Errors
/// Two of them are.
pub fn refuse_twice(written: &[Named]) -> Result<(), LedgerError> {
    let known: Vec<_> =
        written.iter().map(|named| (Place::of(&named.path), file_at(&named.path))).collect();
    for (index, (place, file)) in known.iter().enumerate() {
        let is_same = |(other, same): &(Place, Option<(u64, u64)>)| {
            place == other || (file.is_some() && file == same)
        };
        if let Some(first) = known[..index].iter().position(is_same) {
            let (one, other) = (written[first].clone(), written[index].clone());
            return Err(LedgerError::Twice(Box::new((one, other))));
        }
    }
    Ok(())
}

/// Refuses to write what is read.
///
/// # Errors
/// A file to be written is one that is read.
pub fn refuse_read(written: &[Named], read: &[Named]) -> Result<(), LedgerError> {
    let written: Vec<_> = written.iter().map(|named| (named, file_at(&named.path))).collect();
    for of_read in read {
        let Some(file) = file_at(&of_read.path) else { continue };
        if let Some((named, _)) = written.iter().find(|(_, found)| *found == Some(file)) {
            return Err(LedgerError::IsRead(Box::new(((*named).clone(), of_read.clone()))));
        }
    }
    Ok(())
}

/// How the names of a model's files end. Outputs may be in its folder too.
const MODEL_FILES: [&str; 14] = [
    ".safetensors",
    ".bin",
    ".gguf",
    ".model",
    ".jinja",
    "config.json",
    ".index.json",
    "tokenizer.json",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "_tokens_map.json",
    "added_tokens.json",
];

/// The files of a model in a folder; or a GGUF file, with all of its parts.
pub fn files_of_model(model: &Path) -> Vec<Named> {
    if is_gguf_model(model) {
        let parts = gguf_parts(model).into_iter();
        return parts.map(|path| Named::new("a file of the model", path)).collect();
    }
    let Ok(entries) = fs::read_dir(model) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        MODEL_FILES.iter().any(|end| name.ends_with(end)) || name == "chat_template.json"
    };
    paths.filter(is_one).map(|path| Named::new("a file of the model", path)).collect()
}
