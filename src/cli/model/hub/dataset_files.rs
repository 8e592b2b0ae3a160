//! Files of a dataset of the hub: `hf://datasets/OWNER/NAME@REVISION/data/*.parquet`, as fsspec,
//! DuckDB and polars spell it, through the cache in which models are too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};

use super::cache::{RepoCache, Wanted};
use super::environment::HubEnvironment;
use super::names::{RepoId, Revision, is_plain_file_name, quoted};
use super::{DownloadProgress, HubError, HubErrorKind, find_or_fetch};

/// How all of them begin.
const SCHEME: &str = "hf://";

/// The branch on which the hub converts datasets to Parquet, and its short name.
const CONVERTED: (&str, &str) = ("~parquet", "refs/convert/parquet");

/// Files shown of a dataset that has none of those that were asked for.
const MAX_SHOWN: usize = 8;

/// A pattern of files, as one names an input.
#[derive(Clone, Debug)]
pub(super) struct FilePattern {
    pattern: Pattern,
}

/// Whether an input is on the hub.
pub fn is_on_hub(input: &str) -> bool {
    input.starts_with(SCHEME)
}

/// The files of a dataset that an input names, in the order of their names; fetched where they are
/// not in the cache yet.
///
/// # Errors
/// It names no file of a dataset, or the hub cannot be reached or refuses.
pub fn resolve_dataset(
    input: &str,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<Vec<PathBuf>, HubError> {
    let (repo, revision, pattern) = split(input)?;
    let cache = RepoCache::new(&environment.cache_dir, repo, revision)?;
    let wanted = Wanted::Files(pattern.clone());
    let snapshot = find_or_fetch(&cache, &wanted, environment, progress)?;
    let names = pattern.of_note(&cache, &snapshot);
    Ok(names.unwrap_or_default().into_iter().map(|name| snapshot.join(name)).collect())
}

/// The repository, the revision and the files that an input names.
fn split(input: &str) -> Result<(RepoId, Revision, FilePattern), HubError> {
    let bad = |what: &str| {
        HubError::new(
            HubErrorKind::BadName,
            format!("{} {what}", quoted(input)),
            "name files as in hf://datasets/OWNER/NAME/data/*.parquet, or with a revision as in \
             OWNER/NAME@main",
        )
    };
    let rest = input.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("datasets/"));
    let rest = rest.ok_or_else(|| bad("is no dataset of the hub"))?;
    let (owner, rest) = rest.split_once('/').ok_or_else(|| bad("names no dataset"))?;
    let (name, rest) = rest.split_once('/').ok_or_else(|| bad("names no file"))?;
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let revision = revision.replace("%2F", "/").replace("%2f", "/");
    // refs/convert/parquet and refs/pr/1 have slashes of their own.
    let (revision, file) = match revision.as_str() {
        "refs" => {
            let mut parts = rest.splitn(3, '/');
            let (kind, what) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            (format!("refs/{kind}/{what}"), parts.next().unwrap_or(""))
        }
        _ if revision == CONVERTED.0 => (CONVERTED.1.to_owned(), rest),
        _ => (revision, rest),
    };
    if file.is_empty() {
        return Err(bad("names no file"));
    }
    let pattern = Pattern::new(file).map_err(|error| bad(&format!("is no pattern: {error}")))?;
    let repo = RepoId::dataset(&format!("{owner}/{name}"))?;
    Ok((repo, Revision::parse(&revision)?, FilePattern { pattern }))
}

impl FilePattern {
    /// The files of a repository that it names.
    ///
    /// # Errors
    /// It names none, or one that is no place in a folder.
    pub fn choose(
        &self,
        files: &BTreeMap<String, Option<u64>>,
        what: &str,
    ) -> Result<Vec<String>, HubError> {
        let names: Vec<String> = self.matches(files.keys().map(String::as_str)).collect();
        if names.is_empty() {
            let shown: Vec<_> = files.keys().take(MAX_SHOWN).map(|name| quoted(name)).collect();
            let more = if files.len() > MAX_SHOWN { ", ..." } else { "" };
            return Err(HubError::new(
                HubErrorKind::NotFound,
                format!("{what} has no file {}", quoted(self.pattern.as_str())),
                format!("it has {}{more}; @~parquet is the hub's conversion", shown.join(", ")),
            ));
        }
        match names.iter().find(|name| !name.split('/').all(is_plain_file_name)) {
            None => Ok(names),
            Some(name) => Err(HubError::new(
                HubErrorKind::Unsafe,
                format!("{what} has a file {}", quoted(name)),
                "do not use this dataset: its names are damaged or made to write elsewhere",
            )),
        }
    }

    /// What is missing in a snapshot; and of what is there, the names.
    pub fn check(&self, cache: &RepoCache, snapshot: &Path) -> Result<Vec<String>, String> {
        let names = self.of_note(cache, snapshot).ok_or("the list of its files is not there")?;
        let absent = names.iter().find(|name| !snapshot.join(name).is_file());
        match (absent, names.is_empty()) {
            (None, false) => Ok(names),
            (None, true) => Err(format!("it has no file {}", quoted(self.pattern.as_str()))),
            (Some(name), _) => Err(format!("it lacks {name}")),
        }
    }

    /// The files by the list that was fetched with the first of them; perhaps none. Without a list
    /// a file may be there by its whole name: other programs fetched it.
    fn of_note(&self, cache: &RepoCache, snapshot: &Path) -> Option<Vec<String>> {
        let commit = snapshot.file_name()?.to_str()?;
        let text = fs::read_to_string(cache.listing(commit));
        let names: Vec<String> = match text {
            Ok(text) => serde_json::from_str(&text).ok()?,
            Err(_) => {
                let name = self.pattern.as_str();
                vec![snapshot.join(name).is_file().then(|| name.to_owned())?]
            }
        };
        let mut names: Vec<String> = self.matches(names.iter().map(String::as_str)).collect();
        names.sort();
        // The cache may be shared.
        names.retain(|name| name.split('/').all(is_plain_file_name));
        Some(names)
    }

    fn matches<'a>(
        &'a self,
        names: impl Iterator<Item = &'a str> + 'a,
    ) -> impl Iterator<Item = String> + 'a {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        names.filter(move |name| self.pattern.matches_with(name, options)).map(str::to_owned)
    }
}

/// Notes which files a commit has: what a pattern names is known without the network then.
pub(super) fn note_listing(
    files: &BTreeMap<String, Option<u64>>,
    path: &Path,
) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let names: Vec<&String> = files.keys().collect();
    fs::write(path, serde_json::to_string(&names).expect("plain values"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_name_a_dataset_a_revision_and_files() {
        for (input, repo, revision, file) in [
            ("o/n/data/*.parquet", "datasets/o/n", "main", "data/*.parquet"),
            ("o/n@v1/a.jsonl", "datasets/o/n", "v1", "a.jsonl"),
            ("o/n@~parquet/c/train/*", "datasets/o/n", "refs/convert/parquet", "c/train/*"),
            ("o/n@refs/convert/parquet/c/x", "datasets/o/n", "refs/convert/parquet", "c/x"),
            ("o/n@refs%2Fpr%2F1/x", "datasets/o/n", "refs/pr/1", "x"),
        ] {
            let found = split(&format!("hf://datasets/{input}"));
            let (found, at, files) = found.unwrap_or_else(|error| panic!("{input}: {error}"));
            assert_eq!((found.to_string().as_str(), at.as_str()), (repo, revision));
            assert_eq!(files.pattern.as_str(), file);
        }
        for input in [
            "hf://o/n/x",
            "hf://datasets/o",
            "hf://datasets/o/n",
            "hf://datasets/o/n/",
            "hf://datasets/../n/x",
            "hf://datasets/o/n@../x",
            "hf://datasets/o/n/[",
            "hf://datasets/o/n@refs/pr",
        ] {
            assert!(split(input).is_err(), "{input}");
        }
    }

    #[test]
    fn a_pattern_is_of_one_folder_and_no_name_leads_out_of_it() {
        let pattern = |text: &str| split(&format!("hf://datasets/o/n/{text}")).unwrap().2;
        let files = |names: &[&str]| -> BTreeMap<String, Option<u64>> {
            names.iter().map(|name| ((*name).to_owned(), None)).collect()
        };
        let all = files(&["data/a.parquet", "data/b.parquet", "data/c/d.parquet", "x.md"]);
        let chosen = pattern("data/*.parquet").choose(&all, "it").unwrap();
        assert_eq!(chosen, ["data/a.parquet", "data/b.parquet"]);
        assert_eq!(pattern("**/*.parquet").choose(&all, "it").unwrap().len(), 3);
        let error = pattern("y").choose(&all, "it").unwrap_err();
        assert!(error.help().contains("`data/a.parquet`"), "{}", error.help());
        let hostile = files(&["../../x", "a"]);
        assert!(pattern("../../x").choose(&hostile, "it").is_err());
        assert!(pattern("**").choose(&hostile, "it").is_err());
    }
}
