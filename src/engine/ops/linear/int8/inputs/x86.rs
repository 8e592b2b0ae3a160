//! Groups of inputs in AVX-512 registers. The bits are those of the plain loops.

use std::arch::x86_64::*;

use super::super::rotation::block_len;
use vllm_batch_device::simd::Vector;

/// As `super::rotate_group`, of a multiple of 16 inputs.
///
/// # Safety
/// The CPU has AVX-512 with its byte, word and doubleword instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn rotate_group(x: &[f32], rotated: &mut [f32]) -> f32 {
    assert!(x.len() == rotated.len() && x.len().is_multiple_of(16));
    let len = block_len(x.len());
    let mut largest = _mm512_setzero_si512();
    for (x, rotated) in x.chunks_exact(len).zip(rotated.chunks_exact_mut(len)) {
        let (x, rotated) = (x.as_ptr(), rotated.as_mut_ptr());
        // SAFETY: the CPU's instructions, and so many vectors on both sides.
        let of_block = unsafe {
            match len / 16 {
                1 => rotate_block::<1>(x, rotated),
                2 => rotate_block::<2>(x, rotated),
                4 => rotate_block::<4>(x, rotated),
                8 => rotate_block::<8>(x, rotated),
                16 => rotate_block::<16>(x, rotated),
                num_vectors => unreachable!("a block of {num_vectors} vectors"),
            }
        };
        largest = _mm512_max_epu32(largest, of_block);
    }
    f32::from_bits(_mm512_reduce_max_epu32(largest))
}

/// A block of N vectors; the largest bits of magnitudes in each lane.
///
/// # Safety
/// As `rotate_group`; both pointers are valid for the vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn rotate_block<const N: usize>(x: *const f32, rotated: *mut f32) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let mut values = [_mm512_setzero_ps(); N];
        for (index, value) in values.iter_mut().enumerate() {
            let vector = _mm512_loadu_ps(x.add(16 * index)).butterflies::<1>();
            *value = vector.butterflies::<2>().butterflies::<4>().butterflies::<8>();
        }
        let mut half = 1;
        while half < N {
            for first in 0..N {
                if first & half == 0 {
                    let (a, b) = (values[first], values[first + half]);
                    values[first] = _mm512_add_ps(a, b);
                    values[first + half] = _mm512_sub_ps(a, b);
                }
            }
            half *= 2;
        }
        let mut largest = _mm512_setzero_si512();
        for (index, value) in values.iter().enumerate() {
            let magnitude =
                _mm512_and_si512(_mm512_castps_si512(*value), _mm512_set1_epi32(i32::MAX));
            largest = _mm512_max_epu32(largest, magnitude);
            _mm512_storeu_ps(rotated.add(16 * index), *value);
        }
        largest
    }
}

/// As `super::round_group`, of a multiple of 64 inputs, all finite with a finite factor.
///
/// # Safety
/// As `rotate_group`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn round_group(rotated: &[f32], factor: f32, words: &mut [u32]) -> i32 {
    assert!(rotated.len().is_multiple_of(64) && words.len() == rotated.len() / 4);
    let factor = _mm512_set1_ps(factor);
    // Packing leaves four inputs of one vector beside those of the next one.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    let mut sum = _mm512_setzero_si512();
    for (values, words) in rotated.chunks_exact(64).zip(words.chunks_exact_mut(16)) {
        // SAFETY: the chunks have so many elements.
        unsafe {
            let mut ints = [_mm512_setzero_si512(); 4];
            for (index, ints) in ints.iter_mut().enumerate() {
                let values = _mm512_loadu_ps(values.as_ptr().add(16 * index));
                *ints = _mm512_cvtps_epi32(_mm512_mul_ps(values, factor));
                sum = _mm512_add_epi32(sum, *ints);
            }
            let low = _mm512_packs_epi32(ints[0], ints[1]);
            let high = _mm512_packs_epi32(ints[2], ints[3]);
            let bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
            _mm512_storeu_si512(words.as_mut_ptr().cast(), bytes);
        }
    }
    _mm512_reduce_add_epi32(sum)
}
