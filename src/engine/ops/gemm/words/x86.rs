//! Words of two bf16.

use std::arch::x86_64::*;
use std::slice::from_raw_parts_mut;

use crate::engine::device::simd::flushed_bf16_bits;

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has these features.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn by_avx512_bf16(x: &[f32], num_columns: usize, words: (*mut u32, usize)) {
    for (row, x) in x.chunks_exact(num_columns).enumerate() {
        // SAFETY: the caller's promise.
        unsafe { row_by_avx512_bf16(x, words.0.add(row * words.1)) };
    }
}

/// # Safety
/// The CPU has these features; there is a word for every two values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn row_by_avx512_bf16(x: &[f32], words: *mut u32) {
    for start in (0..x.len()).step_by(32) {
        let num_values = (x.len() - start).min(32);
        let mask = |num: usize| (1u32 << num.min(16)).wrapping_sub(1) as u16;
        let (low, high) = (mask(num_values), mask(num_values.saturating_sub(16)));
        // SAFETY: masks leave out what is behind the values, and behind their words.
        unsafe {
            let at = x.as_ptr().add(start);
            let low = _mm512_maskz_loadu_ps(low, at);
            let high = _mm512_maskz_loadu_ps(high, at.wrapping_add(16));
            let pairs = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            let out = words.add(start / 2).cast();
            _mm512_mask_storeu_epi32(out, mask(num_values.div_ceil(2)), pairs);
        }
    }
}

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn by_avx2(x: &[f32], num_columns: usize, words: (*mut u32, usize)) {
    for (row, x) in x.chunks_exact(num_columns).enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let words = words.0.add(row * words.1);
            row_by_avx2(x, from_raw_parts_mut(words, num_columns.div_ceil(2)));
        }
    }
}

/// # Safety
/// The CPU has AVX2; there is a word for every two values.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn row_by_avx2(x: &[f32], words: &mut [u32]) {
    let (whole, rest) = x.as_chunks::<16>();
    let (out, rest_out) = words.split_at_mut(8 * whole.len());
    for (x, words) in whole.iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: the caller's promise.
        unsafe { eight_words(x, words) };
    }
    let (mut last, mut last_words) = ([0.0; 16], [0; 8]);
    last[..rest.len()].copy_from_slice(rest);
    // SAFETY: the caller's promise.
    unsafe { eight_words(&last, &mut last_words) };
    rest_out.copy_from_slice(&last_words[..rest_out.len()]);
}

/// # Safety
/// The CPU has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eight_words(x: &[f32; 16], words: &mut [u32; 8]) {
    // SAFETY: the caller's promise, and the arrays' lengths.
    unsafe {
        let low = flushed_bf16_bits(_mm256_loadu_ps(x.as_ptr()));
        let high = flushed_bf16_bits(_mm256_loadu_ps(x[8..].as_ptr()));
        // Packing goes by halves of registers.
        let packed = _mm256_packus_epi32(low, high);
        let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        _mm256_storeu_si256(words.as_mut_ptr().cast(), pairs);
    }
}
