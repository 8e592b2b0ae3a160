//! Files of a dataset of the hub: `hf://datasets/OWNER/NAME@REVISION/data/*.parquet`, as fsspec,
//! DuckDB and polars spell it, through the cache in which models are too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::cache::{RepoCache, Wanted};
use super::environment::HubEnvironment;
use super::names::{RepoId, Revision, is_plain_file_name, quoted};
use super::splits::Split;
use super::{DownloadProgress, HubError, HubErrorKind, find_or_fetch};
use vllm_batch_dataset::network::name_pattern::NamePattern;

/// How all of them begin.
const SCHEME: &str = "hf://";

/// The branch on which the hub converts datasets to Parquet, and its short name.
const CONVERTED: (&str, &str) = ("~parquet", "refs/convert/parquet");

/// Files shown of a dataset that has none of those that were asked for.
const MAX_SHOWN: usize = 8;

/// The file in which a dataset says what its splits are.
const CARD: &str = "README.md";

/// Files of a dataset, as one names an input.
#[derive(Clone, Debug)]
pub(super) enum Chosen {
    /// Those that a pattern matches.
    Pattern(NamePattern),
    /// Those of a split.
    Split(Split),
}

/// Whether an input is on the hub.
pub fn is_on_hub(input: &str) -> bool {
    input.starts_with(SCHEME)
}

/// The files of a dataset that an input names, in the order of their names; fetched where they are
/// not in the cache yet. `split`: the input names a dataset, and this is the part that is meant.
///
/// # Errors
/// It names no file of a dataset, or the hub cannot be reached or refuses.
pub fn resolve_dataset(
    input: &str,
    split: Option<&Split>,
    environment: &HubEnvironment,
    progress: &mut dyn DownloadProgress,
) -> Result<Vec<PathBuf>, HubError> {
    let (repo, revision, file) = parts(input)?;
    let chosen = match split {
        None => Chosen::pattern(input, file)?,
        Some(split) if file.is_empty() => Chosen::Split(split.clone()),
        Some(_) => return Err(bad(input, "names files, and --split is of a whole dataset")),
    };
    let cache = RepoCache::new(&environment.cache_dir, repo, revision)?;
    let wanted = Wanted::Files(chosen.clone());
    let snapshot = find_or_fetch(&cache, &wanted, environment, progress)?;
    let names = chosen.check(&cache, &snapshot);
    Ok(names.unwrap_or_default().into_iter().map(|name| snapshot.join(name)).collect())
}

fn bad(input: &str, what: &str) -> HubError {
    HubError::new(
        HubErrorKind::BadName,
        format!("{} {what}", quoted(input)),
        "name files as in hf://datasets/OWNER/NAME/data/*.parquet, or a dataset as in --split train \
         -i OWNER/NAME; a revision is OWNER/NAME@main",
    )
}

/// The repository, the revision and the files that an input names; perhaps none.
fn parts(input: &str) -> Result<(RepoId, Revision, &str), HubError> {
    let bad = |what: &str| bad(input, what);
    let rest = match input.strip_prefix(SCHEME) {
        Some(rest) => rest.strip_prefix("datasets/").ok_or_else(|| bad("is no dataset of the hub")),
        None => Ok(input),
    };
    let (owner, rest) = rest?.split_once('/').ok_or_else(|| bad("names no dataset"))?;
    let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
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
    let repo = RepoId::dataset(&format!("{owner}/{name}"))?;
    Ok((repo, Revision::parse(&revision)?, file))
}

impl Chosen {
    fn pattern(input: &str, file: &str) -> Result<Self, HubError> {
        if file.is_empty() {
            return Err(bad(input, "names no file"));
        }
        let pattern = NamePattern::new(file);
        pattern.map(Self::Pattern).map_err(|error| bad(input, &format!("is no pattern: {error}")))
    }

    /// What must be there before it is known which files these are.
    pub fn first(&self, files: &BTreeMap<String, Option<u64>>) -> Option<&'static str> {
        (matches!(self, Chosen::Split(_)) && files.contains_key(CARD)).then_some(CARD)
    }

    /// The files of a repository that it names. `snapshot`: the folder of what is there.
    ///
    /// # Errors
    /// It names none, or one that is no place in a folder.
    pub fn choose(
        &self,
        files: &BTreeMap<String, Option<u64>>,
        snapshot: &Path,
        what: &str,
    ) -> Result<Vec<String>, HubError> {
        let all: Vec<String> = files.keys().cloned().collect();
        let names = self.of(&all, snapshot).map_err(|(message, help)| {
            HubError::new(HubErrorKind::NotFound, format!("{what} {message}"), help)
        })?;
        match names.iter().find(|name| !name.split('/').all(is_plain_file_name)) {
            None => Ok(names),
            Some(name) => Err(HubError::new(
                HubErrorKind::Unsafe,
                format!("{what} has a file {}", quoted(name)),
                "do not use this dataset: its names are damaged or made to write elsewhere",
            )),
        }
    }

    /// The files, of all; or what is wrong, and what there is.
    fn of(&self, all: &[String], snapshot: &Path) -> Result<Vec<String>, (String, String)> {
        let pattern = match self {
            Chosen::Pattern(pattern) => pattern,
            Chosen::Split(split) => {
                let card = fs::read_to_string(snapshot.join(CARD)).ok();
                return split.files(all, card.as_deref());
            }
        };
        let names = all.iter().filter(|name| pattern.matches(name));
        let mut names: Vec<String> = names.cloned().collect();
        names.sort();
        if !names.is_empty() {
            return Ok(names);
        }
        let shown: Vec<_> = all.iter().take(MAX_SHOWN).map(|name| quoted(name)).collect();
        let more = if all.len() > MAX_SHOWN { ", ..." } else { "" };
        let help = format!("it has {}{more}; @~parquet is the hub's conversion", shown.join(", "));
        Err((format!("has no file {}", quoted(pattern.as_str())), help))
    }

    /// What is missing in a snapshot; and of what is there, the names.
    pub fn check(&self, cache: &RepoCache, snapshot: &Path) -> Result<Vec<String>, String> {
        let all = self.listed(cache, snapshot).ok_or("the list of its files is not there")?;
        let needs_card = matches!(self, Chosen::Split(_)) && all.iter().any(|name| name == CARD);
        if needs_card && !snapshot.join(CARD).is_file() {
            return Err(format!("it lacks {CARD}"));
        }
        let mut names = self.of(&all, snapshot).map_err(|(message, _)| format!("it {message}"))?;
        // The cache may be shared.
        names.retain(|name| name.split('/').all(is_plain_file_name));
        match names.iter().find(|name| !snapshot.join(name).is_file()) {
            None => Ok(names),
            Some(name) => Err(format!("it lacks {name}")),
        }
    }

    /// All files, by the list that was fetched with the first of them. Without a list a file may be
    /// there by its whole name: other programs fetched it.
    fn listed(&self, cache: &RepoCache, snapshot: &Path) -> Option<Vec<String>> {
        let commit = snapshot.file_name()?.to_str()?;
        match (fs::read_to_string(cache.listing(commit)), self) {
            (Ok(text), _) => serde_json::from_str(&text).ok(),
            (Err(_), Chosen::Pattern(pattern)) => {
                let name = pattern.as_str();
                snapshot.join(name).is_file().then(|| vec![name.to_owned()])
            }
            (Err(_), Chosen::Split(_)) => None,
        }
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
            ("o/n", "datasets/o/n", "main", ""),
            ("o/n@refs/pr/1", "datasets/o/n", "refs/pr/1", ""),
        ] {
            for scheme in ["hf://datasets/", ""] {
                let input = format!("{scheme}{input}");
                let found = parts(&input);
                let (found, at, files) = found.unwrap_or_else(|error| panic!("{input}: {error}"));
                assert_eq!((found.to_string().as_str(), at.as_str()), (repo, revision));
                assert_eq!(files, file);
            }
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
            let found = parts(input).and_then(|(.., file)| Chosen::pattern(input, file));
            assert!(found.is_err(), "{input}");
        }
    }

    #[test]
    fn a_pattern_is_of_one_folder_and_no_name_leads_out_of_it() {
        let choose = |text: &str, all: &BTreeMap<String, Option<u64>>| {
            Chosen::pattern(text, text)?.choose(all, Path::new("none"), "it")
        };
        let files = |names: &[&str]| -> BTreeMap<String, Option<u64>> {
            names.iter().map(|name| ((*name).to_owned(), None)).collect()
        };
        let all = files(&["data/a.parquet", "data/b.parquet", "data/c/d.parquet", "x.md"]);
        let chosen = choose("data/*.parquet", &all).unwrap();
        assert_eq!(chosen, ["data/a.parquet", "data/b.parquet"]);
        assert_eq!(choose("**/*.parquet", &all).unwrap().len(), 3);
        let error = choose("y", &all).unwrap_err();
        assert!(error.help().contains("`data/a.parquet`"), "{}", error.help());
        let hostile = files(&["../../x", "a"]);
        assert!(choose("../../x", &hostile).is_err());
        assert!(choose("**", &hostile).is_err());
    }
}
