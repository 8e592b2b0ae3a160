//! `Split`: which files of a dataset are its split, by its README.md or by their names, as the
//! library `datasets` finds them.

use super::dataset_card::{Config, configs};
use super::names::quoted;
use vllm_batch_dataset::network::name_pattern::NamePattern;

/// What a split may be called in names of files.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Names of files that hold rows, before what compresses them.
const ROWS: [&str; 7] = [".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet"];

/// A split of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// `train`, `validation`, `test`, or any other name.
    pub name: String,
    /// The configuration that it is of, where there are several.
    pub subset: Option<String>,
}

impl Split {
    /// Its files, of all of a dataset. `card`: its README.md.
    ///
    /// # Errors
    /// There is no such split; what is wrong, and what there is.
    pub fn files(
        &self,
        all: &[String],
        card: Option<&str>,
    ) -> Result<Vec<String>, (String, String)> {
        let unread =
            |what| (what, "name its files: hf://datasets/OWNER/NAME/data/*.parquet".into());
        let configs = configs(card.unwrap_or_default()).map_err(unread)?;
        let config = self.config(&configs)?;
        let folder = config.and_then(|config| config.folder.as_deref()).unwrap_or("");
        let folder = folder.trim_start_matches("./").trim_end_matches('/');
        let within = |name: &str| match folder {
            "" => Some(name.to_owned()),
            folder => name.strip_prefix(folder)?.strip_prefix('/').map(str::to_owned),
        };
        let inner: Vec<String> = all.iter().filter_map(|name| within(name)).collect();
        let found = match config.and_then(|config| config.splits.as_ref()) {
            Some(splits) => {
                let split = splits.iter().find(|(name, _)| *name == self.name);
                let (_, patterns) = split.ok_or_else(|| {
                    let names = splits.iter().map(|(name, _)| quoted(name)).collect::<Vec<_>>();
                    (self.absent(), format!("it has {}", names.join(", ")))
                })?;
                matching(&inner, patterns)?
            }
            None => self.by_name(&inner),
        };
        if found.is_empty() {
            return Err((
                self.absent(),
                "name its files, as in hf://datasets/OWNER/NAME/*.csv".into(),
            ));
        }
        let whole =
            |name: String| if folder.is_empty() { name } else { format!("{folder}/{name}") };
        Ok(found.into_iter().map(whole).collect())
    }

    /// As messages call it.
    fn absent(&self) -> String {
        let subset = self.subset.as_ref().map(|name| format!(" of {}", quoted(name)));
        format!("has no split {}{}", quoted(&self.name), subset.unwrap_or_default())
    }

    /// The configuration that is meant; None: the dataset has none.
    fn config<'a>(&self, configs: &'a [Config]) -> Result<Option<&'a Config>, (String, String)> {
        let names =
            || configs.iter().map(|config| quoted(&config.name)).collect::<Vec<_>>().join(", ");
        let find = |wanted: &str| configs.iter().find(|config| config.name == wanted);
        match (&self.subset, configs) {
            (None, []) => Ok(None),
            (Some(name), []) => {
                let message = format!("names no subsets, and so not {}", quoted(name));
                Err((message, "leave out --subset, or name its files".into()))
            }
            (Some(name), _) => find(name).map(Some).ok_or_else(|| {
                (format!("has no subset {}", quoted(name)), format!("it has {}", names()))
            }),
            (None, [only]) => Ok(Some(only)),
            (None, _) => {
                let default = configs.iter().find(|config| config.is_default);
                default.or_else(|| find("default")).map(Some).ok_or_else(|| {
                    ("has several subsets".into(), format!("give --subset: {}", names()))
                })
            }
        }
    }

    /// Files that are called as the split: `data/train-00000-of-00002.parquet`, else with its word
    /// in their names or folders; where no file has any split's word, all are `train`.
    fn by_name(&self, all: &[String]) -> Vec<String> {
        let rows: Vec<&String> = all.iter().filter(|name| holds_rows(name)).collect();
        let of = |is_one: &dyn Fn(&str) -> bool| -> Vec<String> {
            rows.iter().filter(|name| is_one(name)).map(|name| (*name).clone()).collect()
        };
        let is_sharded = |name: &str| {
            let rest = name.strip_prefix("data/").and_then(|rest| rest.strip_prefix(&self.name));
            rest.is_some_and(|rest| {
                let (number, of) = rest.split_at_checked(6).unwrap_or(("", ""));
                let digits = number.strip_prefix('-').unwrap_or("");
                !digits.is_empty()
                    && digits.bytes().all(|byte| byte.is_ascii_digit())
                    && of.starts_with("-of-")
            })
        };
        let sharded = of(&is_sharded);
        if !sharded.is_empty() {
            return sharded;
        }
        let known = KEYWORDS.iter().find(|(name, _)| *name == self.name);
        let own = [self.name.as_str()];
        let words = known.map_or(&own[..], |(_, words)| words);
        let named = of(&|name| has_word(name, words));
        let any = |name: &&String| KEYWORDS.iter().any(|(_, words)| has_word(name, words));
        match named.is_empty() && self.name == "train" && !rows.iter().any(any) {
            true => of(&|_| true),
            false => named,
        }
    }
}

/// The files that patterns name, in the order of the patterns, each once.
fn matching(all: &[String], patterns: &[String]) -> Result<Vec<String>, (String, String)> {
    let mut found: Vec<String> = Vec::new();
    for text in patterns {
        let pattern = NamePattern::new(text.trim_start_matches("./")).map_err(|error| {
            let message = format!("names files by {}, which is no pattern: {error}", quoted(text));
            (message, "name its files yourself".into())
        })?;
        for name in all.iter().filter(|name| pattern.matches(name)) {
            if !found.contains(name) {
                found.push(name.clone());
            }
        }
    }
    Ok(found)
}

fn holds_rows(name: &str) -> bool {
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let is_hidden = name.split('/').any(|part| part.starts_with(['.', '_']));
    !is_hidden && ROWS.iter().any(|end| plain.ends_with(end))
}

/// Whether a name has a word between other signs than letters.
fn has_word(name: &str, words: &[&str]) -> bool {
    let mut parts = name.split(|c: char| !c.is_ascii_alphabetic());
    parts.any(|part| words.iter().any(|word| part.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(
        split: &str,
        subset: Option<&str>,
        all: &[&str],
        card: &str,
    ) -> Result<Vec<String>, String> {
        let split = Split { name: split.into(), subset: subset.map(str::to_owned) };
        let all: Vec<String> = all.iter().map(|name| (*name).to_owned()).collect();
        split.files(&all, Some(card)).map_err(|(message, help)| format!("{message}; {help}"))
    }

    #[test]
    fn splits_are_found_by_names() {
        let sharded = [
            "README.md",
            "data/test-00000-of-00001.parquet",
            "data/train-00000-of-00001.parquet",
            "train.csv",
        ];
        assert_eq!(
            files("train", None, &sharded, "").unwrap(),
            ["data/train-00000-of-00001.parquet"]
        );
        let named =
            ["README.md", ".gitattributes", "dev/a.jsonl.gz", "my_train_file.csv", "valid-2.csv"];
        assert_eq!(files("train", None, &named, "").unwrap(), ["my_train_file.csv"]);
        assert_eq!(
            files("validation", None, &named, "").unwrap(),
            ["dev/a.jsonl.gz", "valid-2.csv"]
        );
        assert!(files("test", None, &named, "").unwrap_err().contains("no split `test`"));
        assert_eq!(
            files("train", None, &["a.csv", "b.csv", "c.md"], "").unwrap(),
            ["a.csv", "b.csv"]
        );
        assert_eq!(
            files("humaneval", None, &["humaneval.jsonl", "x.jsonl"], "").unwrap(),
            ["humaneval.jsonl"]
        );
        assert!(files("train", None, &["trainer.csv", "test.csv"], "").is_err());
    }

    #[test]
    fn splits_are_found_by_the_card() {
        let card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/*.csv\n\
                    - config_name: other\n  data_dir: other\n---\n";
        let all = ["main/a.csv", "main/b.csv", "main/deep/c.csv", "other/test.csv", "test.csv"];
        assert_eq!(files("test", Some("main"), &all, card).unwrap(), ["main/a.csv", "main/b.csv"]);
        assert_eq!(files("test", Some("other"), &all, card).unwrap(), ["other/test.csv"]);
        assert!(files("test", None, &all, card).unwrap_err().contains("--subset: `main`, `other`"));
        assert!(files("train", Some("main"), &all, card).unwrap_err().contains("it has `test`"));
        assert!(files("test", Some("none"), &all, card).unwrap_err().contains("no subset `none`"));
        assert!(files("test", Some("main"), &all, "").unwrap_err().contains("no subsets"));
        let default = card.replace("data_dir: other", "default: true\n  data_dir: other");
        assert_eq!(files("test", None, &all, &default).unwrap(), ["other/test.csv"]);
    }
}
