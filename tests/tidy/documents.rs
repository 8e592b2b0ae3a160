//! What documents name is there: links, anchors, files, functions, and files that are shown whole.

use std::collections::{BTreeMap, BTreeSet};

/// A document's lines outside of fenced blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line))
    })
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut times = BTreeMap::<String, usize>::new();
    for (_, line) in prose(text) {
        let Some((marks, title)) = line.split_once(' ') else { continue };
        if marks.is_empty() || marks.contains(|c| c != '#') {
            continue;
        }
        let kept = title.to_lowercase().replace(' ', "-");
        let kept: String =
            kept.chars().filter(|&c| c.is_alphanumeric() || "-_".contains(c)).collect();
        let times = times.entry(kept.clone()).or_default();
        found.insert(if *times == 0 { kept } else { format!("{kept}-{times}") });
        *times += 1;
    }
    found
}

/// Targets of links of a line: `(target)` behind `]`.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// Links that lead to no file of the repository, or to no heading of a document.
/// `documents`: paths and texts. `is_there`: whether the repository has a file or folder.
pub fn broken_links(
    documents: &BTreeMap<String, String>,
    is_there: impl Fn(&str) -> bool,
) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, text) in documents {
        for (line, target) in prose(text).flat_map(|(at, line)| links(line).map(move |l| (at, l))) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { beside(path, file) };
            let has_anchor = match documents.get(&file) {
                Some(text) => anchor.is_empty() || anchors(text).contains(anchor),
                None => anchor.is_empty() && is_there(&file),
            };
            if !has_anchor {
                violations.push(format!("{path}:{line}: no {target}"));
            }
        }
    }
    violations
}

/// The path of a file that a document names from its own folder.
fn beside(document: &str, file: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Texts between back ticks outside of fenced blocks, with their lines.
fn ticked(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(at, line)| line.split('`').skip(1).step_by(2).map(move |t| (at, t)))
}

/// Folders of the repository that begin a path.
const FOLDERS: &[&str] = &[
    ".ci/",
    "benches/",
    "docs/",
    "examples/",
    "fuzz/",
    "kernels/",
    "oracles/",
    "python/",
    "scripts/",
    "src/",
    "testdata/",
    "tests/",
];

/// Names of files that a document forbids.
const FORBIDDEN: &[&str] = &["build.rs"];

/// Files that a document names between back ticks, and that the repository does not have: paths
/// from its root, and ends of paths of sources (`spec/attention.rs`).
pub fn missing_files(path: &str, text: &str, files: &[String]) -> Vec<String> {
    let mut violations = Vec::new();
    for (line, ticked) in ticked(text) {
        let first = ticked.split([' ', ':', ',']).next().unwrap_or("").trim_end_matches('/');
        let is_pattern = first.contains(['*', '<', '{', '[', '$']);
        let is_rooted = FOLDERS.iter().any(|folder| first.starts_with(folder));
        let is_source = [".rs", ".cu", ".cuh"].iter().any(|ending| first.ends_with(ending));
        if is_pattern || !(is_rooted || is_source) || FORBIDDEN.contains(&first) {
            continue;
        }
        let (folder, end) = (format!("{first}/"), format!("/{first}"));
        let is_it = |file: &String| {
            file == first || file.starts_with(&folder) || (is_source && file.ends_with(&end))
        };
        if !files.iter().any(is_it) {
            violations.push(format!("{path}:{line}: no file {first}"));
        }
    }
    violations
}

/// Functions of other crates that documents of the code name.
const FOREIGN: &[&str] = &["array::from_fn", "Matcher::clone"];

/// Functions that a document names, as `name()` or `Type::name`, and that no source has.
pub fn missing_functions(path: &str, text: &str, sources: &[String]) -> Vec<String> {
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let mut violations = Vec::new();
    for (line, ticked) in ticked(text) {
        let (named, is_called) = match ticked.split_once('(') {
            Some((named, rest)) if rest.ends_with(')') => (named, true),
            _ => (ticked, false),
        };
        let parts: Vec<&str> = named.split("::").collect();
        let is_function = (is_called || parts.len() > 1) && parts.iter().all(|part| is_name(part));
        let (Some(last), true) = (parts.last(), is_function) else { continue };
        let is_type = last.starts_with(|c: char| c.is_uppercase());
        let words = match is_type {
            true => [format!(" {last}"), format!("::{last}"), format!("({last}")],
            false => [format!("fn {last}"), format!("mod {last}"), format!("void {last}")],
        };
        let has = |source: &String| words.iter().any(|word| has_word(source, word));
        if !FOREIGN.contains(&named) && !sources.iter().any(has) {
            violations.push(format!("{path}:{line}: no function {named}"));
        }
    }
    violations
}

/// Whether a text has a word that no letter follows.
fn has_word(text: &str, word: &str) -> bool {
    let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| !text[at + word.len()..].starts_with(goes_on))
}

/// Blocks behind "`path`, whole:" that differ from the file.
pub fn differing_copies(path: &str, text: &str, read: impl Fn(&str) -> String) -> Vec<String> {
    let mut violations = Vec::new();
    for (at, _) in text.match_indices("`, whole:") {
        let file = text[..at].rsplit('`').next().unwrap_or("");
        let block = text[at..].split("```").nth(1).and_then(|block| block.split_once('\n'));
        if block.is_none_or(|(_, block)| block != read(file)) {
            violations.push(format!("{path}: the copy of {file} differs from the file"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_there_are_found() {
        let files = ["src/a/b.rs", "scripts/run"].map(str::to_owned);
        let page = "`a/b.rs` `src/a/b.rs:7` `src/a/` `scripts/run --x` `src/*.rs` `b` `build.rs` `x.md`\n\
                    `src/c` `c/b.rs`\n```\n`src/d`\n```";
        let found = missing_files("docs/A.md", page, &files);
        assert_eq!(found, ["docs/A.md:2: no file src/c", "docs/A.md:2: no file c/b.rs"]);
    }

    #[test]
    fn functions_that_are_not_there_are_found() {
        let sources = ["impl A {\n    fn one(x: u32) {}\n}\nenum C { D(u8) }".to_owned()];
        let page = "`A::one` `one()` `one(x)` `C::D` `A` `two`\n`A::on` `A::ones` `two()` `C::E`";
        let found = missing_functions("docs/A.md", page, &sources);
        let expected = ["A::on", "A::ones", "two", "C::E"];
        assert_eq!(found, expected.map(|name| format!("docs/A.md:2: no function {name}")));
    }

    #[test]
    fn a_copy_that_differs_is_found() {
        let page =
            "`a.rs`, whole:\n\n```rust\nfn a() {}\n```\n`b.rs`, whole:\n```rust\nfn b() {}\n```";
        let found = differing_copies("docs/A.md", page, |_| "fn a() {}\n".to_owned());
        assert_eq!(found, ["docs/A.md: the copy of b.rs differs from the file"]);
    }

    #[test]
    fn broken_links_are_found() {
        let page = "# A `b`, c\n\n[x](#a-b-c) [x](#a-b-c-1) [x](../README.md#d) [x](../e.rs) \
                    [x](B.md#gone)\n## A b c\n```\n# no heading\n[x](no link)\n```\n[x](#no-heading)";
        let documents = [("docs/A.md", page), ("docs/B.md", "# B"), ("README.md", "# C\n## D")];
        let documents = documents.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found = broken_links(&documents.into(), |path| path == "e.rs");
        assert_eq!(found, ["docs/A.md:3: no B.md#gone", "docs/A.md:9: no #no-heading"]);
        let only = [("docs/A.md".to_owned(), "[x](e.rs)".to_owned())];
        assert_eq!(broken_links(&only.into(), |path| path == "e.rs").len(), 1);
    }
}
