//! Regexes of a tokenizer that take too long, or that their engine gives up on.
//!
//! fancy-regex gives up on a match after a million steps. The tokenizers crate takes that for the
//! end of the matches: the rest of the text would be cut otherwise than the model was trained, and
//! nobody would know. And a text has a match at every character, each with a million steps. So the
//! same matches are sought here before, with a limit for the whole text, counted in steps and not
//! in time: whether a row is refused depends on the row alone.

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::pipeline::{Normalizer, PipelineNormalizer};

/// Steps of one match: each limit is tried when the one before is not enough. The last is the
/// crate's own.
const MATCH_LIMITS: [usize; 4] = [256, 8192, 131_072, 1_000_000];

/// Steps of all matches of a text that are not within the first limit.
const TEXT_LIMIT: usize = 50_000_000;

/// The regexes of a tokenizer, in the order in which a text meets them.
#[derive(Default)]
pub(super) struct RegexGuard {
    steps: Vec<Step>,
}

enum Step {
    Normalize(PipelineNormalizer),
    Match(LimitedRegex),
}

impl RegexGuard {
    /// What a normalizer does to a text that a regex sees later.
    pub(crate) fn push_normalizer(&mut self, normalizer: PipelineNormalizer) {
        self.steps.push(Step::Normalize(normalizer));
    }

    /// A regex that is sought in the text.
    ///
    /// # Errors
    /// It does not compile.
    pub(crate) fn push_regex(&mut self, pattern: &str) -> Result<(), String> {
        self.steps.push(Step::Match(LimitedRegex::new(pattern)?));
        Ok(())
    }

    /// Whether all regexes find all their matches in the text within the limits.
    ///
    /// # Errors
    /// One does not; the text says so.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        let Some(last) = self.steps.iter().rposition(|step| matches!(step, Step::Match(_))) else {
            return Ok(());
        };
        let mut text = std::borrow::Cow::Borrowed(text);
        for step in &self.steps[..=last] {
            match step {
                Step::Match(regex) => regex.check(&text)?,
                Step::Normalize(normalizer) => {
                    let normalized = normalizer.normalize(&text, 0).map_err(|e| e.to_string())?;
                    text = normalized.into_owned().into();
                }
            }
        }
        Ok(())
    }
}

/// One pattern, with each of the limits.
struct LimitedRegex {
    pattern: String,
    regexes: Vec<Regex>,
}

impl LimitedRegex {
    fn new(pattern: &str) -> Result<Self, String> {
        let build = |limit| RegexBuilder::new(pattern).backtrack_limit(limit).build();
        let regexes = MATCH_LIMITS.into_iter().map(build).collect::<Result<_, _>>();
        let regexes = regexes.map_err(|error| error.to_string())?;
        Ok(Self { pattern: pattern.to_owned(), regexes })
    }

    fn check(&self, text: &str) -> Result<(), String> {
        let (mut at, mut num_steps) = (0, 0);
        while at <= text.len() {
            let Some(end) = self.end_of_match(text, at, &mut num_steps)? else { return Ok(()) };
            // An empty match is followed by a search from the next character on.
            at = match end > at {
                true => end,
                false => end + text[end..].chars().next().map_or(1, char::len_utf8),
            };
        }
        Ok(())
    }

    /// Where the next match from `at` on ends.
    fn end_of_match(
        &self,
        text: &str,
        at: usize,
        num_steps: &mut usize,
    ) -> Result<Option<usize>, String> {
        for (regex, limit) in self.regexes.iter().zip(MATCH_LIMITS) {
            if limit > MATCH_LIMITS[0] {
                *num_steps += limit;
            }
            if *num_steps > TEXT_LIMIT {
                break;
            }
            if let Ok(found) = regex.find_from_pos(text, at) {
                return Ok(found.map(|found| found.end()));
            }
        }
        let pattern: String = self.pattern.escape_debug().take(60).collect();
        Err(format!("the tokenizer's pattern `{pattern}` takes too many steps on it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(pattern: &str) -> RegexGuard {
        let mut guard = RegexGuard::default();
        guard.push_regex(pattern).unwrap();
        guard
    }

    #[test]
    fn patterns_that_explode_are_refused_on_the_texts_that_they_explode_on() {
        for pattern in ["(?:(?=a)a|a)*(?=b)", "(a*)*\\1$"] {
            let guard = guard(pattern);
            assert!(guard.check("hello world").is_ok(), "{pattern}");
            assert!(guard.check(&("a".repeat(60) + "!")).is_err(), "{pattern}");
            assert!(guard.check(&("a".repeat(60) + "! ").repeat(50)).is_err(), "{pattern}");
        }
    }

    #[test]
    fn patterns_of_published_tokenizers_take_long_runs() {
        let pattern = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
        let guard = guard(pattern);
        for text in ["a", " ", "\n", "1", "!", "é", " a", "a b\n", ""] {
            assert_eq!(guard.check(&text.repeat(20_000)), Ok(()), "{text:?}");
        }
    }

    #[test]
    fn a_regex_sees_what_normalizers_make() {
        use tokenizers::normalizers::Replace;
        use tokenizers::normalizers::replace::ReplacePattern;
        let mut guard = RegexGuard::default();
        let replace = Replace::new(ReplacePattern::String("x".into()), "a".repeat(60)).unwrap();
        guard.push_normalizer(PipelineNormalizer::Replace(replace));
        guard.push_regex("(?:(?=a)a|a)*(?=b)").unwrap();
        assert!(guard.check("a!").is_ok() && guard.check("x!").is_err());
    }
}
