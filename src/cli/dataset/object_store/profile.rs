//! The files in which the tools of AWS keep keys and settings: `~/.aws/credentials` and
//! `~/.aws/config`, as `name = value` in sections; an indented line belongs to the name above it.

use std::collections::BTreeMap;

/// Sections by their names; values by theirs, an indented one as `outer.inner`.
#[derive(Debug, Default)]
pub(super) struct Sections(BTreeMap<String, BTreeMap<String, String>>);

impl Sections {
    /// Reads a file. What is no line of it is passed over, as the tools of AWS do.
    pub(super) fn parse(text: &str) -> Self {
        let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
        let (mut section, mut outer) = (None, String::new());
        for line in text.lines() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                let words: Vec<&str> = name.split_whitespace().collect();
                section = Some(words.join(" "));
                continue;
            }
            let (Some(section), Some((name, value))) = (&section, trimmed.split_once('=')) else {
                continue;
            };
            let name = name.trim();
            // A comment needs a blank before it: a secret may have `#` within.
            let value = value.split(" #").next().unwrap_or(value).trim().to_owned();
            let is_inner = line.starts_with([' ', '\t']) && !outer.is_empty();
            let name = if is_inner { format!("{outer}.{name}") } else { name.to_owned() };
            if !is_inner {
                outer = name.clone();
            }
            sections.entry(section.clone()).or_default().insert(name, value);
        }
        Self(sections)
    }

    /// Whether there is a section of this name.
    pub(super) fn has(&self, section: &str) -> bool {
        self.0.contains_key(section)
    }

    /// A value that is there and not empty.
    pub(super) fn get(&self, section: &str, name: &str) -> Option<&str> {
        let value = self.0.get(section)?.get(name)?;
        (!value.is_empty()).then_some(value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_values_and_values_within() {
        let text = "\
# of mine
[default]
region = eu-west-1
[profile  work]
aws_access_key_id=A  # mine
aws_secret_access_key = s#cr=t
services = local
s3 =
  addressing_style = path
[services local]
s3 =
  endpoint_url = http://127.0.0.1:9000
";
        let found = Sections::parse(text);
        assert_eq!(found.get("default", "region"), Some("eu-west-1"));
        assert_eq!(found.get("profile work", "aws_access_key_id"), Some("A"));
        assert_eq!(found.get("profile work", "aws_secret_access_key"), Some("s#cr=t"));
        assert_eq!(found.get("profile work", "s3"), None, "it is empty");
        assert_eq!(found.get("profile work", "s3.addressing_style"), Some("path"));
        let endpoint = found.get("services local", "s3.endpoint_url");
        assert_eq!(endpoint, Some("http://127.0.0.1:9000"));
        assert!(found.has("services local") && !found.has("work"));
    }
}
