//! How likely known texts are: what is asked of the engine, and what it answers, by the rules of
//! lm-evaluation-harness 0.4.13.

use super::request::PositionLogprobs;

/// Tokens of which the last ones are scored: each is given those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownText {
    /// At least two.
    pub token_ids: Vec<u32>,
    /// How many of them are scored: not 0, and never the first.
    pub num_scored: usize,
}

/// Texts of which it is asked how likely each is after what all begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceTexts {
    texts: Vec<KnownText>,
    num_shared: usize,
}

/// A text in windows that score each of its tokens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollingText {
    /// In the order of the text.
    pub windows: Vec<KnownText>,
    /// Words: what is between runs of white space, empty ones at the ends included.
    pub num_words: usize,
    /// UTF-8 bytes.
    pub num_bytes: usize,
}

/// How likely some tokens are, each given those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Likelihood {
    /// Sum of their logprobs, in their order.
    pub logprob: f64,
    /// Each is the likeliest in its place; of equally likely ones that is the first.
    pub is_greedy: bool,
    /// How many they are.
    pub num_tokens: usize,
}

/// What is known of the texts of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Scored {
    /// Of each choice.
    Choices(Vec<Likelihood>),
    /// Of one text.
    Rolling {
        /// All of its windows.
        total: Likelihood,
        /// As in [`RollingText`].
        num_words: usize,
        /// As in [`RollingText`].
        num_bytes: usize,
    },
}

impl Default for Likelihood {
    /// Of no tokens.
    fn default() -> Self {
        Self { logprob: 0.0, is_greedy: true, num_tokens: 0 }
    }
}

impl ChoiceTexts {
    /// At least one text.
    pub fn new(texts: Vec<KnownText>) -> Self {
        let first = &texts[0].token_ids;
        let shared = |text: &KnownText| {
            let pairs = first.iter().zip(&text.token_ids);
            let num_equal = pairs.take_while(|(one, other)| one == other).count();
            // The logits of the last token before the scored ones are its own.
            num_equal.min(text.token_ids.len() - text.num_scored - 1)
        };
        let num_shared = texts.iter().map(shared).min().expect("there is a text");
        Self { texts, num_shared }
    }

    /// In the order of the choices.
    pub fn texts(&self) -> &[KnownText] {
        &self.texts
    }

    /// Leading tokens that all texts have, and whose logits are those of none: computed once.
    pub fn num_shared(&self) -> usize {
        self.num_shared
    }
}

impl Likelihood {
    /// Takes the next token, whose position has its likeliest token.
    pub fn add(&mut self, position: &PositionLogprobs) {
        let token_id = position.token.token_id;
        self.logprob += f64::from(position.token.logprob);
        self.is_greedy &= position.top.first().is_some_and(|top| top.token_id == token_id);
        self.num_tokens += 1;
    }

    /// Of the tokens of several texts.
    pub fn total(parts: &[Self]) -> Self {
        Self {
            logprob: parts.iter().fold(0.0, |sum, part| sum + part.logprob),
            is_greedy: parts.iter().all(|part| part.is_greedy),
            num_tokens: parts.iter().map(|part| part.num_tokens).sum(),
        }
    }
}

impl KnownText {
    /// All tokens, and how many of the last ones are scored.
    pub fn scored(&self) -> (&Vec<u32>, usize) {
        (&self.token_ids, self.num_scored)
    }

    /// The disjoint windows of a text that is not empty. The first begins with `prefix`, which is
    /// not scored. No window but the first has less than `max_len` tokens before its last one.
    pub fn windows(token_ids: &[u32], prefix: u32, max_len: usize) -> Vec<Self> {
        let mut end = token_ids.len().min(max_len);
        let first = Self { token_ids: [&[prefix], &token_ids[..end]].concat(), num_scored: end };
        let mut windows = vec![first];
        while end < token_ids.len() {
            let start = end;
            end = token_ids.len().min(start + max_len);
            let token_ids = token_ids[end - max_len - 1..end].to_vec();
            windows.push(Self { token_ids, num_scored: end - start });
        }
        windows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_those_of_the_harness() {
        let windows = |count: u32, max_len| {
            let token_ids: Vec<u32> = (0..count).collect();
            let windows = KnownText::windows(&token_ids, 99, max_len);
            windows.into_iter().map(|text| (text.token_ids, text.num_scored)).collect::<Vec<_>>()
        };
        // The example of `loglikelihood_rolling` in lm_eval/api/model.py.
        let expected =
            [(vec![99, 0, 1, 2, 3], 4), (vec![3, 4, 5, 6, 7], 4), (vec![5, 6, 7, 8, 9], 2)];
        assert_eq!(windows(10, 4), expected);
        assert_eq!(windows(8, 4), expected[..2]);
        assert_eq!(windows(3, 4), [(vec![99, 0, 1, 2], 3)]);
    }
}
