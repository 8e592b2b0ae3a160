//! Which files of a folder hold its weights: those that its index names, else what lies there.
//! None may be outside of the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::engine::EngineError;
use crate::engine::files::{self, quoted};

/// The file that says which shard holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// Largest index; those of models of 10^12 parameters have 20 MB.
const MAX_INDEX_BYTES: u64 = 128 << 20;

/// Most shards.
const MAX_SHARDS: usize = 10_000;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, Value>,
}

/// The shards that an index names, each a plain name of a safetensors file.
///
/// # Errors
/// The bytes are no index; the text says why.
pub fn parse(json: &[u8]) -> Result<BTreeSet<String>, String> {
    let index: Index = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let mut names = BTreeSet::new();
    for (tensor, file) in index.weight_map {
        let Some(name) = file.as_str().filter(|name| is_plain_name(name)) else {
            let (tensor, file) = (quoted(&tensor), quoted(&file.to_string()));
            return Err(format!("{tensor} is said to be in {file}, no plain file name"));
        };
        if !name.ends_with(".safetensors") {
            return Err(format!("{} is no safetensors file", quoted(name)));
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

/// The folder's weight files.
pub(super) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let (index, single) = (dir.join(INDEX), dir.join("model.safetensors"));
    let paths = if index.exists() {
        let bad = |text: String| EngineError::Model(format!("{}: {text}", index.display()));
        let json = files::read(&index, MAX_INDEX_BYTES)
            .map_err(|error| files::unreadable(&index, &error))?;
        let names = parse(&json).map_err(bad)?;
        names.into_iter().map(|name| dir.join(name)).collect()
    } else if single.exists() {
        vec![single]
    } else {
        listed(dir)?
    };
    paths.iter().try_for_each(|path| stays_inside(dir, path))?;
    Ok(paths)
}

/// All safetensors files of a folder without an index.
fn listed(dir: &Path) -> Result<Vec<PathBuf>, EngineError> {
    let listing = std::fs::read_dir(dir)
        .map_err(|error| files::unreadable(dir, &error))?;
    let paths: Vec<_> = listing.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let with = |extension: &str| {
        let has = |path: &&PathBuf| path.extension().is_some_and(|found| found == extension);
        paths.iter().filter(has).cloned().collect::<Vec<_>>()
    };
    let mut found = with("safetensors");
    found.sort();
    if !found.is_empty() {
        return Ok(found);
    }
    let pickles = ["bin", "pt", "pth", "ckpt", "pkl"];
    let help = match pickles.iter().find_map(|extension| with(extension).pop()) {
        Some(pickle) => format!(
            "{} is a pickle, which can run code and is refused: convert the model with transformers' \
             save_pretrained(safe_serialization=True)",
            quoted(&pickle.file_name().unwrap_or_default().to_string_lossy())
        ),
        None => "use --load-format dummy to run config.json with random weights".to_owned(),
    };
    Err(EngineError::Model(format!("no *.safetensors in {}; {help}", dir.display())))
}

/// Refuses a link out of the folder: whoever packed the folder could have another file of this
/// machine read. The links of Hugging Face's cache go from `snapshots/<commit>` to `blobs`, beside
/// it in the repository's folder.
fn stays_inside(dir: &Path, path: &Path) -> Result<(), EngineError> {
    let bad = |text: &str| EngineError::Model(format!("{}: {text}", path.display()));
    let real = |path: &Path| path.canonicalize().map_err(|error| bad(&error.to_string()));
    let (target, inside) = (real(path)?, real(dir)?);
    let snapshots = inside.parent().filter(|parent| parent.ends_with("snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
    let blobs = blobs.and_then(|blobs| blobs.canonicalize().ok());
    if target.starts_with(&inside) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        return Ok(());
    }
    Err(bad("it is a link that leaves the model folder; copy the file there if you trust it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_cannot_lead_out_of_its_folder() {
        let names = ["../x.safetensors", "/etc/passwd", "a/b", "..", "", "a\\b", "a\0b", "a\nb"];
        for name in names {
            let json = serde_json::json!({"weight_map": {"t": name}});
            let error = parse(json.to_string().as_bytes()).unwrap_err();
            assert!(error.contains("no plain file name"), "{name}: {error}");
        }
        for json in ["", "[]", "{}", r#"{"weight_map": []}"#, r#"{"weight_map": {}}"#, "\u{7f}"] {
            assert!(parse(json.as_bytes()).is_err(), "{json}");
        }
        let json =
            br#"{"metadata": {}, "weight_map": {"t": "a.safetensors", "u": "a.safetensors"}}"#;
        assert_eq!(parse(json).unwrap().into_iter().collect::<Vec<_>>(), ["a.safetensors"]);
    }

    #[test]
    fn pickles_and_empty_folders_are_refused_with_a_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let error = weight_files(folder.path()).unwrap_err().to_string();
        assert!(error.contains("--load-format dummy"), "{error}");
        for name in ["pytorch_model.bin", "consolidated.00.pth", "model.pt"] {
            std::fs::write(folder.path().join(name), b"x").unwrap();
            let error = weight_files(folder.path()).unwrap_err().to_string();
            assert!(error.contains("save_pretrained") && error.contains(name), "{error}");
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }

    #[test]
    fn links_may_lead_to_the_blobs_of_the_cache_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("models--a--b");
        let snapshot = repository.join("snapshots/0123");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir(repository.join("blobs")).unwrap();
        for (target, stays) in [("blobs/x", true), ("refs", false), ("../secret", false)] {
            std::fs::write(repository.join(target), b"x").unwrap();
            let link = snapshot.join("model.safetensors");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(Path::new("../..").join(target), &link).unwrap();
            assert_eq!(weight_files(&snapshot).is_ok(), stays, "{target}");
        }
    }
}
