//! int8 tiles on aarch64. Sums of groups are in registers, those of rows in `out`.

use std::arch::aarch64::*;

use super::Int8Tile;
use crate::gemm::bring;
use crate::linear::blocks::by_height;
use vllm_batch_device::simd::neon::dots::{add_dots, add_products, words_of_rows};

/// Outputs of a panel.
const WIDTH: usize = 16;

/// # Safety
/// As `Int8Tile::run`; the CPU has `sdot`.
pub(super) unsafe fn run_sdot(tile: &Int8Tile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, sdot: 1 2 3 4 5) }
}

/// # Safety
/// As `Int8Tile::run`; the CPU has `smmla`.
pub(super) unsafe fn run_smmla(tile: &Int8Tile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match height {
            1 | 2 => smmla::<1>(tile, height),
            3 | 4 => smmla::<2>(tile, height),
            5 | 6 => smmla::<3>(tile, height),
            _ => unreachable!("a tile of {height} rows"),
        }
    }
}

/// The products of one word of the rows, in lane LANE of `x`.
///
/// # Safety
/// As `run_sdot`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
unsafe fn add_word<const MR: usize, const LANE: usize>(
    tile: &Int8Tile,
    word: usize,
    x: &[uint32x4_t; MR],
    sums: &mut [[int32x4_t; 4]; MR],
) {
    bring(tile.next, word, 1);
    // SAFETY: the caller's promise.
    unsafe {
        for quad in 0..4 {
            let weights = vld1q_u32(tile.weights.add(word * WIDTH + 4 * quad));
            for (sum, x) in sums.iter_mut().zip(x) {
                sum[quad] = add_dots::<LANE>(sum[quad], weights, *x);
            }
        }
    }
}

/// # Safety
/// As `run_sdot`.
#[target_feature(enable = "neon,dotprod")]
unsafe fn sdot<const MR: usize>(tile: &Int8Tile) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        for group in 0..tile.num_groups {
            let mut sums = [[vdupq_n_s32(0); 4]; MR];
            let mut x = [vdupq_n_u32(0); MR];
            let words = tile.words(group);
            let mut word = words.start;
            while word + 4 <= words.end {
                for (m, x) in x.iter_mut().enumerate() {
                    *x = vld1q_u32(tile.x.add(m * tile.x_stride + word));
                }
                add_word::<MR, 0>(tile, word, &x, &mut sums);
                add_word::<MR, 1>(tile, word + 1, &x, &mut sums);
                add_word::<MR, 2>(tile, word + 2, &x, &mut sums);
                add_word::<MR, 3>(tile, word + 3, &x, &mut sums);
                word += 4;
            }
            for word in word..words.end {
                for (m, x) in x.iter_mut().enumerate() {
                    *x = vdupq_n_u32(*tile.x.add(m * tile.x_stride + word));
                }
                add_word::<MR, 0>(tile, word, &x, &mut sums);
            }
            for (row, sums) in sums.iter().enumerate() {
                add_group(tile, (row, group), sums);
            }
        }
    }
}

/// Tiles of P pairs of rows; of an odd height the last row is computed twice.
///
/// # Safety
/// As `run_smmla`.
#[target_feature(enable = "neon,i8mm")]
unsafe fn smmla<const P: usize>(tile: &Int8Tile, height: usize) {
    // SAFETY: the promise of `Int8Tile::run`; panels have an even number of words.
    unsafe {
        let x_of = |row: usize, word: usize| {
            tile.x.wrapping_add(row.min(height - 1) * tile.x_stride + word)
        };
        for group in 0..tile.num_groups {
            // By pair of rows and pair of outputs.
            let mut sums = [[vdupq_n_s32(0); WIDTH / 2]; P];
            let mut x = [vdupq_n_u32(0); P];
            let words = tile.words(group);
            for word in words.clone().step_by(2) {
                bring(tile.next, word, 2);
                let is_whole = word + 1 < words.end;
                for (pair, x) in x.iter_mut().enumerate() {
                    let (first, second) = (x_of(2 * pair, word), x_of(2 * pair + 1, word));
                    *x = words_of_rows(first, second, is_whole);
                }
                for outputs in 0..WIDTH / 2 {
                    let weights = vld1q_u32(tile.weights.add(word * WIDTH + 4 * outputs));
                    for (sums, x) in sums.iter_mut().zip(x) {
                        sums[outputs] = add_products(sums[outputs], x, weights);
                    }
                }
            }
            for (pair, sums) in sums.iter().enumerate() {
                let [first, second] = rows_of(sums);
                add_group(tile, (2 * pair, group), &first);
                if 2 * pair + 1 < height {
                    add_group(tile, (2 * pair + 1, group), &second);
                }
            }
        }
    }
}

/// From products of two rows with two outputs each to the outputs of either row.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn rows_of(sums: &[int32x4_t; WIDTH / 2]) -> [[int32x4_t; 4]; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut rows = [[vdupq_n_s32(0); 4]; 2];
        for quad in 0..4 {
            let first = vreinterpretq_s64_s32(sums[2 * quad]);
            let second = vreinterpretq_s64_s32(sums[2 * quad + 1]);
            rows[0][quad] = vreinterpretq_s32_s64(vzip1q_s64(first, second));
            rows[1][quad] = vreinterpretq_s32_s64(vzip2q_s64(first, second));
        }
        rows
    }
}

/// Scales a row's sums of a group and adds them to the row; with the last one goes the bias.
///
/// # Safety
/// As `Int8Tile::run`; the tile has the row.
#[inline(always)]
unsafe fn add_group(tile: &Int8Tile, (row, group): (usize, usize), sums: &[int32x4_t; 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        let is_last = group + 1 == tile.num_groups;
        let row_scale = vdupq_n_f32(*tile.row_scales.add(row * tile.num_groups + group));
        for (quad, &sum) in sums.iter().enumerate() {
            let out = tile.out.add(row * tile.out_stride + 4 * quad);
            let scales = vld1q_f32(tile.scales.add(group * WIDTH + 4 * quad));
            let mut total = vmulq_f32(vcvtq_f32_s32(sum), vmulq_f32(row_scale, scales));
            if group > 0 {
                total = vaddq_f32(vld1q_f32(out), total);
            }
            if is_last {
                let bias = match tile.bias.is_null() {
                    true => vdupq_n_f32(0.0),
                    false => vld1q_f32(tile.bias.add(4 * quad)),
                };
                total = vaddq_f32(total, bias);
            }
            vst1q_f32(out, total);
        }
    }
}
