//! `Ngram`: vLLM's prompt lookup. What followed the last tokens of a row where they stood before,
//! in prompt or output, may follow again: answers that copy from their prompt.

use super::{Proposer, guess_each};
use crate::execute::executor::ExecutorError;
use crate::plan::scheduler::DraftStep;

/// The proposer. Keeps nothing of a row.
#[derive(Clone, Debug)]
pub struct Ngram {
    min: usize,
    max: usize,
    /// Reused by every search.
    prefix_lens: Vec<usize>,
}

impl Ngram {
    /// A proposer that wants the last `min` tokens at least to be equal, and compares up to `max`.
    pub fn new(min: usize, max: usize) -> Self {
        assert!(0 < min && min <= max, "n-grams of {min} to {max} tokens");
        Self { min, max, prefix_lens: Vec::new() }
    }

    /// The longest n-gram that ends some tokens and stood in them before, and where what followed
    /// it begins: its length and that place. Of equally long ones it is the earliest.
    ///
    /// The tokens are read from their end, as KMP's search for the longest prefix of a text in
    /// itself: `matched` tokens that end at `i` equal those at the end.
    pub fn find(&mut self, token_ids: &[u32]) -> Option<(usize, usize)> {
        let (len, max) = (token_ids.len(), self.max);
        let from_end = |i: usize| token_ids[len - 1 - i];
        self.prefix_lens.clear();
        self.prefix_lens.resize(max, 0);
        let (mut longest, mut place, mut matched, mut i) = (0, 0, 0, 1);
        while i < len {
            if from_end(matched) == from_end(i) {
                matched += 1;
                if matched >= longest {
                    (longest, place) = (matched, i);
                }
                if i < max {
                    self.prefix_lens[i] = matched;
                }
                if matched == max {
                    matched = self.prefix_lens[max - 1];
                }
                i += 1;
            } else if matched > 0 {
                matched = self.prefix_lens[matched - 1];
            } else {
                i += 1;
            }
        }
        (longest >= self.min).then(|| (longest, len - 1 - place + longest))
    }
}

impl Proposer for Ngram {
    fn propose(&mut self, step: &mut DraftStep<'_>) -> Result<(), ExecutorError> {
        guess_each(step, |row, room| match self.find(row) {
            Some((_, start)) => row[start..(start + room).min(row.len())].to_vec(),
            None => Vec::new(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// vLLM's words, literally.
    fn literal(token_ids: &[u32], min: usize, max: usize) -> Option<(usize, usize)> {
        let len = token_ids.len();
        (min..=max.min(len.saturating_sub(1))).rev().find_map(|n| {
            let suffix = &token_ids[len - n..];
            let start = (0..len - n).find(|&start| token_ids[start..start + n] == *suffix)?;
            Some((n, start + n))
        })
    }

    #[test]
    fn the_longest_and_then_the_earliest_ngram_is_found_as_by_a_literal_search() {
        let mut state = 3u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) % n
        };
        let mut num_found = 0;
        for _ in 0..20_000 {
            let num_kinds = 1 + below(4);
            let token_ids: Vec<u32> = (0..below(40)).map(|_| below(num_kinds) as u32).collect();
            let min = 1 + below(4) as usize;
            let max = min + below(5) as usize;
            let found = Ngram::new(min, max).find(&token_ids);
            assert_eq!(found, literal(&token_ids, min, max), "{token_ids:?}, {min} to {max}");
            num_found += usize::from(found.is_some());
        }
        assert!((5_000..19_000).contains(&num_found), "{num_found}");
    }
}
