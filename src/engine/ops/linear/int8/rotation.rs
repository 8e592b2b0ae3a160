//! The rotation of a group of inputs: a Hadamard transform of each of its blocks, not normalised.
//!
//! A block is the largest power of two of inputs that divides the group's length, so of a whole
//! group it is all. Additions only, in one order for each output: the same bits everywhere.

use super::GROUP;
use vllm_batch_device::simd::Vector;

/// Inputs of a block of a group of this length.
pub(super) fn block_len(group_len: usize) -> usize {
    1 << group_len.trailing_zeros()
}

/// Rotates the values of a group.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn rotate<V: Vector>(group: &mut [f32]) {
    let len = block_len(group.len());
    for block in group.chunks_exact_mut(len) {
        let mut half = 1;
        if len >= V::LANES {
            for values in block.chunks_exact_mut(V::LANES) {
                let values = values.as_mut_ptr();
                // SAFETY: the caller's promise, and a whole vector.
                unsafe {
                    let mut vector = V::load(values).butterflies::<1>();
                    vector = vector.butterflies::<2>().butterflies::<4>();
                    if V::LANES == 16 {
                        vector = vector.butterflies::<8>();
                    }
                    vector.store(values);
                }
            }
            half = V::LANES;
        }
        rotate_from(half, block, 1);
    }
}

/// The steps of a rotation of (inputs, width) from this half on.
#[inline(always)]
fn rotate_from(mut half: usize, block: &mut [f32], width: usize) {
    while half * width < block.len() {
        for pair in block.chunks_exact_mut(2 * half * width) {
            let (first, second) = pair.split_at_mut(half * width);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}

/// Rotates the values of a group in each lane: (inputs, width).
#[inline(always)]
pub(super) fn rotate_lanes(group: &mut [f32], width: usize) {
    let len = block_len(group.len() / width);
    assert!(len <= GROUP);
    for block in group.chunks_exact_mut(len * width) {
        rotate_from(1, block, width);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::{Isa, Kernel, dispatch};

    struct Rotate<'a>(&'a mut [f32]);

    impl Kernel for Rotate<'_> {
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            // SAFETY: the caller's promise.
            unsafe { rotate::<V>(self.0) }
        }
    }

    #[test]
    fn a_rotation_is_the_hadamard_matrix_of_each_block_in_rows_and_in_lanes() {
        for (len, block) in [(256, 256), (128, 128), (64, 64), (96, 32), (40, 8), (2, 2), (7, 1)] {
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
            for isa in Isa::all_available() {
                let mut rotated = values.clone();
                dispatch(isa, Rotate(&mut rotated));
                assert_eq!(rotated, expected, "{isa:?} {len}");
            }

            let mut lanes: Vec<f32> = values.iter().flat_map(|&v| [v, 2.0 * v]).collect();
            rotate_lanes(&mut lanes, 2);
            let twice: Vec<f32> = expected.iter().flat_map(|&v| [v, 2.0 * v]).collect();
            assert_eq!(lanes, twice, "{len} in lanes");
        }
    }
}
