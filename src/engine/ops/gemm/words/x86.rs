//! Words of two bf16.

use std::arch::x86_64::*;

use vllm_batch_device::simd::flushed_bf16_bits;

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has these features.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn by_avx512_bf16(
    x: *const f32,
    (num_rows, num_columns): (usize, usize),
    words: (*mut u32, usize),
) {
    for row in 0..num_rows {
        let x = x.wrapping_add(row * num_columns);
        let words = words.0.wrapping_add(row * words.1);
        let num_whole = num_columns / 32 * 32;
        for start in (0..num_whole).step_by(32) {
            // SAFETY: the caller's promise.
            unsafe {
                let at = x.add(start);
                let pairs = pairs(_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(16)));
                _mm512_storeu_si512(words.add(start / 2).cast(), pairs);
            }
        }
        if num_whole < num_columns {
            let rest = num_columns - num_whole;
            let mask = |num: usize| (1u32 << num.min(16)).wrapping_sub(1) as u16;
            // SAFETY: masks leave out what is behind the values, and behind their words.
            unsafe {
                let at = x.add(num_whole);
                let low = _mm512_maskz_loadu_ps(mask(rest), at);
                let high =
                    _mm512_maskz_loadu_ps(mask(rest.saturating_sub(16)), at.wrapping_add(16));
                let out = words.add(num_whole / 2).cast();
                _mm512_mask_storeu_epi32(out, mask(rest.div_ceil(2)), pairs(low, high));
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn by_avx2(
    x: *const f32,
    (num_rows, num_columns): (usize, usize),
    words: (*mut u32, usize),
) {
    for row in 0..num_rows {
        let x = x.wrapping_add(row * num_columns);
        let words = words.0.wrapping_add(row * words.1);
        let num_whole = num_columns / 16 * 16;
        for start in (0..num_whole).step_by(16) {
            // SAFETY: the caller's promise.
            unsafe { eight_words(x.add(start), words.add(start / 2)) };
        }
        let rest = num_columns - num_whole;
        let (mut last, mut last_words) = ([0.0; 16], [0; 8]);
        // SAFETY: as above, of what is left.
        unsafe {
            last.as_mut_ptr().copy_from_nonoverlapping(x.add(num_whole), rest);
            eight_words(last.as_ptr(), last_words.as_mut_ptr());
            let out = words.add(num_whole / 2);
            out.copy_from_nonoverlapping(last_words.as_ptr(), rest.div_ceil(2));
        }
    }
}

/// # Safety
/// The CPU has AVX2; there are 16 values and 8 words.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn eight_words(x: *const f32, words: *mut u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let low = flushed_bf16_bits(_mm256_loadu_ps(x));
        let high = flushed_bf16_bits(_mm256_loadu_ps(x.add(8)));
        // Packing goes by halves of registers.
        let packed = _mm256_packus_epi32(low, high);
        let pairs = _mm256_permute4x64_epi64::<0b11_01_10_00>(packed);
        _mm256_storeu_si256(words.cast(), pairs);
    }
}
