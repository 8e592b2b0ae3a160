//! From what the user typed after `--model` to model files: a local folder or GGUF file, a snapshot
//! of the Hugging Face cache, or a download into that cache.
//!
//! The cache is asked first and a complete snapshot is used as it is, without a request: a run that
//! is resumed a week later sees the same bytes, and a machine without network works as one with it.

mod cache;
mod client;
mod dataset_card;
mod dataset_files;
mod download;
pub mod environment;
mod error;
mod failure;
mod gguf_file;
mod model_files;
mod module_files;
mod names;
pub mod progress;
mod splits;
mod transfer;

use std::path::{Path, PathBuf};

use cache::{Lookup, RepoCache, Wanted};
pub use dataset_files::{is_on_hub, resolve_dataset};
pub use environment::HubEnvironment;
pub use error::{HubError, HubErrorKind};
use model_files::{CONFIG, cannot_read, weight_files};
use names::{RepoId, Revision};
pub use progress::DownloadProgress;
pub use splits::Split;

use vllm_batch_base::weight_files::gguf_parts;

/// Which files the caller cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// `config.json`.
    pub config: bool,
    /// The files of a tokenizer.
    pub tokenizer: bool,
    /// The safetensors files; false for `--load-format dummy`.
    pub weights: bool,
    /// The files of sentence-transformers, which say how vectors are made.
    pub modules: bool,
    /// The files of an adapter, and nothing else.
    pub adapter: bool,
}

impl Need {
    /// A model to run.
    pub const MODEL: Need = Need { config: true, tokenizer: true, weights: true, ..Need::NOTHING };
    /// The folder of `--tokenizer`.
    pub const TOKENIZER: Need = Need { tokenizer: true, ..Need::NOTHING };
    /// A folder of `--lora-modules`.
    pub const ADAPTER: Need = Need { adapter: true, ..Need::NOTHING };
    const NOTHING: Need =
        Need { config: false, tokenizer: false, weights: false, modules: false, adapter: false };
}

/// What is looked for, and where.
#[derive(Clone, Copy, Debug)]
pub struct ModelRequest<'a> {
    /// A folder, a GGUF file, or `org/name` or `org/name:FILE.gguf` on the hub.
    pub name: &'a str,
    /// Branch, tag or commit; None: `main`.
    pub revision: Option<&'a str>,
    /// Replaces the cache folder of the environment (`--download-dir`).
    pub download_dir: Option<&'a Path>,
    /// Files that must be there.
    pub need: Need,
}

/// The folder with everything a model needs to run.
///
/// # Errors
/// See [`resolve`].
pub fn resolve_model(
    name: &str,
    revision: Option<&str>,
    download_dir: Option<&Path>,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<PathBuf, HubError> {
    let request = ModelRequest { name, revision, download_dir, need: Need::MODEL };
    resolve(&request, environment, progress)
}

/// The folder with the needed files, the local folder itself or a complete snapshot in the cache;
/// or a GGUF file, which has all of them.
///
/// # Errors
/// The name is neither a folder nor a repository, the hub cannot be reached or refuses, or the
/// files are incomplete, unsafe or in a format that is not read.
pub fn resolve(
    request: &ModelRequest<'_>,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<PathBuf, HubError> {
    let path = Path::new(request.name);
    if path.is_dir() {
        return local_folder(path, request.need);
    }
    if request.need.adapter && (path.exists() || is_gguf(path)) {
        return Err(HubError::new(
            HubErrorKind::BadName,
            format!("{} is no folder", request.name.escape_debug()),
            "give the folder that holds adapter_config.json and adapter_model.safetensors",
        ));
    }
    if path.exists() {
        return local_file(path);
    }
    let of_repo = gguf_file::split(request.name);
    // What the system refuses to look at may be there.
    if of_repo.is_none()
        && (is_gguf(path) || names::looks_like_path(request.name))
        && let Err(error) = path.try_exists()
    {
        return Err(cannot_read(path, &error));
    }
    if is_gguf(path) && of_repo.is_none() {
        return Err(HubError::new(
            HubErrorKind::NotFound,
            format!("no such file: {}", request.name.escape_debug()),
            "give a GGUF file that is on this machine, or one of a repository: OWNER/REPO:FILE.gguf",
        ));
    }
    if of_repo.is_none() && names::looks_like_path(request.name) {
        return Err(HubError::new(
            HubErrorKind::NotFound,
            format!("no such folder: {}", request.name.escape_debug()),
            "give a folder that exists, or a Hugging Face model id such as org/name",
        ));
    }

    let (repo, wanted) = match of_repo {
        Some((repo, name)) => {
            name.check()?;
            (repo, Wanted::Gguf(name))
        }
        None => (request.name, Wanted::Folder(request.need)),
    };
    let repo = RepoId::parse(repo)?;
    let revision = Revision::parse(request.revision.unwrap_or("main"))?;
    let cache_dir = request.download_dir.unwrap_or(&environment.cache_dir);
    let cache = RepoCache::new(cache_dir, repo, revision)?;
    find_or_fetch(&cache, &wanted, environment, progress)
}

/// What is wanted of a repository: from the cache, or fetched into it.
fn find_or_fetch(
    cache: &RepoCache,
    wanted: &Wanted,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<PathBuf, HubError> {
    match (cache.find(wanted)?, &environment.offline) {
        (Lookup::Complete(folder), _) => Ok(folder),
        (Lookup::Incomplete(what), Some(variable)) => Err(offline(cache, &what, variable)),
        (Lookup::Incomplete(_), None) => download::download(cache, wanted, environment, progress),
    }
}

/// A GGUF file is whole; other files are a part of a model.
fn local_file(path: &Path) -> Result<PathBuf, HubError> {
    match path.is_file() && is_gguf(path) {
        true => Ok(path.to_path_buf()),
        false => Err(HubError::new(
            HubErrorKind::BadName,
            format!("{} is a file, and no GGUF file by its name", path.display()),
            "give the folder that holds config.json, tokenizer.json and *.safetensors, or a GGUF \
             file",
        )),
    }
}

/// The GGUF file in a folder without config.json, if there is one.
fn gguf_in(folder: &Path) -> Result<Option<PathBuf>, HubError> {
    let entries = std::fs::read_dir(folder).map_err(|error| cannot_read(folder, &error))?;
    let paths = entries.flatten().map(|entry| entry.path());
    // Of a split file the first part stands for all.
    let is_whole =
        |path: &PathBuf| path.is_file() && is_gguf(path) && gguf_parts(path).first() == Some(path);
    let mut files: Vec<PathBuf> = paths.filter(is_whole).collect();
    files.sort();
    match files.as_slice() {
        [] | [_] => Ok(files.pop()),
        // A model, and what makes it see.
        [one, other] if is_projector(one) != is_projector(other) => {
            Ok(files.into_iter().find(|path| !is_projector(path)))
        }
        several => {
            let names = several.iter().take(8).map(|path| {
                path.file_name().unwrap_or_default().to_string_lossy().escape_debug().to_string()
            });
            let names = names.collect::<Vec<_>>().join(", ");
            Err(HubError::new(
                HubErrorKind::BadName,
                format!("the folder {} has several GGUF files: {names}", folder.display()),
                "name one of them",
            ))
        }
    }
}

/// The projector in a folder that was given as the model and has two GGUF files: this model, and
/// one that makes it see.
pub fn projector_in(given: &Path, model: &Path) -> Option<PathBuf> {
    if !given.is_dir() || !model.is_file() {
        return None;
    }
    let entries = std::fs::read_dir(given).ok()?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut others = paths.filter(|path| path.is_file() && is_gguf(path) && is_projector(path));
    // `gguf_in` has seen to it that there are no two.
    others.next()
}

/// Whether a file makes a model see, by its name.
fn is_projector(path: &Path) -> bool {
    path.file_name().is_some_and(|name| gguf_file::is_projector(&name.to_string_lossy()))
}

/// Whether a file is GGUF's by its name.
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// A user's own folder is taken as it is; the engine reports missing weights with more detail.
fn local_folder(folder: &Path, need: Need) -> Result<PathBuf, HubError> {
    if need.config
        && !folder.join(CONFIG).is_file()
        && let Some(file) = gguf_in(folder)?
    {
        return Ok(file);
    }
    if need.config && !folder.join(CONFIG).is_file() {
        return Err(HubError::new(
            HubErrorKind::Incomplete,
            format!("the folder {} has no {CONFIG}", folder.display()),
            "give the folder of a Hugging Face checkpoint (config.json, tokenizer.json, *.safetensors)",
        ));
    }
    if need.weights {
        // Refuses an index that points outside of the folder before anything opens its files.
        weight_files(folder)?;
    }
    Ok(folder.to_path_buf())
}

fn offline(cache: &RepoCache, what: &str, variable: &str) -> HubError {
    HubError::new(
        HubErrorKind::Offline,
        format!(
            "{} is not usable from the cache {}: {what}; {variable} is set, which forbids downloading",
            cache.what(),
            cache.root().display(),
        ),
        format!("unset {variable} and run once with network, or give a folder"),
    )
}
