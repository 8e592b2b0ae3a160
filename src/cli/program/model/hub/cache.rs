//! One repository and revision in the cache, in the layout that huggingface_hub writes:
//! `refs/<revision>`, `blobs/<etag>` and `snapshots/<commit>/<file> -> ../../blobs/<etag>` in
//! `models--org--name`. hf-hub knows it; it joins whatever it is told, so names are checked here.

use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo};

use super::dataset_files::Chosen;
use super::gguf_file::{GgufName, parts};
use super::model_files::missing_files;
use super::module_files;
use super::names::{RepoId, Revision, is_commit};
use super::{HubError, HubErrorKind, Need};

/// What the cache has of a repository.
pub(super) enum Lookup {
    /// A snapshot with all needed files.
    Complete(PathBuf),
    /// What is missing, in words.
    Incomplete(String),
}

/// What is asked of a repository.
#[derive(Clone, Debug)]
pub(super) enum Wanted {
    /// A folder with these files.
    Folder(Need),
    /// A GGUF file with all its parts, and nothing beside it.
    Gguf(GgufName),
    /// Files of a dataset.
    Files(Chosen),
}

/// A repository at a revision, and the cache that holds or will hold it.
pub(super) struct RepoCache {
    cache: Cache,
    layout: CacheRepo,
    repo: RepoId,
    revision: Revision,
}

impl RepoCache {
    pub fn new(cache_dir: &Path, repo: RepoId, revision: Revision) -> Result<Self, HubError> {
        let root = std::path::absolute(cache_dir).map_err(|error| {
            HubError::new(
                HubErrorKind::Storage,
                format!("the cache folder {} is not usable: {error}", cache_dir.display()),
                "set HF_HUB_CACHE or --download-dir",
            )
        })?;
        let cache = Cache::new(root);
        let layout = cache.repo(repo.at(&revision));
        Ok(Self { cache, layout, repo, revision })
    }

    /// The cache folder, with all its repositories.
    pub fn root(&self) -> &Path {
        self.cache.path()
    }

    /// The repository.
    pub fn repo(&self) -> &RepoId {
        &self.repo
    }

    /// The revision that was asked for.
    pub fn revision(&self) -> &Revision {
        &self.revision
    }

    /// For messages.
    pub fn what(&self) -> String {
        format!("{} (revision {})", self.repo, self.revision.as_str())
    }

    /// The folder of this repository.
    pub fn repo_folder(&self) -> PathBuf {
        self.root().join(self.repo.folder_name())
    }

    /// The folder of one commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.layout.pointer_path(commit)
    }

    /// The folder of notes on files that a commit has not.
    pub fn absent(&self, commit: &str) -> PathBuf {
        self.repo_folder().join(".no_exist").join(commit)
    }

    /// The note of which files a commit of a dataset has.
    pub fn listing(&self, commit: &str) -> PathBuf {
        self.repo_folder().join(".vllm-batch").join(format!("{commit}.json"))
    }

    /// The place of a file's bytes, which revisions share. hf-hub hands it out with its own client
    /// alone.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.repo_folder().join("blobs").join(etag)
    }

    /// Points the revision at a commit.
    pub fn point_at(&self, commit: &str) -> std::io::Result<()> {
        if self.revision.as_str() == commit {
            return Ok(());
        }
        self.layout.create_ref(commit)
    }

    /// Looks for the revision without any request.
    pub fn find(&self, wanted: &Wanted) -> Result<Lookup, HubError> {
        if !self.repo_folder().is_dir() {
            return Ok(Lookup::Incomplete("it was never downloaded there".into()));
        }
        match self.commit() {
            Some(commit) if self.snapshot(&commit).is_dir() => self.check(&commit, wanted),
            _ => Ok(Lookup::Incomplete(self.other_revisions())),
        }
    }

    /// Whether the snapshot has all needed files, and no link out of the repository's folder.
    pub fn check(&self, commit: &str, wanted: &Wanted) -> Result<Lookup, HubError> {
        let snapshot = self.snapshot(commit);
        self.check_links(&snapshot, &[])?;
        match wanted {
            Wanted::Folder(need) => {
                let mut missing = missing_files(&snapshot, *need)?;
                if need.modules {
                    missing.extend(module_files::missing(&snapshot, &self.absent(commit))?);
                    self.check_links(&snapshot, &module_files::present(&snapshot)?)?;
                }
                Ok(match missing.is_empty() {
                    true => Lookup::Complete(snapshot),
                    false => Lookup::Incomplete(format!("it lacks {}", missing.join(", "))),
                })
            }
            Wanted::Files(chosen) => match chosen.check(self, &snapshot) {
                Ok(names) => {
                    self.check_links(&snapshot, &names)?;
                    Ok(Lookup::Complete(snapshot))
                }
                Err(what) => Ok(Lookup::Incomplete(what)),
            },
            Wanted::Gguf(name) => match name.find(&snapshot) {
                Ok(file) => {
                    // It may be in a folder.
                    self.check_links(&snapshot, &parts(&file))?;
                    Ok(Lookup::Complete(snapshot.join(file)))
                }
                Err(what) => Ok(Lookup::Incomplete(what)),
            },
        }
    }

    /// A revision is a commit itself, or the name of a file that holds one.
    fn commit(&self) -> Option<String> {
        let revision = self.revision.as_str();
        if is_commit(revision) {
            return Some(revision.to_string());
        }
        // The folder that the ref names: any path, in a cache that is shared.
        let folder = self.layout.get("")?;
        let commit = folder.file_name()?.to_str().filter(|commit| is_commit(commit))?;
        (folder == self.snapshot(commit)).then(|| commit.to_string())
    }

    fn other_revisions(&self) -> String {
        let refs = fs::read_dir(self.repo_folder().join("refs")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            refs.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        match names.as_slice() {
            [] => "it has no finished download there".into(),
            names => format!("this revision is not there (there are: {})", names.join(", ")),
        }
    }

    /// Every link of a snapshot must end within the repository's folder: a cache may be shared, or
    /// come out of an archive, and a link to `/etc` or to another user's key must not be read as a
    /// model file. A dangling link is a missing file, not an attack.
    ///
    /// `deeper`: files in folders of the snapshot.
    fn check_links(&self, snapshot: &Path, deeper: &[String]) -> Result<(), HubError> {
        let unreadable = |error: std::io::Error| {
            HubError::new(
                HubErrorKind::Storage,
                format!("cannot read the cache {}: {error}", snapshot.display()),
                "check the permissions of the folder, or set HF_HUB_CACHE",
            )
        };
        let inside = fs::canonicalize(self.repo_folder()).map_err(unreadable)?;
        let entries = fs::read_dir(snapshot).map_err(unreadable)?;
        let entries = entries.map(|entry| entry.map(|entry| entry.path()));
        let deeper = deeper.iter().map(|name| Ok(snapshot.join(name)));
        for path in entries.chain(deeper) {
            let path = path.map_err(unreadable)?;
            if fs::canonicalize(&path).is_ok_and(|target| !target.starts_with(&inside)) {
                return Err(HubError::new(
                    HubErrorKind::Unsafe,
                    format!("{} is a link that leads out of the cache", path.display()),
                    format!("delete {} and fetch it again", inside.display()),
                ));
            }
        }
        Ok(())
    }
}
