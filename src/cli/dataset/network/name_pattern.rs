//! `NamePattern`: which names of a repository or a bucket are meant.

use glob::{MatchOptions, Pattern, PatternError};

/// A pattern of shells: `*` and `?` stand for parts of one name, `**` for any folders.
#[derive(Clone, Debug)]
pub struct NamePattern(Pattern);

impl NamePattern {
    /// From its text.
    ///
    /// # Errors
    /// It is no pattern.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        Pattern::new(text).map(Self)
    }

    /// Whether it means a name.
    pub fn matches(&self, name: &str) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        self.0.matches_with(name, options)
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stays_within_a_folder() {
        let matches = |text: &str, name: &str| NamePattern::new(text).unwrap().matches(name);
        assert!(matches("data/*.jsonl", "data/a.jsonl"));
        assert!(!matches("data/*.jsonl", "data/b/a.jsonl"));
        assert!(matches("data/**/*.jsonl", "data/b/a.jsonl"));
    }
}
