//! Words of two bf16.

use std::arch::x86_64::*;

/// As `super::narrow`.
///
/// # Safety
/// The CPU has these features; there is a word for every two values.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn narrow(x: &[f32], words: &mut [u32]) {
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
            let out = words.as_mut_ptr().add(start / 2).cast();
            _mm512_mask_storeu_epi32(out, mask(num_values.div_ceil(2)), pairs);
        }
    }
}
