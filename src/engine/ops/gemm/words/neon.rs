//! Rows of bf16 by `bfcvtn`.

use std::arch::aarch64::*;
use std::slice::from_raw_parts_mut;

use crate::engine::device::simd::neon::dots::narrowed;

/// Floats of two registers.
const FLOATS: usize = 8;

/// The bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has `bfcvtn`.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn by_bf16(x: &[f32], num_columns: usize, words: (*mut u32, usize)) {
    for (row, x) in x.chunks_exact(num_columns).enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let words = words.0.add(row * words.1);
            row_by_bf16(x, from_raw_parts_mut(words, num_columns.div_ceil(2)));
        }
    }
}

/// # Safety
/// The CPU has `bfcvtn`; there are words for all of x.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn row_by_bf16(x: &[f32], words: &mut [u32]) {
    let (whole, rest) = x.as_chunks::<FLOATS>();
    for (x, words) in whole.iter().zip(words.chunks_exact_mut(FLOATS / 2)) {
        // SAFETY: four words; this function's own target features.
        unsafe { vst1q_u32(words.as_mut_ptr(), eight(x)) };
    }
    if !rest.is_empty() {
        let (mut last, mut bits) = ([0.0; FLOATS], [0; FLOATS / 2]);
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: as above.
        unsafe { vst1q_u32(bits.as_mut_ptr(), eight(&last)) };
        let words = &mut words[whole.len() * FLOATS / 2..];
        words.copy_from_slice(&bits[..words.len()]);
    }
}

/// # Safety
/// The CPU has `bfcvtn`.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn eight(x: &[f32; FLOATS]) -> uint32x4_t {
    // SAFETY: eight floats; this function's own target features.
    unsafe {
        narrowed(without_subnormal(vld1q_f32(x.as_ptr())), without_subnormal(vld1q_f32(&x[4])))
    }
}

/// Zeros of their sign in place of subnormal numbers, which `bfcvtn` would keep or round up.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn without_subnormal(x: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let is_small = vcaltq_f32(x, vdupq_n_f32(f32::MIN_POSITIVE));
        let dropped = vandq_u32(is_small, vdupq_n_u32(MAGNITUDE));
        vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), dropped))
    }
}
