//! How texts are normalized, and how they become words.

use std::sync::Arc;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::judge::settings::Normalize;
use vllm_batch_base::deep_stack::DeepStack;

/// Patterns that several scorers need, compiled once for a run.
#[derive(Debug)]
pub struct Patterns {
    articles: Regex,
    /// What Whisper leaves out: words in brackets, and in parentheses.
    bracketed: [Regex; 2],
    /// What sacreBLEU's tokenizer `13a` replaces, in this order.
    pub(super) bleu: [(Regex, &'static str); 4],
    /// How an answer gives a letter, the surest form first.
    pub(super) letters: [Regex; 4],
    /// Where the schemas of rows are compiled and asked.
    pub stack: Arc<DeepStack>,
}

impl Default for Patterns {
    fn default() -> Self {
        let compiled = |text: &str| Regex::new(text).expect("it is a pattern");
        Self {
            articles: compiled(r"\b(?:a|an|the)\b"),
            bracketed: [r"[<\[][^>\]]*[>\]]", r"\([^)]+?\)"].map(compiled),
            bleu: [
                (compiled(r"([\{-~\[-\x60\x20-\x26\(-\+:-@/])"), " $1 "),
                (compiled(r"([^0-9])([\.,])"), "$1 $2 "),
                (compiled(r"([\.,])([^0-9])"), " $1 $2"),
                (compiled(r"([0-9])(-)"), "$1 $2 "),
            ],
            letters: [
                r"(?i)answer\s*:\s*\**\s*\(?([a-j])(?:\W|$)",
                r"(?i)answer\s+is\s*:?\s*\**\s*\(?([a-j])(?:\W|$)",
                r"^\W*([A-J])[\).:]+(?:\s|\*|$)",
                r"^\W*([A-Ja-j])\W*$",
            ]
            .map(compiled),
            stack: Arc::default(),
        }
    }
}

impl Patterns {
    /// A text as `--normalize` says.
    pub fn normalized(&self, text: &str, normalize: Normalize) -> String {
        match normalize {
            Normalize::None => text.to_owned(),
            Normalize::Strip => text.trim().to_owned(),
            Normalize::Lower => text.trim().to_lowercase(),
            Normalize::Squad => self.squad(text).join(" "),
            Normalize::Basic => self.basic(text),
        }
    }

    /// A text as Whisper's `BasicTextNormalizer` leaves it, without spaces around it.
    fn basic(&self, text: &str) -> String {
        let mut text = text.to_lowercase();
        for bracketed in &self.bracketed {
            text = bracketed.replace_all(&text, "").into_owned();
        }
        let is_kept = |c: &char| {
            let group = c.general_category_group();
            use GeneralCategoryGroup::{Mark, Punctuation, Symbol};
            !matches!(group, Mark | Symbol | Punctuation)
        };
        let plain = text.nfkc().map(|c| if is_kept(&c) { c } else { ' ' });
        let plain = plain.collect::<String>().to_lowercase();
        plain.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The words that SQuAD's scorer compares: lower case, without ASCII punctuation, without
    /// articles.
    pub fn squad(&self, text: &str) -> Vec<String> {
        let mut text = text.to_lowercase();
        text.retain(|c| !c.is_ascii_punctuation());
        let text = self.articles.replace_all(&text, " ");
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// The words that ROUGE compares: runs of ASCII letters and digits, in lower case.
pub fn rouge(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_normalized_as_the_name_says() {
        let patterns = Patterns::default();
        let text = " The  Cat's\u{a0}an answer.\n";
        let cases = [
            (Normalize::None, text),
            (Normalize::Strip, "The  Cat's\u{a0}an answer."),
            (Normalize::Lower, "the  cat's\u{a0}an answer."),
            (Normalize::Squad, "cats answer"),
            (Normalize::Basic, "the cat s an answer"),
        ];
        for (normalize, expected) in cases {
            assert_eq!(patterns.normalized(text, normalize), expected, "{normalize:?}");
        }
        assert_eq!(rouge("Don't stop-2 Ünder"), ["don", "t", "stop", "2", "nder"]);
    }
}
