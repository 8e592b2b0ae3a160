//! Settings of scoring from the flags of `eval`, and the names that they are typed with.

use std::time::Duration;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::work::{TooMuch, Work};

/// Largest program that a pattern may become. Matching is linear in the text whatever the pattern.
const MAX_PATTERN: usize = 4 << 20;

/// Comparison of an answer with the expected value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scorer {
    /// Equal after `--normalize`.
    Exact,
    /// The answer has the expected text in it.
    Contains,
    /// The same, upper and lower case alike.
    IContains,
    /// The answer begins with the expected text.
    StartsWith,
    /// The expected text is a regular expression that matches somewhere.
    Regex,
    /// The last number of the answer.
    Number,
    /// The letter that the answer gives, as in tests with choices.
    Letter,
    /// The answer is JSON, equal to what is expected where something is.
    Json,
    /// The answer is JSON as the schema says that is expected.
    JsonSchema,
    /// Words in common, as SQuAD counts them.
    F1,
    /// Likeness by single characters that are inserted, left out or replaced.
    Levenshtein,
    /// The same as DocVQA counts it: nothing below a half.
    Anls,
    /// How many people gave the same answer about an image.
    Vqa,
    /// Words to change, of those that were expected.
    Wer,
    /// Characters to change, of those that were expected.
    Cer,
    /// Words in common in their order.
    RougeL,
    /// N-grams of words in common, as sacreBLEU counts them.
    Bleu,
    /// N-grams of characters in common, as sacreBLEU counts them.
    Chrf,
    /// The likeliest of `choices`.
    Choice,
    /// The log-likelihood of a text.
    Perplexity,
    /// A program of the user's.
    Command,
}

impl Scorer {
    /// Whether it knows more than right and wrong.
    pub fn is_graded(self) -> bool {
        match self {
            Scorer::F1
            | Scorer::Levenshtein
            | Scorer::Anls
            | Scorer::Vqa
            | Scorer::Wer
            | Scorer::Cer
            | Scorer::RougeL
            | Scorer::Bleu
            | Scorer::Chrf
            | Scorer::Perplexity => true,
            Scorer::Exact
            | Scorer::Contains
            | Scorer::IContains
            | Scorer::StartsWith
            | Scorer::Regex
            | Scorer::Number
            | Scorer::Letter
            | Scorer::Json
            | Scorer::JsonSchema
            | Scorer::Choice
            | Scorer::Command => false,
        }
    }
}

impl Settings {
    /// Those that change what a verdict means, as outputs and reports say them.
    pub fn described(&self) -> Map<String, Value> {
        let names: Vec<&str> = self.scorers.iter().map(|scorer| scorer.name()).collect();
        let names =
            if names.is_empty() { "assert, else exact".to_owned() } else { names.join(",") };
        let pattern = |regex: &Option<Regex>| regex.as_ref().map(|regex| regex.as_str().to_owned());
        let fields = [
            ("scorer", Some(names)),
            ("expected_column", self.expected_column.clone()),
            ("expected_extract", pattern(&self.expected_extract)),
            ("extract", pattern(&self.extract)),
            ("normalize", self.normalize.map(|how| how.name().to_owned())),
            ("pass_if", self.pass_if.map(|pass_if| pass_if.to_string())),
            ("scorer_command", self.command.clone()),
        ];
        let said =
            fields.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into())));
        said.collect()
    }
}

impl std::fmt::Display for PassIf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign =
            ORDERS.iter().find(|(_, order)| *order == self.order).map_or("", |(sign, _)| sign);
        write!(f, "{sign} {}", self.limit)
    }
}

impl Scorer {
    /// All, with what they are called.
    pub const ALL: [(&'static str, Self); 21] = [
        ("exact", Self::Exact),
        ("contains", Self::Contains),
        ("icontains", Self::IContains),
        ("starts-with", Self::StartsWith),
        ("regex", Self::Regex),
        ("number", Self::Number),
        ("letter", Self::Letter),
        ("json", Self::Json),
        ("json-schema", Self::JsonSchema),
        ("f1", Self::F1),
        ("levenshtein", Self::Levenshtein),
        ("anls", Self::Anls),
        ("vqa", Self::Vqa),
        ("wer", Self::Wer),
        ("cer", Self::Cer),
        ("rouge-l", Self::RougeL),
        ("bleu", Self::Bleu),
        ("chrf", Self::Chrf),
        ("choice", Self::Choice),
        ("perplexity", Self::Perplexity),
        ("command", Self::Command),
    ];

    /// The scorer of a name.
    ///
    /// # Errors
    /// There is none.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, scorer)| *scorer).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("there is no scorer `{name}`; there are {}", names.join(", "))
        })
    }

    /// Name of the scorer.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, scorer)| *scorer == self);
        found.expect("all are in the table").0
    }
}

/// Normalization of texts before they are compared (`--normalize`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalize {
    /// Nothing.
    None,
    /// Spaces and line breaks around the text are left out.
    #[default]
    Strip,
    /// The same, in lower case.
    Lower,
    /// As SQuAD: lower case, without punctuation and articles, single spaces.
    Squad,
    /// As Whisper's `BasicTextNormalizer`: lower case, without marks, symbols, punctuation and what
    /// is in brackets, single spaces.
    Basic,
}

impl Normalize {
    /// As `--normalize` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Strip => "strip",
            Self::Lower => "lower",
            Self::Squad => "squad",
            Self::Basic => "basic",
        }
    }
}

/// A score that passes (`--pass-if`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassIf {
    order: Order,
    limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    AtLeast,
    Over,
    AtMost,
    Under,
    Equal,
}

/// Longer ones first: `>=` begins with `>`.
const ORDERS: [(&str, Order); 5] = [
    (">=", Order::AtLeast),
    ("<=", Order::AtMost),
    ("==", Order::Equal),
    (">", Order::Over),
    ("<", Order::Under),
];

impl PassIf {
    /// Passes from this score on.
    pub fn at_least(limit: f64) -> Self {
        Self { order: Order::AtLeast, limit }
    }

    /// Reads `>= 0.8`. A bare number is one to reach.
    ///
    /// # Errors
    /// There is no number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let found = ORDERS
            .iter()
            .find_map(|(sign, order)| text.strip_prefix(sign).map(|rest| (*order, rest)));
        let (order, number) = found.unwrap_or((Order::AtLeast, text));
        let limit: Option<f64> = number.trim().parse().ok().filter(|limit: &f64| limit.is_finite());
        let limit = limit.ok_or("expected a number, perhaps after >=, >, <=, < or ==")?;
        Ok(Self { order, limit })
    }

    /// Whether a score passes.
    pub fn holds(self, score: f64) -> bool {
        match self.order {
            Order::AtLeast => score >= self.limit,
            Order::Over => score > self.limit,
            Order::AtMost => score <= self.limit,
            Order::Under => score < self.limit,
            Order::Equal => score == self.limit,
        }
    }
}

/// Scoring of rows that do not say it themselves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Requested scorers; empty: the row's fields decide.
    pub scorers: Vec<Scorer>,
    /// The field with what is expected; None: the usual names.
    pub expected_column: Option<String>,
    /// Pattern for the right part of the expected text: its first group, else the whole match.
    pub expected_extract: Option<Regex>,
    /// Before texts are compared; None: scorers strip them, and asserts take them as they are.
    pub normalize: Option<Normalize>,
    /// Pattern for the part of the answer that is scored: its first group, else the whole match.
    pub extract: Option<Regex>,
    /// Scores that pass; `None`: 1, of scorers that know only right and wrong.
    pub pass_if: Option<PassIf>,
    /// The program of the scorer `command`.
    pub command: Option<String>,
    /// Longest time of the program for one answer.
    pub command_timeout: Option<Duration>,
    /// The field of a row that holds the answer.
    pub out_field: String,
}

/// The first match of a pattern in a text: its first group, else the whole.
///
/// # Errors
/// As `affordable`.
pub fn first_match<'t>(pattern: &Regex, text: &'t str) -> Result<Option<&'t str>, TooMuch> {
    affordable(pattern, text)?;
    let found = pattern.captures(text);
    Ok(found.and_then(|found| Some(found.get(1).or(found.get(0))?.as_str())))
}

/// Whether a pattern can be matched against a text: each byte may take a step for each state.
///
/// # Errors
/// That would be too many.
pub fn affordable(pattern: &Regex, text: &str) -> Result<(), TooMuch> {
    let most = Work::program(text.len());
    if most >= MAX_PATTERN as u64 {
        return Ok(());
    }
    let size = usize::try_from(most).unwrap_or(MAX_PATTERN);
    match RegexBuilder::new(pattern.as_str()).size_limit(size).build() {
        Ok(_) => Ok(()),
        Err(_) => {
            let text = text.len();
            Err(TooMuch(format!("the regular expression is too large for a text of {text} bytes")))
        }
    }
}

/// A pattern that is matched in linear time.
///
/// # Errors
/// It is none, or needs what no linear matcher has, as look-around.
pub fn pattern(text: &str) -> Result<Regex, String> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).build().map_err(|error| {
        // The last line of its message says what is wrong; the others show where.
        let message = error.to_string();
        let last = message.lines().last().unwrap_or_default();
        format!("`{text}` is no regular expression: {}", last.trim_start_matches("error: "))
    })
}

/// The same of a pattern of JavaScript, whose `\d`, `\w` and `\b` are of ASCII.
///
/// # Errors
/// As `pattern`.
pub fn javascript_pattern(text: &str) -> Result<Regex, String> {
    let mut ours = String::with_capacity(text.len());
    let (mut chars, mut is_class) = (text.chars(), false);
    while let Some(c) = chars.next() {
        match c {
            '[' if !is_class => is_class = true,
            ']' => is_class = false,
            // In JavaScript a bracket within a class is one of its characters.
            '[' => ours.push('\\'),
            '\\' => {
                let escaped = chars.next().unwrap_or_default();
                match (escaped, is_class) {
                    ('d', true) => ours.push_str("0-9"),
                    ('d', false) => ours.push_str("[0-9]"),
                    ('D', false) => ours.push_str("[^0-9]"),
                    ('w', true) => ours.push_str("0-9A-Za-z_"),
                    ('w', false) => ours.push_str("[0-9A-Za-z_]"),
                    ('W', false) => ours.push_str("[^0-9A-Za-z_]"),
                    ('b', false) => ours.push_str(r"(?-u:\b)"),
                    ('B', false) => ours.push_str(r"(?-u:\B)"),
                    _ => ours.extend(['\\', escaped]),
                }
                continue;
            }
            _ => {}
        }
        ours.push(c);
    }
    pattern(&ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_pass_by_every_sign() {
        let cases = [
            ("0.5", [false, true, true]),
            (">= 0.5", [false, true, true]),
            (">0.5", [false, false, true]),
            ("<= 0.5", [true, true, false]),
            (" < 0.5", [true, false, false]),
            ("== 0.5", [false, true, false]),
        ];
        for (text, expected) in cases {
            let pass_if = PassIf::parse(text).expect(text);
            assert_eq!([0.25, 0.5, 0.75].map(|score| pass_if.holds(score)), expected, "{text}");
        }
        for text in ["", ">=", "=> 1", "inf", "a"] {
            assert!(PassIf::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for (name, scorer) in Scorer::ALL {
            assert_eq!(Scorer::parse(name), Ok(scorer));
            assert_eq!(scorer.name(), name);
        }
        let error = Scorer::parse("exakt").unwrap_err();
        assert!(error.starts_with("there is no scorer `exakt`; there are exact, "), "{error}");
    }

    #[test]
    fn patterns_of_javascript_know_ascii() {
        let cases = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w-]+$", "a_b-1", true),
            (r"^\w+$", "é", false),
            (r"\bis\b", "it is so", true),
            (r"\bis\b", "éis", true),
            (r"a\/b[[]", "a/b[", true),
        ];
        for (regex, text, expected) in cases {
            assert_eq!(
                javascript_pattern(regex).unwrap().is_match(text),
                expected,
                "{regex} {text}"
            );
        }
    }

    #[test]
    fn a_large_pattern_is_too_much_work_for_a_long_text() {
        let large = pattern("a{100000}").unwrap();
        assert_eq!(affordable(&large, "aa"), Ok(()));
        assert!(affordable(&large, &"a".repeat(300_000)).is_err());
        assert_eq!(affordable(&pattern(r"(?i)the \w+").unwrap(), &"a".repeat(100_000)), Ok(()));
    }

    #[test]
    fn a_pattern_that_is_none_says_why() {
        let error = pattern("a(").unwrap_err();
        assert_eq!(error, "`a(` is no regular expression: unclosed group");
        assert!(pattern("(?=a)").is_err(), "look-around has no linear time");
    }
}
