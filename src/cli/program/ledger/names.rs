//! What the files of a run are, whatever they are called: none of them may be another one. Two
//! names of one file are found by device and inode, or by folder and name.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::document::is_ours;
use super::error::{LedgerError, unreadable};
use super::files::side_file_of;
use super::output::with_suffix;
use super::storage::identity;
use crate::args::{FlagFiles, LoraModuleArg, Role};
use vllm_batch_base::machine::is_refusal;
use vllm_batch_base::weight_files::{gguf_parts, is_gguf_model};
use vllm_batch_engine::serve::pooling::ListedModule;

/// A file of a run, and what it is to the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As messages call it: a flag, or words.
    pub what: Cow<'static, str>,
    /// Its name.
    pub path: PathBuf,
    /// It was found in a folder, where files that this program wrote may be too.
    is_listed: bool,
}

impl Named {
    /// A file under a name.
    pub fn new(what: impl Into<Cow<'static, str>>, path: impl Into<PathBuf>) -> Self {
        Self { what: what.into(), path: path.into(), is_listed: false }
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

/// Refuses files to be written to which standard output or standard error goes.
///
/// # Errors
/// One of them is.
pub fn refuse_streams(written: &[Named]) -> Result<(), LedgerError> {
    let streams = [("standard output", "/dev/stdout"), ("standard error", "/dev/stderr")];
    for (what, stream) in streams {
        let Some(file) = file_at(Path::new(stream)) else { continue };
        // A name in /dev is asked for as what it leads to, as `-o /dev/stdout` is.
        let is_it =
            |named: &&Named| !named.path.starts_with("/dev") && file_at(&named.path) == Some(file);
        if let Some(named) = written.iter().find(is_it) {
            let pair = (Named::new(what, stream), named.clone());
            return Err(LedgerError::Twice(Box::new(pair)));
        }
    }
    Ok(())
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
    let files = written.iter().filter_map(|named| Some((named, file_at(&named.path)?)));
    let files: Vec<_> = files.collect();
    // A model's folder may have many files.
    let read: &[Named] = if files.is_empty() { &[] } else { read };
    for of_read in read {
        let Some(file) = file_at(&of_read.path) else { continue };
        let found = files.iter().find(|(_, found)| *found == file);
        if let Some((named, _)) = found
            && !(of_read.is_listed && is_ours(&of_read.path))
        {
            return Err(LedgerError::IsRead(Box::new(((*named).clone(), of_read.clone()))));
        }
    }
    Ok(())
}

/// The files that the flags of a command name and that it reads, with those beside them and in
/// their folders.
///
/// # Errors
/// A folder cannot be listed for want of descriptors.
pub fn read_by(flags: &FlagFiles) -> Result<Vec<Named>, LedgerError> {
    let mut read = Vec::new();
    for file in flags.iter() {
        let what = || words_of(&file.flag);
        match file.role {
            Role::Read => read.push(Named::new(what(), &file.path)),
            Role::ReadOutput => {
                read.push(Named::new(what(), &file.path));
                // What is beside a link, and beside the file that it names.
                for path in [file.path.clone()].into_iter().chain(fs::canonicalize(&file.path)) {
                    read.push(Named::new("a side file that is read", side_file_of(&path)));
                    let errors = with_suffix(&path, ".errors.jsonl");
                    read.push(Named::new("a file of errors that is read", errors));
                }
            }
            Role::Model => read.extend(files_of_model(&file.path)?),
            Role::Adapter => {
                let module: Result<LoraModuleArg, _> = file.path.to_string_lossy().parse();
                if let Ok(module) = module {
                    read.extend(files_of_model(Path::new(&module.path))?);
                }
            }
            Role::DraftModel => {
                let config: Option<Value> = serde_json::from_str(&file.path.to_string_lossy()).ok();
                if let Some(model) = config.as_ref().and_then(|config| config["model"].as_str()) {
                    read.extend(files_of_model(Path::new(model))?);
                }
            }
            Role::Program => {
                let command = file.path.to_string_lossy().into_owned();
                read.extend(command.split_whitespace().map(|word| Named::new(what(), word)));
            }
            Role::Rows | Role::Document(_) | Role::Folder => {}
        }
    }
    Ok(read)
}

/// What a flag's file is called.
fn words_of(flag: &str) -> Cow<'static, str> {
    match flag {
        "--input" => "the input".into(),
        "--dataset" => "the dataset".into(),
        "--chat-template" => "the chat template".into(),
        "--baseline" => "the baseline".into(),
        "--rescore" => "the output that is judged".into(),
        "shards" => "a shard".into(),
        flag => format!("the file of {flag}").into(),
    }
}

/// Names that outputs have. They may be in a model's folder.
const OF_OUTPUTS: [&str; 8] =
    [".jsonl", ".csv", ".tsv", ".npy", ".parquet", ".journal", ".part", ".meta.json"];

/// Folders of a model with files that are read, beside those of its modules.
const FOLDERS: [&str; 2] = ["additional_chat_templates", "chat_templates"];

/// The files of a model in a folder, with those of its modules in folders of their own; or a GGUF
/// file, with all of its parts.
///
/// # Errors
/// The folder cannot be listed for want of descriptors.
pub fn files_of_model(model: &Path) -> Result<Vec<Named>, LedgerError> {
    let paths = match is_gguf_model(model) {
        true => gguf_parts(model),
        false => {
            // A list that cannot be read refuses the model, whatever the files of the run are.
            let modules = ListedModule::list(model).ok().flatten().unwrap_or_default();
            let folders = modules.iter().map(|module| module.folder.as_str()).chain(FOLDERS);
            let inside = folders.filter(|folder| !folder.is_empty()).map(|name| model.join(name));
            let mut paths = Vec::new();
            for folder in inside.chain([model.to_owned()]) {
                paths.extend(files_in(&folder).map_err(|error| unreadable(&folder, error))?);
            }
            paths
        }
    };
    let named = |path| Named { is_listed: true, ..Named::new("a file of the model", path) };
    Ok(paths.into_iter().map(named).collect())
}

/// The files of a folder that have no names of outputs.
fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if is_refusal(&error) => return Err(error),
        Err(_) => return Ok(Vec::new()),
        Ok(entries) => entries,
    };
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = [".gz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        name.contains('.') && !OF_OUTPUTS.iter().any(|end| name.ends_with(end))
    };
    Ok(entries.flatten().map(|entry| entry.path()).filter(is_one).collect())
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
        write("README.md", "");
        write("LICENSE", "");
        for name in ["rows.jsonl", "rows.jsonl.gz", "rows.jsonl.meta.json", "v.npy.part"] {
            write(name, "");
        }
        write("2_Dense/rows.jsonl", "");
        write("other/model.safetensors", "");
        let files = files_of_model(folder.path()).expect("a folder");
        let name = |named: &Named| named.path.strip_prefix(folder.path()).unwrap().to_owned();
        let mut names: Vec<_> = files.iter().map(name).collect();
        names.sort();
        let expected = [
            "2_Dense/model.safetensors",
            "README.md",
            "config.json",
            "modules.json",
            "sparse_linear.pt",
        ];
        assert_eq!(names, expected.map(PathBuf::from));
    }
}
