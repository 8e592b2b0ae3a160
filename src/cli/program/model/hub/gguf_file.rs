//! One GGUF file of a repository: how it is asked for, and which of the files is meant.

use std::fs;
use std::path::Path;

use super::names::{is_plain_file_name, quoted};
use super::{HubError, HubErrorKind, is_gguf};
use vllm_batch_base::weight_files::gguf_parts;

/// Deepest folder of a repository in which a file is looked for.
const MAX_DEPTH: usize = 4;

/// Most names in a message.
const MAX_SHOWN: usize = 8;

/// Which GGUF file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GgufName {
    /// By its path in the repository.
    File(String),
    /// By the type that is a part of its name, as llama.cpp has it: `Q4_K_M`.
    Type(String),
}

/// The repository and the file of `OWNER/REPO:FILE.gguf`, `OWNER/REPO/FILE.gguf` or
/// `OWNER/REPO:Q4_K_M`; None: the text asks for no file of a repository.
pub(super) fn split(text: &str) -> Option<(&str, GgufName)> {
    let second = text.match_indices('/').nth(1).map(|(place, _)| place);
    let (repo, name) = match (text.split_once(':'), second) {
        (Some((repo, name)), _) => (repo, name),
        (None, Some(second)) => (&text[..second], &text[second + 1..]),
        (None, None) => return None,
    };
    let is_repo = repo.split('/').count() == 2 && !repo.starts_with(['.', '~', '/']);
    let is_type = |name: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        !name.is_empty() && name.len() <= 32 && name.chars().all(inner)
    };
    match is_repo {
        true if is_gguf(Path::new(name)) => Some((repo, GgufName::File(name.to_owned()))),
        true if text.contains(':') && is_type(name) => Some((repo, GgufName::Type(name.into()))),
        _ => None,
    }
}

/// A path in a repository whose folders and file are plain names.
fn is_plain_path(path: &str) -> bool {
    path.split('/').count() <= MAX_DEPTH && path.split('/').all(is_plain_file_name)
}

impl GgufName {
    /// Refuses a path that leads out of the repository.
    pub fn check(&self) -> Result<(), HubError> {
        match self {
            Self::File(path) if !is_plain_path(path) => Err(HubError::new(
                HubErrorKind::BadName,
                format!("{} is not the name of a file in a repository", quoted(path)),
                "give OWNER/REPO:FILE.gguf, or OWNER/REPO:Q4_K_M",
            )),
            _ => Ok(()),
        }
    }

    /// The file among those of a repository, all of whose parts are there.
    ///
    /// `what`: the repository, for messages.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn choose<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        what: &str,
    ) -> Result<String, HubError> {
        let has = |name: &str| names.clone().any(|found| found == name);
        let all = names.clone().filter(|name| is_gguf(Path::new(name)) && is_plain_path(name));
        let is_meant = |name: &&str| match self {
            Self::File(path) => name == path,
            // Files of images beside a model are none.
            Self::Type(ty) => parts(name)[0] == **name && !is_projector(name) && is_of(name, ty),
        };
        let found: Vec<&str> = all.clone().filter(is_meant).collect();
        match found[..] {
            [one] => match parts(one).into_iter().find(|part| !has(part)) {
                None => Ok(one.to_owned()),
                Some(part) => Err(HubError::new(
                    HubErrorKind::Incomplete,
                    format!("{what} has no {}, a part of {one}", quoted(&part)),
                    "the repository is incomplete: choose another --revision or model",
                )),
            },
            [] => {
                let asked = match self {
                    Self::File(path) => format!("no file {}", quoted(path)),
                    Self::Type(ty) => format!("no GGUF file of {}", quoted(ty)),
                };
                let help = match all.clone().next() {
                    None => "it has no GGUF file at all".to_owned(),
                    Some(_) => format!("it has {}", shown(all)),
                };
                Err(HubError::new(HubErrorKind::NotFound, format!("{what} has {asked}"), help))
            }
            _ => {
                let several = shown(found.iter().copied());
                Err(HubError::new(
                    HubErrorKind::BadName,
                    format!("{what} has several such GGUF files: {several}"),
                    "name one of them: OWNER/REPO:FILE.gguf",
                ))
            }
        }
    }

    /// The file in a folder, all of whose parts are there; else what is missing, in words.
    pub fn find(&self, folder: &Path) -> Result<String, String> {
        let mut names = Vec::new();
        match self {
            Self::File(path) => {
                names = parts(path);
                names.retain(|name| folder.join(name).is_file());
            }
            Self::Type(_) => list(folder, "", &mut names),
        }
        self.choose(names.iter().map(String::as_str), "it").map_err(|error| error.to_string())
    }
}

/// The file and the other parts of a split one.
pub(super) fn parts(name: &str) -> Vec<String> {
    let paths = gguf_parts(Path::new(name)).into_iter();
    paths.map(|path| path.to_string_lossy().into_owned()).collect()
}

/// Whether a file makes a model see, by its name.
pub(super) fn is_projector(name: &str) -> bool {
    name.to_ascii_lowercase().contains("mmproj")
}

/// Whether a type is a part of the name, and not of another word.
fn is_of(name: &str, ty: &str) -> bool {
    let (name, ty) = (name.to_ascii_lowercase(), ty.to_ascii_lowercase());
    name.match_indices(&ty).any(|(start, _)| {
        let before = name[..start].chars().next_back();
        let after = name[start + ty.len()..].chars().next();
        // Q4_K is not Q4_K_M.
        !before.is_some_and(|c| c.is_alphanumeric())
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn shown<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = names.take(MAX_SHOWN + 1).map(quoted).collect();
    if names.len() > MAX_SHOWN {
        names[MAX_SHOWN] = "...".to_owned();
    }
    names.join(", ")
}

/// Files of a snapshot by their paths in it.
fn list(folder: &Path, prefix: &str, names: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder.join(prefix)) else { return };
    let entries = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    for name in entries.collect::<Vec<_>>() {
        let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        let path = folder.join(&name);
        if path.is_file() {
            names.push(name);
        } else if path.is_dir() && name.split('/').count() < MAX_DEPTH {
            list(folder, &name, names);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_asked_for_in_three_ways() {
        let file = |name: &str| GgufName::File(name.to_owned());
        for (text, wanted) in [
            ("a/b:c.gguf", Some(("a/b", file("c.gguf")))),
            ("a/b/c.GGUF", Some(("a/b", file("c.GGUF")))),
            ("a/b/Q8_0/c.gguf", Some(("a/b", file("Q8_0/c.gguf")))),
            ("a/b:d/c.gguf", Some(("a/b", file("d/c.gguf")))),
            ("a/b:UD-Q4_K_XL", Some(("a/b", GgufName::Type("UD-Q4_K_XL".to_owned())))),
            ("a/b", None),
            ("a/b/c", None),
            ("a/b:", None),
            ("a/b:c d", None),
            ("b:Q4_0", None),
            ("b/c.gguf", None),
            ("./b/c.gguf", None),
            ("~/b/c.gguf", None),
            ("/a/b/c.gguf", None),
            ("a/b/c:Q4_0", None),
        ] {
            assert_eq!(split(text), wanted, "{text}");
        }
        for path in ["../c.gguf", "a//c.gguf", ".c.gguf", "a/b/c/d/e.gguf", "a\\c.gguf"] {
            assert!(file(path).check().is_err(), "{path}");
        }
        assert!(file("a/c.gguf").check().is_ok());
    }

    #[test]
    fn a_type_is_a_word_of_one_name() {
        let names = [
            "README.md",
            "mmproj-m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m.Q4_K.gguf",
            "m_iq4_xs.gguf",
            "F16/m-F16-00001-of-00002.gguf",
            "F16/m-F16-00002-of-00002.gguf",
            "m-Q8_0.gguf",
            "m-Q5_0-00001-of-00002.gguf",
        ];
        let choose = |ty: &str| {
            let name = GgufName::Type(ty.to_owned());
            name.choose(names.into_iter(), "it").map_err(|error| error.to_string())
        };
        for (ty, wanted) in [
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q4_K", "m.Q4_K.gguf"),
            ("IQ4_XS", "m_iq4_xs.gguf"),
            ("Q8_0", "m-Q8_0.gguf"),
            ("F16", "F16/m-F16-00001-of-00002.gguf"),
        ] {
            assert_eq!(choose(ty), Ok(wanted.to_owned()), "{ty}");
        }
        assert!(choose("Q4_XS").unwrap_err().contains("has no GGUF file of `Q4_XS`"));
        assert!(choose("Q5_0").unwrap_err().contains("`m-Q5_0-00002-of-00002.gguf`, a part of"));
        assert!(choose("m").unwrap_err().contains("several such GGUF files: `m-Q4_K_M.gguf`"));
    }
}
