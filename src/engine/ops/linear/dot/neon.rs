//! Tiles of `bfmmla`, two rows by two outputs; a row alone by `bfdot`, which sums alike. Both take
//! two words at a time, so a word that is left has a zero behind it.

use std::arch::aarch64::*;

use super::{DotTile, WIDTH};
use crate::gemm::bring;
use vllm_batch_device::simd::neon::dots::{add_pair_products, add_pairs, words_of_rows};

/// # Safety
/// As `DotTile::run`.
pub(super) unsafe fn run(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match height {
            1 => one_row(tile),
            2 => pairs_of_rows::<1>(tile, height),
            3 | 4 => pairs_of_rows::<2>(tile, height),
            5 | 6 => pairs_of_rows::<3>(tile, height),
            _ => unreachable!("a tile of {height} rows"),
        }
    }
}

/// # Safety
/// As `run`.
#[target_feature(enable = "neon,bf16")]
unsafe fn one_row(tile: &DotTile) {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        let mut sums = [vdupq_n_f32(0.0); WIDTH / 4];
        if !tile.is_first {
            for (quad, sum) in sums.iter_mut().enumerate() {
                *sum = vld1q_f32(tile.out.add(4 * quad));
            }
        }
        for word in 0..tile.num_words.next_multiple_of(2) {
            bring(tile.next, word, 1);
            let is_there = word < tile.num_words;
            let x = vdupq_n_u32(if is_there { *tile.x.add(word) } else { 0 });
            for (quad, sum) in sums.iter_mut().enumerate() {
                let weights = match is_there {
                    true => vld1q_u32(tile.weights.add(word * WIDTH + 4 * quad)),
                    false => vdupq_n_u32(0),
                };
                *sum = add_pairs(*sum, weights, x);
            }
        }
        store(tile, 0, &sums);
    }
}

/// Computes the last row of an odd height twice.
///
/// # Safety
/// As `run`.
#[target_feature(enable = "neon,bf16")]
unsafe fn pairs_of_rows<const P: usize>(tile: &DotTile, height: usize) {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        // By pair of rows and pair of outputs.
        let mut sums = [[vdupq_n_f32(0.0); WIDTH / 2]; P];
        let row_of = |row: usize| row.min(height - 1);
        if !tile.is_first {
            for (pair, sums) in sums.iter_mut().enumerate() {
                let first = tile.out.add(row_of(2 * pair) * tile.out_stride);
                let second = tile.out.add(row_of(2 * pair + 1) * tile.out_stride);
                for (outputs, sum) in sums.iter_mut().enumerate() {
                    let column = 2 * outputs;
                    *sum = vcombine_f32(vld1_f32(first.add(column)), vld1_f32(second.add(column)));
                }
            }
        }
        for word in (0..tile.num_words).step_by(2) {
            bring(tile.next, word, 2);
            let is_whole = word + 1 < tile.num_words;
            let mut x = [vdupq_n_u32(0); P];
            for (pair, x) in x.iter_mut().enumerate() {
                let first = tile.x.add(row_of(2 * pair) * tile.x_stride + word);
                let second = tile.x.add(row_of(2 * pair + 1) * tile.x_stride + word);
                *x = words_of_rows(first, second, is_whole);
            }
            for quad in 0..WIDTH / 4 {
                let weights = tile.weights.add(word * WIDTH + 4 * quad);
                let first = vld1q_u32(weights);
                let second = match is_whole {
                    true => vld1q_u32(weights.add(WIDTH)),
                    false => vdupq_n_u32(0),
                };
                let columns = [vzip1q_u32(first, second), vzip2q_u32(first, second)];
                for (sums, x) in sums.iter_mut().zip(x) {
                    for (half, columns) in columns.into_iter().enumerate() {
                        let sum = &mut sums[2 * quad + half];
                        *sum = add_pair_products(*sum, x, columns);
                    }
                }
            }
        }
        for (pair, sums) in sums.iter().enumerate() {
            let [first, second] = rows_of(sums);
            store(tile, 2 * pair, &first);
            if 2 * pair + 1 < height {
                store(tile, 2 * pair + 1, &second);
            }
        }
    }
}

/// From sums of two rows with two outputs each to the outputs of either row.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn rows_of(sums: &[float32x4_t; WIDTH / 2]) -> [[float32x4_t; WIDTH / 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [[vdupq_n_f32(0.0); WIDTH / 4]; 2];
        for quad in 0..WIDTH / 4 {
            let first = vreinterpretq_f64_f32(sums[2 * quad]);
            let second = vreinterpretq_f64_f32(sums[2 * quad + 1]);
            rows[0][quad] = vreinterpretq_f32_f64(vzip1q_f64(first, second));
            rows[1][quad] = vreinterpretq_f32_f64(vzip2q_f64(first, second));
        }
        rows
    }
}

/// A row's outputs, with the biases.
///
/// # Safety
/// As `run`; the tile has the row.
#[inline(always)]
unsafe fn store(tile: &DotTile, row: usize, sums: &[float32x4_t; WIDTH / 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        let out = tile.out.add(row * tile.out_stride);
        for (quad, &sum) in sums.iter().enumerate() {
            vst1q_f32(out.add(4 * quad), vaddq_f32(sum, biases(tile, quad)));
        }
    }
}

/// Four of the panel's biases, or zeros.
///
/// # Safety
/// As `run`.
#[inline(always)]
unsafe fn biases(tile: &DotTile, quad: usize) -> float32x4_t {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        match tile.bias.is_null() {
            true => vdupq_n_f32(0.0),
            false => vld1q_f32(tile.bias.add(4 * quad)),
        }
    }
}
