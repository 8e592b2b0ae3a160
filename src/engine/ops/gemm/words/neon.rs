//! Rows of bf16 by `bfcvtn`.

use std::arch::aarch64::*;

use vllm_batch_device::simd::neon::dots::narrowed;

/// Floats of two registers.
const FLOATS: usize = 8;

/// The bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// As `super::narrow_rows`.
///
/// # Safety
/// As there; the CPU has `bfcvtn`.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn by_bf16(
    x: *const f32,
    (num_rows, num_columns): (usize, usize),
    words: (*mut u32, usize),
) {
    for row in 0..num_rows {
        let x = x.wrapping_add(row * num_columns);
        let words = words.0.wrapping_add(row * words.1);
        let num_whole = num_columns / FLOATS * FLOATS;
        for start in (0..num_whole).step_by(FLOATS) {
            // SAFETY: the caller's promise.
            unsafe { vst1q_u32(words.add(start / 2), eight(x.add(start))) };
        }
        let rest = num_columns - num_whole;
        if rest == 0 {
            continue;
        }
        let (mut last, mut bits) = ([0.0; FLOATS], [0; FLOATS / 2]);
        // SAFETY: as above, of what is left.
        unsafe {
            last.as_mut_ptr().copy_from_nonoverlapping(x.add(num_whole), rest);
            vst1q_u32(bits.as_mut_ptr(), eight(last.as_ptr()));
            let out = words.add(num_whole / 2);
            out.copy_from_nonoverlapping(bits.as_ptr(), rest.div_ceil(2));
        }
    }
}

/// # Safety
/// The CPU has `bfcvtn`; there are as many values.
#[inline]
#[target_feature(enable = "neon,bf16")]
unsafe fn eight(x: *const f32) -> uint32x4_t {
    // SAFETY: the caller's promise; this function's own target features.
    unsafe { narrowed(without_subnormal(vld1q_f32(x)), without_subnormal(vld1q_f32(x.add(4)))) }
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
