//! Log-probabilities from the untouched logits (vLLM's `raw_logprobs`).

use super::NumLogprobs;
use super::reduce::{count_at_least, for_each_chunk_reaching, kth_largest, sum_weights};
use super::truncation::{RankKey, TruncationScratch};
use vllm_batch_api::request::{PositionLogprobs, TokenLogprob};

/// Logprobs of one position: of `token_id` and of the most likely tokens.
/// `row` are raw logits, `max` their finite maximum.
#[inline(always)]
pub(super) fn position_logprobs(
    row: &[f32],
    max: f32,
    token_id: u32,
    num_logprobs: NumLogprobs,
    scratch: &mut TruncationScratch,
) -> PositionLogprobs {
    let log_sum = sum_weights(row, max).ln();
    let logprob = |value: f32| (f64::from(value) - f64::from(max) - log_sum) as f32;
    let own = row[token_id as usize];
    let rank = count_at_least(row, own) as u32;
    let token = TokenLogprob { token_id, logprob: logprob(own), rank };
    let wanted = match num_logprobs {
        NumLogprobs::Top(count) => row.len().min(count as usize),
        NumLogprobs::All => row.len(),
    };
    if wanted == 0 {
        return PositionLogprobs { token, top: Vec::new() };
    }
    // Every tie of the last wanted token is gathered: they count in its rank.
    let floor = kth_largest(row, wanted, &mut scratch.selection);
    let keys = &mut scratch.keys;
    keys.clear();
    for_each_chunk_reaching(row, floor, |start, chunk| {
        for (offset, &value) in chunk.iter().enumerate() {
            if value >= floor {
                keys.push(RankKey::new(value, (start + offset) as u32));
            }
        }
    });
    keys.sort_unstable();
    let mut top: Vec<TokenLogprob> = Vec::with_capacity(wanted);
    let mut tied_end = 0;
    for (place, key) in keys[..wanted].iter().enumerate() {
        if place >= tied_end {
            let tied = keys[place..].iter().take_while(|other| other.value() == key.value());
            tied_end = place + tied.count();
        }
        let (token_id, rank) = (key.index(), tied_end as u32);
        top.push(TokenLogprob { token_id, logprob: logprob(key.value()), rank });
    }
    PositionLogprobs { token, top }
}
