//! Patterns of Python that configs have. They are not trusted: what one match takes is limited.

use fancy_regex::{Regex, RegexBuilder};

use vllm_batch_base::files::quoted;

/// Steps of one match of a pattern. A name is short: more is an attack.
const MATCH_LIMIT: usize = 10_000;

/// Bytes of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 17;

/// A pattern; `text` is what the config has, for messages.
///
/// # Errors
/// It is no pattern, or too large.
pub(super) fn compiled(pattern: &str, text: &str) -> Result<Regex, String> {
    let regex = RegexBuilder::new(pattern)
        .backtrack_limit(MATCH_LIMIT)
        .delegate_size_limit(PATTERN_BYTES)
        .delegate_dfa_size_limit(PATTERN_BYTES)
        .build();
    regex.map_err(|error| format!("{} is no pattern: {error}", quoted(text)))
}

/// Whether the name of a module matches.
///
/// # Errors
/// It takes too long.
pub(super) fn is_match(regex: &Regex, name: &str) -> Result<bool, String> {
    let error = |error| format!("pattern {} and {}: {error}", quoted(regex.as_str()), quoted(name));
    regex.is_match(name).map_err(error)
}
