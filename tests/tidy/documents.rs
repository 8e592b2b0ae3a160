//! What documents name: links and anchors.

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

#[cfg(test)]
mod tests {
    use super::*;

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
