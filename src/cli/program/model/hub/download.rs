//! Fetching a repository into the cache: one commit for all files (a branch may move while shards
//! are fetched), the index before the shards it names, and blobs that another revision already has
//! are not fetched again.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde::Deserialize;

use super::cache::{Lookup, RepoCache, Wanted};
use super::client::{Client, status};
use super::dataset_files::note_listing;
use super::environment::NetworkLimits;
use super::failure::Failure;
use super::gguf_file::parts;
use super::model_files::{check_repository, first_files, shards_of};
use super::module_files;
use super::names::is_commit;
use super::transfer::{Transfer, is_there};
use super::{DownloadProgress, HubEnvironment, HubError, HubErrorKind, Need};

/// Fetches what is wanted and not there yet; returns the snapshot's folder, or the file in it.
pub(super) fn download(
    cache: &RepoCache,
    wanted: &Wanted,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<PathBuf, HubError> {
    let words = |failure: Failure| failure.into_error(cache, environment);
    let _lock = lock(cache, progress).map_err(words)?;
    // Whoever held the lock may have fetched it all.
    if let Lookup::Complete(folder) = cache.find(wanted)? {
        return Ok(folder);
    }

    let client = Client::new(environment).map_err(words)?;
    let limits = environment.limits;
    let listing = with_retries(limits, progress, |_| (list(&client, cache), false));
    let listing = listing.map_err(|failure| words(failure.before_any_answer()))?;
    let first_files = match wanted {
        Wanted::Folder(need) => {
            check_repository(&listing.files, *need, &cache.what())?;
            first_files(&listing.files, *need)
        }
        Wanted::Files(chosen) => {
            chosen.first(&listing.files).map(str::to_owned).into_iter().collect()
        }
        Wanted::Gguf(name) => {
            parts(&name.choose(listing.files.keys().map(String::as_str), &cache.what())?)
        }
    };

    let snapshot = cache.snapshot(&listing.commit);
    let mut fetch = |file: &str| {
        let listed_size = listing.files.get(file).copied().flatten();
        if is_there(&snapshot.join(file), listed_size) {
            return Ok(());
        }
        let commit = &listing.commit;
        let transfer = Transfer { client: &client, cache, commit, file, listed_size };
        with_retries(limits, progress, |progress| transfer.attempt(progress)).map_err(words)
    };
    // Small files first: what is wrong with them is known before the long part begins.
    if let Wanted::Folder(Need { modules: true, .. }) = wanted {
        module_files::beside(&listing.files).iter().try_for_each(|file| fetch(file))?;
        let in_folders = module_files::in_folders(&listing.files, &snapshot)?;
        in_folders.iter().try_for_each(|file| fetch(file))?;
        let noted = module_files::note_absent(&listing.files, &cache.absent(&listing.commit));
        noted.map_err(|error| words(Failure::from(error)))?;
    }
    first_files.iter().try_for_each(|file| fetch(file))?;
    if let Wanted::Folder(Need { weights: true, .. }) = wanted
        && let Some((index, files)) = shards_of(&listing.files, &snapshot)?
    {
        if let Some(absent) = files.iter().find(|file| !listing.files.contains_key(*file)) {
            return Err(HubError::new(
                HubErrorKind::Incomplete,
                format!("{} has no {absent}, which its {index} names", cache.what()),
                "the repository is incomplete: choose another --revision or model",
            ));
        }
        files.iter().try_for_each(|file| fetch(file))?;
    }
    if let Wanted::Files(chosen) = wanted {
        let files = chosen.choose(&listing.files, &snapshot, &cache.what())?;
        files.iter().try_for_each(|file| fetch(file))?;
        let noted = note_listing(&listing.files, &cache.listing(&listing.commit));
        noted.map_err(|error| words(Failure::from(error)))?;
    }
    finish(cache, &listing.commit, wanted, environment)
}

/// Points the revision at the commit, only now that all its files are there.
fn finish(
    cache: &RepoCache,
    commit: &str,
    wanted: &Wanted,
    environment: &HubEnvironment,
) -> Result<PathBuf, HubError> {
    cache.point_at(commit).map_err(|error| Failure::from(error).into_error(cache, environment))?;
    match cache.check(commit, wanted)? {
        Lookup::Complete(folder) => Ok(folder),
        Lookup::Incomplete(what) => Err(HubError::new(
            HubErrorKind::Incomplete,
            format!("{} is incomplete after the download: {what}", cache.what()),
            "run again; if it stays, delete the model's folder in the cache",
        )),
    }
}

/// One download per repository and cache at a time: job arrays start many processes at once, and
/// each would fetch all files. Held until dropped; a file system without locks is used without
/// them.
fn lock(cache: &RepoCache, progress: &mut dyn DownloadProgress) -> Result<fs::File, Failure> {
    let folder = cache.root().join(".locks").join(cache.repo().folder_name());
    fs::create_dir_all(&folder)?;
    let path = folder.join("vllm-batch.lock");
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    if let Err(fs::TryLockError::WouldBlock) = file.try_lock() {
        progress.note(&format!("waiting for another process that downloads {}", cache.repo()));
        let _ = file.lock();
    }
    Ok(file)
}

/// The commit behind a revision, and its files with their sizes where the server tells them.
struct Listing {
    commit: String,
    files: BTreeMap<String, Option<u64>>,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
}

fn list(client: &Client, cache: &RepoCache) -> Result<Listing, Failure> {
    let mut response = client.list(&cache.repo().api_name(), cache.revision().as_str())?;
    if !response.status().is_success() {
        return Err(status(&response));
    }
    let text = response.body_mut().read_to_string()?;
    let info: ModelInfo = serde_json::from_str(&text)
        .map_err(|_| Failure::Protocol("the list of files is not as expected".into()))?;
    if !is_commit(&info.sha) {
        return Err(Failure::Protocol("the list of files names no commit".into()));
    }
    let files = info.siblings.into_iter().map(|file| (file.rfilename, file.size)).collect();
    Ok(Listing { commit: info.sha, files })
}

/// Repeats while the failure is of the kind that passes. A connection that brought bytes before it
/// broke starts the count anew: a long download may survive many of them, but not a server that
/// never ends. What arrives damaged twice was damaged on purpose, or where it lies.
fn with_retries<T>(
    limits: NetworkLimits,
    progress: &mut dyn DownloadProgress,
    mut attempt: impl FnMut(&mut dyn DownloadProgress) -> (Result<T, Failure>, bool),
) -> Result<T, Failure> {
    let (mut failed, mut total, mut damaged) = (0, 0, 0);
    loop {
        let (result, brought_bytes) = attempt(progress);
        let failure = match result {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        total += 1;
        damaged += u32::from(matches!(failure, Failure::Damaged(_)));
        let continued = brought_bytes && matches!(failure, Failure::Broken(_));
        failed = if continued { 1 } else { failed + 1 };
        if !failure.is_transient()
            || failed >= limits.attempts
            || total >= limits.attempts.saturating_mul(20)
            || damaged > 1
        {
            return Err(failure);
        }
        progress.note(&format!("download interrupted ({}), trying again", failure.cause()));
        std::thread::sleep(limits.wait.saturating_mul(1 << (failed - 1).min(6)));
    }
}
