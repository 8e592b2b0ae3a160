//! One token from the survivors: a uniform number from the row's key, and the inverse of the
//! cumulative distribution.
//!
//! vLLM draws a number per token (Gumbel, or probability over an exponential). The inverse needs
//! one number per position instead of a vocabulary of them: a row costs one Philox block, and the
//! same uniform number gives the same token whatever the vocabulary is padded to. The price, a sum
//! in a fixed order, is paid anyway: survivors are summed by ascending token id, in f64.

use super::SampleTask;
use super::philox::philox4x32_10;
use super::reduce::{sum_weights, weight};
use super::truncation::Survivors;

/// In place of the row key of a row that has its own seed, so that its stream is another one than
/// that of an unseeded row under an equal engine seed.
const SEEDED_ROW: u64 = 0x7365_6564_6564_726f;
/// Survivors whose weights are summed before the target is compared.
const BLOCK: usize = 256;

/// The uniform number in [0, 1) of one position of one sample of one row, with 53 random bits.
///
/// A function of (engine seed, row key, sample index, number of output tokens); for a row with its
/// own `seed`, of (that seed, sample index, number of output tokens) alone. Never of a batch slot,
/// a thread or the time.
pub fn uniform(task: &SampleTask) -> f64 {
    let (counter, key) = random_block_of(task);
    let block = philox4x32_10(counter, key);
    let bits = (u64::from(block[1]) << 32 | u64::from(block[0])) >> 11;
    bits as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Counter and key of the Philox block behind `uniform`.
pub fn random_block_of(task: &SampleTask) -> ([u32; 4], [u32; 2]) {
    let (seed, row) = match task.params.seed {
        Some(seed) => (seed, SEEDED_ROW),
        None => (task.engine_seed, task.row_key.0),
    };
    let position = task.num_output_tokens() as u32;
    let counter = [position, task.sample_index, row as u32, (row >> 32) as u32];
    (counter, [seed as u32, (seed >> 32) as u32])
}

/// The token whose part of the cumulative distribution holds `uniform`.
#[inline(always)]
pub(super) fn draw(survivors: &Survivors, uniform: f64, block_sums: &mut Vec<f64>) -> u32 {
    let Survivors { values, max, .. } = *survivors;
    block_sums.clear();
    // A loop, no closure: closures may stay out of line, compiled for other vectors.
    for block in values.chunks(BLOCK) {
        block_sums.push(sum_weights(block, max));
    }
    let target = uniform * block_sums.iter().sum::<f64>();

    // Only the block that holds the target is looked at token by token. Where rounding carries the
    // target past the end, the last token with any weight is meant.
    let (mut before, mut chosen, mut passed) = (0.0, 0, 0.0);
    for (number, &sum) in block_sums.iter().enumerate() {
        if sum > 0.0 {
            (chosen, before) = (number, passed);
        }
        passed += sum;
        if passed > target {
            break;
        }
    }
    let start = chosen * BLOCK;
    let block = &values[start..values.len().min(start + BLOCK)];
    let mut token = start;
    for (offset, &value) in block.iter().enumerate() {
        let share = weight(value, max);
        if share > 0.0 {
            token = start + offset;
            before += share;
            if before > target {
                break;
            }
        }
    }
    survivors.token_id(token)
}
