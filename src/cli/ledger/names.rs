//! What the files of a run are, whatever they are called: none of them may be another one.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::LedgerError;
use super::storage::identity;
use crate::engine::pooling::ListedModule;
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
const MODEL_FILES: [&str; 16] = [
    ".safetensors",
    ".bin",
    ".pt",
    ".gguf",
    ".model",
    ".jinja",
    "config.json",
    "modules.json",
    ".index.json",
    "tokenizer.json",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "_tokens_map.json",
    "added_tokens.json",
];

/// The files of a model in a folder, with those of its modules in folders of their own; or a GGUF
/// file, with all of its parts.
pub fn files_of_model(model: &Path) -> Vec<Named> {
    let paths = match is_gguf_model(model) {
        true => gguf_parts(model),
        false => {
            // A list that cannot be read refuses the model, whatever the files of the run are.
            let modules = ListedModule::list(model).ok().flatten().unwrap_or_default();
            let inside = modules.iter().filter(|module| !module.folder.is_empty());
            let inside = inside.flat_map(|module| files_in(&model.join(&module.folder)));
            files_in(model).into_iter().chain(inside).collect()
        }
    };
    paths.into_iter().map(|path| Named::new("a file of the model", path)).collect()
}

/// The files of a folder that have names of a model's.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        MODEL_FILES.iter().any(|end| name.ends_with(end)) || name == "chat_template.json"
    };
    entries.flatten().map(|entry| entry.path()).filter(is_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_in_folders_are_files_of_a_model() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(folder_of(&path)).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let list = r#"[{"path": "", "type": "a.Transformer"},
                       {"path": "2_Dense", "type": "a.Dense"}]"#;
        write("modules.json", list);
        for name in ["config.json", "sparse_linear.pt", "2_Dense/model.safetensors"] {
            write(name, "");
        }
        write("rows.jsonl", "");
        write("2_Dense/rows.jsonl", "");
        write("other/model.safetensors", "");
        let files = files_of_model(folder.path());
        let name = |named: &Named| named.path.strip_prefix(folder.path()).unwrap().to_owned();
        let mut names: Vec<_> = files.iter().map(name).collect();
        names.sort();
        let expected =
            ["2_Dense/model.safetensors", "config.json", "modules.json", "sparse_linear.pt"];
        assert_eq!(names, expected.map(PathBuf::from));
    }
}
