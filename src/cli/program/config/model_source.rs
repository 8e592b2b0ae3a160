//! `ModelSource`: which model, as typed, and what it is called in rows. Nothing is downloaded
//! here, and no file is read.

use std::path::{Path, PathBuf};

/// Which model, before it is found.
#[derive(Debug)]
pub struct ModelSource {
    /// Folder or Hugging Face id.
    pub name: String,
    /// What lines of batch APIs call it.
    pub served_name: String,
    /// GGUF file that makes a GGUF model see.
    pub mmproj: Option<String>,
    /// The same for the tokenizer.
    pub tokenizer: Option<String>,
    /// Branch, tag or commit.
    pub revision: Option<String>,
    /// Where downloads are kept.
    pub download_dir: Option<PathBuf>,
}

/// What a model is called in lines of batch APIs: its id on the hub, or the name of its folder. Of
/// a snapshot in the hub's cache, the id. It is the same from every folder that a user may be in.
pub fn served_name(model: &str) -> String {
    let path = Path::new(model);
    let Ok(real) = path.canonicalize() else { return model.to_owned() };
    let mut parents = real.ancestors().skip(1);
    if parents.next().is_some_and(|folder| folder.ends_with("snapshots"))
        && let Some(repository) = parents.next().and_then(Path::file_name)
        && let Some(id) = repository.to_string_lossy().strip_prefix("models--")
    {
        return id.replace("--", "/");
    }
    let last = path.file_name().or_else(|| real.file_name());
    last.map_or_else(|| model.to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn a_model_is_served_by_its_id_or_the_name_of_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let snapshot = folder.path().join("models--org--name/snapshots/0123");
        let local = folder.path().join("llama");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir(&local).unwrap();
        let served = |path: &Path| served_name(&path.to_string_lossy());
        assert_eq!(served(&snapshot), "org/name");
        for spelling in ["", "/", "/.", "/../llama", "//"] {
            let name = format!("{}{spelling}", local.display());
            assert_eq!(served_name(&name), "llama", "{name}");
        }
        assert_eq!(served_name("org/name"), "org/name", "no folder: the hub's id");
        assert_eq!(config("--served-model-name x").unwrap().model.served_name, "x");
    }
}
