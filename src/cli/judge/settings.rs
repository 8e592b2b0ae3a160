//! What the flags of `eval` say about judging, and the names that they are typed with.

use regex::{Regex, RegexBuilder};

/// Largest program that a pattern may become. Matching is linear in the text whatever the pattern.
const MAX_PATTERN: usize = 4 << 20;

/// How an answer is compared with what is expected.
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
    /// All, with what they are called.
    pub const ALL: [(&'static str, Self); 17] = [
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

    /// What it is called.
    pub fn name(self) -> &'static str {
        let found = Self::ALL.iter().find(|(_, scorer)| *scorer == self);
        found.expect("all are in the table").0
    }
}

/// What is done to texts before they are compared (`--normalize`).
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

/// How rows are judged, where they do not say it themselves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What was asked for; none: what a row has decides.
    pub scorers: Vec<Scorer>,
    /// The field with what is expected; None: the usual names.
    pub expected_column: Option<String>,
    /// Before texts are compared.
    pub normalize: Normalize,
    /// What of the answer is judged: its first group, else the whole match.
    pub extract: Option<Regex>,
    /// Which scores pass; None: 1, of scorers that know only right and wrong.
    pub pass_if: Option<PassIf>,
    /// The program of the scorer `command`.
    pub command: Option<String>,
    /// The field of a row that holds the answer.
    pub out_field: String,
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
    fn a_pattern_that_is_none_says_why() {
        let error = pattern("a(").unwrap_err();
        assert_eq!(error, "`a(` is no regular expression: unclosed group");
        assert!(pattern("(?=a)").is_err(), "look-around has no linear time");
    }
}
