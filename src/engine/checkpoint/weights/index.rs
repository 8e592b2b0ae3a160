//! Weight files of a folder: those that its index names, else those that lie there. None may be
//! outside of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, quoted};
use vllm_batch_base::weight_files::{FORMATS, Format, MAX_INDEX_BYTES};

/// Most shards.
const MAX_SHARDS: usize = 10_000;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, Value>,
}

/// The shards that an index names, each a plain name of this format.
///
/// # Errors
/// The bytes are no index; the text says why.
pub fn parse(json: &[u8], format: &Format) -> Result<BTreeSet<String>, String> {
    let index: Index = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let mut names = BTreeSet::new();
    for (tensor, file) in index.weight_map {
        let Some(name) = file.as_str().filter(|name| is_plain_name(name)) else {
            let (tensor, file) = (quoted(&tensor), quoted(&file.to_string()));
            return Err(format!("{tensor} is said to be in {file}, no plain file name"));
        };
        if !format.ends(name) {
            return Err(format!("{} is not a .{} file", quoted(name), format.extension));
        }
        names.insert(name.to_owned());
    }
    match names.len() {
        0 => Err("its `weight_map` is empty".to_owned()),
        1..=MAX_SHARDS => Ok(names),
        number => Err(format!("it names {number} files, the limit is {MAX_SHARDS}")),
    }
}

/// No folder, no parent, nothing hidden, nothing that a terminal would obey: the index may not lead
/// out of its folder.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.contains(['/', '\\'])
        && !name.chars().any(char::is_control)
}

/// The folder's weight files. They may be links to anywhere, as shared file systems have them: what
/// a link leads to is read as weights and never shown. A name in an index is another matter, since
/// whoever wrote it did not have to put a link there.
pub(super) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    for format in &FORMATS {
        let index = dir.join(format.index);
        if exists(&index) {
            let json = files::read(&index, MAX_INDEX_BYTES)
                .map_err(|error| files::unreadable(&index, &error))?;
            let bad = |text| EngineError::Model(format!("{}: {text}", index.display()));
            let names = parse(&json, format).map_err(bad)?;
            return Ok(names.into_iter().map(|name| dir.join(name)).collect());
        }
        let single = dir.join(format.single);
        if exists(&single) {
            return Ok(vec![single]);
        }
        let found = listed(dir, |name| format.is_loose(name))?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Err(no_weights(dir)?)
}

/// A link to nothing is there: that it leads nowhere is said when it is opened.
fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The files of a folder that have such a name.
fn listed(dir: &Path, has: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, EngineError> {
    let listing = std::fs::read_dir(dir).map_err(|error| files::unreadable(dir, &error))?;
    let paths = listing.filter_map(|entry| Some(entry.ok()?.path()));
    let name = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(&has);
    let mut paths: Vec<_> = paths.filter(name).collect();
    paths.sort();
    Ok(paths)
}

/// Advice for a folder without weights.
fn no_weights(dir: &Path) -> Result<EngineError, EngineError> {
    let mut pickle = None;
    for extension in ["bin", "pt", "pth", "ckpt", "pkl"] {
        let has = |name: &str| Path::new(name).extension().is_some_and(|e| e == extension);
        pickle = pickle.or(listed(dir, has)?.pop());
    }
    let help = match pickle {
        Some(pickle) => format!(
            "{} is not read; of pickles pytorch_model.bin is, and its shards: convert the model \
             with transformers' save_pretrained(safe_serialization=True)",
            quoted(&pickle.file_name().unwrap_or_default().to_string_lossy())
        ),
        None => {
            "use `settings.load_format` dummy to run config.json with random weights".to_owned()
        }
    };
    Ok(EngineError::Model(format!("no *.safetensors in {}; {help}", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let names = ["../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", "a\0b", "a\nb"];
        for name in names {
            let json = serde_json::json!({"weight_map": {"t": name}});
            let error = parse(json.to_string().as_bytes(), &FORMATS[0]).unwrap_err();
            assert!(error.contains("no plain file name"), "{name}: {error}");
        }
        for json in ["", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {}}"#, "\u{7f}"] {
            assert!(parse(json.as_bytes(), &FORMATS[0]).is_err(), "{json}");
        }
        let json =
            br#"{"metadata": {}, "weight_map": {"t": "a.safetensors", "u": "a.safetensors"}}"#;
        let names = parse(json, &FORMATS[0]).unwrap();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["a.safetensors"]);
        assert!(parse(json, &FORMATS[1]).unwrap_err().contains("is not a .bin file"));
    }

    #[test]
    fn pickles_and_empty_folders_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = weight_files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("`settings.load_format` dummy"), "{error}");
        for name in ["training_args.bin", "consolidated.00.pth", "model.pt"] {
            std::fs::write(folder.path().join(name), b"x").unwrap();
            let error = weight_files(folder.path()).unwrap_err().to_string();
            assert!(error.contains("save_pretrained") && error.contains(name), "{error}");
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }

    #[test]
    fn safetensors_come_before_pickles() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        let found = || {
            let files = weight_files(folder.path()).unwrap();
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
            files.iter().map(name).collect::<Vec<_>>()
        };
        write("training_args.bin", "").unwrap();
        write("pytorch_model.bin", "").unwrap();
        assert_eq!(found(), ["pytorch_model.bin"]);
        let index = r#"{"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}"#;
        write("pytorch_model.bin.index.json", index).unwrap();
        assert_eq!(found(), ["pytorch_model-1.bin", "pytorch_model-2.bin"]);
        write("other.safetensors", "").unwrap();
        assert_eq!(found(), ["other.safetensors"]);
        write("model.safetensors", "").unwrap();
        assert_eq!(found(), ["model.safetensors"]);
    }
}
