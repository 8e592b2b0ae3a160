//! `Suffix`: what followed a row's last tokens, in the row itself and in earlier answers of the
//! run. For answers that are alike. After vLLM's `suffix` (SuffixDecoding), with places in texts
//! instead of trees of them.

use std::collections::HashMap;

use super::{Proposer, guess_each};
use crate::execute::executor::ExecutorError;
use crate::plan::scheduler::DraftStep;
use vllm_batch_api::request::RequestOutput;
use vllm_batch_base::config::SuffixConfig;

/// Tokens that must be equal: places are found by them.
const ANCHOR: usize = 2;

/// Places that vote: the latest ones.
const MAX_PLACES: usize = 32;

/// Tokens of earlier answers that are kept: some tens of MB with the index.
const MAX_TOKENS: usize = 1 << 19;

/// Between answers; no token.
const END: u32 = u32::MAX;

/// The proposer.
#[derive(Clone, Debug)]
pub struct Suffix {
    config: SuffixConfig,
    max_tokens: usize,
    /// Earlier answers, each with `END` after it.
    tokens: Vec<u32>,
    /// Where each of them ends, without `END`.
    ends: Vec<usize>,
    /// Places after two tokens in `tokens`, ascending.
    places: HashMap<[u32; ANCHOR], Vec<u32>>,
}

impl Suffix {
    /// A proposer that has learned nothing.
    pub fn new(config: SuffixConfig) -> Self {
        let (tokens, ends) = (Vec::new(), Vec::new());
        Self { config, max_tokens: MAX_TOKENS, tokens, ends, places: HashMap::new() }
    }

    /// Keeps an answer. When there are too many, the older half goes.
    fn add(&mut self, answer: &[u32]) {
        if answer.len() <= ANCHOR || answer.len() > self.max_tokens / 2 {
            return;
        }
        let is_full = self.ends.len() >= self.config.max_cached_requests
            || self.tokens.len() + answer.len() >= self.max_tokens;
        if is_full {
            self.forget_older_half();
        }
        let start = self.tokens.len();
        self.tokens.extend_from_slice(answer);
        self.ends.push(self.tokens.len());
        self.tokens.push(END);
        for place in start + ANCHOR..start + answer.len() {
            let anchor = anchor_before(&self.tokens, place);
            let places = self.places.entry(anchor).or_default();
            if places.len() == 2 * MAX_PLACES {
                places.drain(..MAX_PLACES);
            }
            places.push(place as u32);
        }
    }

    fn forget_older_half(&mut self) {
        let (tokens, ends) = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.ends));
        self.places.clear();
        let first =
            ends.len().div_ceil(2).min(ends.partition_point(|&end| end < tokens.len() / 2) + 1);
        let starts = std::iter::once(0).chain(ends.iter().map(|end| end + 1));
        for (start, &end) in starts.zip(&ends).skip(first) {
            self.add(&tokens[start..end]);
        }
    }

    /// Up to `room` tokens that may follow those of a row.
    fn guess(&self, row: &[u32], room: usize) -> Vec<u32> {
        if row.len() < ANCHOR {
            return Vec::new();
        }
        let anchor = anchor_before(row, row.len());
        let own = (ANCHOR..row.len()).rev().filter(|&place| anchor_before(row, place) == anchor);
        let own = own.take(MAX_PLACES).map(|place| (row, place));
        let earlier = self.places.get(&anchor).into_iter().flatten().rev().take(MAX_PLACES);
        let earlier = earlier.map(|&place| (&self.tokens[..], place as usize));
        let equal = |(text, place): (&[u32], usize)| {
            let pairs = text[..place].iter().rev().zip(row.iter().rev());
            pairs.take(self.config.max_tree_depth).take_while(|(a, b)| a == b).count()
        };
        let places: Vec<_> = own.chain(earlier).map(|place| (equal(place), place)).collect();
        let longest = places.iter().map(|(equal, _)| *equal).max().unwrap_or(0);
        let mut voters = places.into_iter().filter(|(equal, _)| *equal == longest);
        let mut voters: Vec<_> = voters.by_ref().map(|(_, (text, place))| &text[place..]).collect();
        let most = (longest as f64 * self.config.max_spec_factor) as usize;
        let (mut guessed, mut probability) = (Vec::new(), 1.0);
        while guessed.len() < room.min(most) {
            let Some((token_id, votes)) = elect(&voters) else { break };
            probability *= votes as f64 / voters.len() as f64;
            if token_id == END || probability < self.config.min_token_prob {
                break;
            }
            guessed.push(token_id);
            voters.retain(|text| text.first() == Some(&token_id));
            voters.iter_mut().for_each(|text| *text = &text[1..]);
        }
        guessed
    }
}

fn anchor_before(text: &[u32], place: usize) -> [u32; ANCHOR] {
    std::array::from_fn(|i| text[place + i - ANCHOR])
}

/// The token that most texts go on with, the first one's before others, and how many those are.
fn elect(voters: &[&[u32]]) -> Option<(u32, usize)> {
    let first = |text: &&[u32]| text.first().copied();
    let votes = |token_id: u32| voters.iter().filter(|text| first(text) == Some(token_id)).count();
    let choices = voters.iter().filter_map(first).map(|token_id| (token_id, votes(token_id)));
    choices.rev().max_by_key(|(_, votes)| *votes)
}

impl Proposer for Suffix {
    fn propose(&mut self, step: &mut DraftStep<'_>) -> Result<(), ExecutorError> {
        guess_each(step, |row, room| self.guess(row, room));
        Ok(())
    }

    fn learn(&mut self, outputs: &[RequestOutput]) {
        let completions = outputs.iter().flat_map(|output| &output.outputs);
        completions.for_each(|completion| self.add(&completion.token_ids));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suffix(max_tokens: usize) -> Suffix {
        Suffix { max_tokens, ..Suffix::new(SuffixConfig::default()) }
    }

    #[test]
    fn the_longest_equal_end_of_row_and_answers_decides() {
        let mut suffix = suffix(1000);
        suffix.add(&[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(suffix.guess(&[9, 3, 4], 5), [5, 6], "as many as are equal");
        assert_eq!(suffix.guess(&[9, 2, 3, 4], 2), [5, 6], "as many as there is room for");
        assert_eq!(suffix.guess(&[8, 2, 3, 4, 1, 1, 2, 3, 4], 9), [5, 6, 7], "four are equal");
        assert_eq!(suffix.guess(&[7, 2, 3, 9, 9, 9, 7, 2, 3], 9), [9, 9, 9], "three in the row");
        assert!(suffix.guess(&[4, 3], 9).is_empty(), "nowhere");
        assert!(suffix.guess(&[6, 7], 9).is_empty(), "the answer ends");
    }

    #[test]
    fn answers_vote_and_rare_tokens_are_left_out() {
        let config = SuffixConfig { min_token_prob: 0.6, ..SuffixConfig::default() };
        let mut suffix = Suffix { config, ..suffix(1000) };
        for answer in [[1, 2, 3, 5], [1, 2, 3, 6], [1, 2, 4, 7], [1, 2, 3, 6]] {
            suffix.add(&answer);
        }
        assert_eq!(suffix.guess(&[1, 2], 9), [3], "three of four, then half");
        let config = SuffixConfig { min_token_prob: 0.4, ..SuffixConfig::default() };
        assert_eq!(Suffix { config, ..suffix }.guess(&[1, 2], 9), [3, 6]);
    }

    #[test]
    fn memory_is_bounded_and_the_older_answers_go() {
        let mut suffix = suffix(100);
        for answer in 0..1000 {
            suffix.add(&[answer, answer, answer + 1, answer + 2, answer + 3]);
            assert!(suffix.tokens.len() <= 100 && suffix.tokens.len() == 6 * suffix.ends.len());
            assert_eq!(suffix.places.values().map(Vec::len).sum::<usize>(), 3 * suffix.ends.len());
        }
        assert_eq!(suffix.guess(&[999, 999], 1), [1000]);
        assert!(suffix.guess(&[7, 7], 1).is_empty());
        let config = SuffixConfig { max_cached_requests: 4, ..SuffixConfig::default() };
        let mut few = Suffix::new(config);
        (0..100).for_each(|answer| few.add(&[answer, 1, 2]));
        assert!((1..=4).contains(&few.ends.len()));
        for _ in 0..1000 {
            few.add(&[1, 1, 1, 1]);
        }
        assert!(few.places.values().all(|places| places.len() <= 2 * MAX_PLACES));
    }
}
