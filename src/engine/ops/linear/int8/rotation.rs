//! The rotation of a group of inputs: a Hadamard transform of each of its blocks, not normalised.
//!
//! A block is the largest power of two of inputs that divides the group's length, so of a whole
//! group it is all. Additions only, in one order for each output: the same bits everywhere.

use super::GROUP;

/// Inputs of a block of a group of this length.
pub(super) fn block_len(group_len: usize) -> usize {
    1 << group_len.trailing_zeros()
}

/// Rotates the values of a group.
#[inline(always)]
pub(super) fn rotate(group: &mut [f32]) {
    let len = block_len(group.len());
    for block in group.chunks_exact_mut(len) {
        // Loops of a known length become vectors.
        match len {
            128 => rotate_block::<128>(block),
            64 => rotate_block::<64>(block),
            32 => rotate_block::<32>(block),
            16 => rotate_block::<16>(block),
            8 => rotate_block::<8>(block),
            4 => rotate_block::<4>(block),
            2 => rotate_block::<2>(block),
            _ => {}
        }
    }
}

/// Each step takes neighbours to their sum and difference, half a block apart: the bits of an index
/// turn by one place, so that after all steps every value is back at its own.
#[inline(always)]
fn rotate_block<const LEN: usize>(block: &mut [f32]) {
    let mut other = [0.0; LEN];
    let mut is_in_other = false;
    for _ in 0..LEN.trailing_zeros() {
        match is_in_other {
            false => step(block, &mut other),
            true => step(&other, block),
        }
        is_in_other = !is_in_other;
    }
    if is_in_other {
        block.copy_from_slice(&other);
    }
}

#[inline(always)]
fn step(from: &[f32], to: &mut [f32]) {
    let (sums, differences) = to.split_at_mut(from.len() / 2);
    for ((pair, sum), difference) in from.chunks_exact(2).zip(sums).zip(differences) {
        *sum = pair[0] + pair[1];
        *difference = pair[0] - pair[1];
    }
}

/// Rotates the values of a group in each lane: (inputs, width).
#[inline(always)]
pub(super) fn rotate_lanes(group: &mut [f32], width: usize) {
    let len = block_len(group.len() / width);
    assert!(len <= GROUP);
    for block in group.chunks_exact_mut(len * width) {
        let mut half = 1;
        while half < len {
            for pair in block.chunks_exact_mut(2 * half * width) {
                let (first, second) = pair.split_at_mut(half * width);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_the_hadamard_matrix_of_each_block_in_rows_and_in_lanes() {
        for (len, block) in [(128, 128), (64, 64), (96, 32), (40, 8), (2, 2), (7, 1)] {
            assert_eq!(block_len(len), block);
            let values: Vec<f32> = (0..len).map(|i| (i * i % 31) as f32 - 11.0).collect();
            let expected: Vec<f32> = (0..len)
                .map(|i| {
                    let first = i / block * block;
                    let signed = (first..first + block).map(|j| {
                        let sign = ((i - first) & (j - first)).count_ones() % 2;
                        if sign == 0 { values[j] } else { -values[j] }
                    });
                    signed.sum()
                })
                .collect();
            let mut rotated = values.clone();
            rotate(&mut rotated);
            assert_eq!(rotated, expected, "{len}");

            let mut lanes: Vec<f32> = values.iter().flat_map(|&v| [v, 2.0 * v]).collect();
            rotate_lanes(&mut lanes, 2);
            let twice: Vec<f32> = expected.iter().flat_map(|&v| [v, 2.0 * v]).collect();
            assert_eq!(lanes, twice, "{len} in lanes");
        }
    }
}
