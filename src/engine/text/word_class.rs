//! `\w` of a tokenizer.json, which the library that trained it read by Oniguruma: other than in
//! Rust, joiners (U+200C, U+200D) are no part of a word, and the numbers of Latin-1 (`²`) are.

use serde_json::Value;
use tokenizers::pre_tokenizers::whitespace::is_word_char;

/// The characters of a word, as a class of Rust's regexes.
const WORD: &str = r"[[\w²³¹¼½¾]--[\x{200C}\x{200D}]]";
const NO_WORD: &str = r"[^[\w²³¹¼½¾]--[\x{200C}\x{200D}]]";

/// Whether a character is one of a word to what finds added tokens, which is Rust's `\w`.
pub(super) fn is_word(char: char) -> bool {
    is_word_char(char)
}

/// Rewrites the patterns of a tokenizer.json.
pub(super) fn rewrite(tokenizer: &mut Value) {
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        tokenizer.get_mut(part).into_iter().for_each(rewrite_patterns);
    }
}

/// The same of a normalizer, a pre-tokenizer or a decoder.
fn rewrite_patterns(part: &mut Value) {
    for children in ["normalizers", "pretokenizers", "decoders"] {
        let children = part.get_mut(children).and_then(Value::as_array_mut);
        children.into_iter().flatten().for_each(rewrite_patterns);
    }
    let pattern = part.get_mut("pattern").and_then(|pattern| pattern.get_mut("Regex"));
    if let Some(Value::String(pattern)) = pattern {
        *pattern = rewritten(pattern);
    }
}

/// A pattern with its words spelled out.
fn rewritten(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut depth = 0usize;
    while let Some(c) = chars.next() {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if c != '\\' {
            out.push(c);
            continue;
        }
        match (chars.next(), depth) {
            (Some('w'), _) => out.push_str(WORD),
            (Some('W'), _) => out.push_str(NO_WORD),
            (Some('b'), 0) => {
                out.push_str(&format!("(?:(?<={WORD})(?!{WORD})|(?<!{WORD})(?={WORD}))"));
            }
            (Some('B'), 0) => {
                out.push_str(&format!("(?:(?<={WORD})(?={WORD})|(?<!{WORD})(?!{WORD}))"));
            }
            (next, _) => {
                out.push(c);
                out.extend(next);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use fancy_regex::Regex;

    use super::*;

    fn matches(pattern: &str, text: &str) -> Vec<String> {
        let regex = Regex::new(&rewritten(pattern)).unwrap();
        regex.find_iter(text).map(|found| found.unwrap().as_str().to_owned()).collect()
    }

    // From tokenizers 0.23.3 (Oniguruma), by `Split` with each pattern.
    #[test]
    fn joiners_are_no_part_of_a_word_and_numbers_of_latin_1_are() {
        for (pattern, text, wanted) in [
            (r"\w+", "a\u{200d}b\u{200c}c", &["a", "b", "c"][..]),
            (r"[\w\-]+", "a\u{200d}b-c", &["a", "b-c"]),
            (r"\w+", "a²b aⅣb a\u{301}b ①", &["a²b", "aⅣb", "a\u{301}b"]),
            (r"\W+", "a\u{200d}b", &["\u{200d}"]),
            (r"[^\w]+", "a\u{200d} b", &["\u{200d} "]),
            (r"[^\W]+", "a\u{200d}b", &["a", "b"]),
            (r"\bb", "a\u{200d}b ab", &["b"]),
            (r"\\w", r"a\w", &[r"\w"]),
        ] {
            assert_eq!(matches(pattern, text), wanted, "{pattern}");
        }
    }

    #[test]
    fn patterns_of_all_parts_are_rewritten_and_others_stay() {
        let mut part = serde_json::json!({"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": r"\w"}},
            {"type": "Split", "pattern": {"Regex": r"\p{L}+|[\s\d]"}},
            {"type": "Split", "pattern": {"String": r"\w"}}]});
        rewrite_patterns(&mut part);
        let of = |index: usize| &part["pretokenizers"][index]["pattern"];
        assert_eq!(of(0)["Regex"], WORD);
        assert_eq!(of(1)["Regex"], r"\p{L}+|[\s\d]");
        assert_eq!(of(2)["String"], r"\w");
    }
}
