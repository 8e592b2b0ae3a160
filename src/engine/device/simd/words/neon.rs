//! Words of aarch64: NEON, two registers to a vector.

use std::arch::aarch64::*;

use super::Words;
use crate::simd::intrinsics;
use crate::simd::neon::dots::add_pairs;
use crate::simd::neon::{Neon, halves};

/// 2^-6, E4M3's smallest normal number.
const SMALLEST_NORMAL: f32 = 0.015_625;

/// What the exponents of f32 and of E4M3 differ by, in its place.
const FLOAT8_EXPONENT: u32 = 120 << 23;

/// Eight words.
#[derive(Clone, Copy, Debug)]
pub struct NeonWords(pub(in crate::simd) uint32x4_t, pub(in crate::simd) uint32x4_t);

impl Words for NeonWords {
    type Floats = Neon;
    intrinsics! {
        load(ptr: *const u32) -> Self = Self(vld1q_u32(ptr), vld1q_u32(ptr.add(4)));
        load_bytes(ptr: *const u8) -> Self = {
            let halves = vmovl_u8(vld1_u8(ptr));
            Self(vmovl_u16(vget_low_u16(halves)), vmovl_high_u16(halves))
        };
        store(self: Self, ptr: *mut u32) -> () = {
            vst1q_u32(ptr, self.0);
            vst1q_u32(ptr.add(4), self.1);
        };
        // A shift to the left by less than nothing is one to the right.
        shift_right(self: Self, bits: u32) -> Self = {
            let bits = vdupq_n_s32(-(bits as i32));
            Self(vshlq_u32(self.0, bits), vshlq_u32(self.1, bits))
        };
        shift_left(self: Self, bits: u32) -> Self = {
            let bits = vdupq_n_s32(bits as i32);
            Self(vshlq_u32(self.0, bits), vshlq_u32(self.1, bits))
        };
        and(self: Self, mask: u32) -> Self = {
            let mask = vdupq_n_u32(mask);
            Self(vandq_u32(self.0, mask), vandq_u32(self.1, mask))
        };
        or(self: Self, other: Self) -> Self = halves!(Self: vorrq_u32(self, other));
        to_floats(self: Self) -> Neon = {
            let signed = (vreinterpretq_s32_u32(self.0), vreinterpretq_s32_u32(self.1));
            halves!(Neon: vcvtq_f32_s32(signed))
        };
        as_floats(self: Self) -> Neon = halves!(Neon: vreinterpretq_f32_u32(self));
        lookup(self: Self, table: *const f32) -> Neon = {
            let table = vld1q_u8_x4(table.cast());
            Neon(entries(table, self.0), entries(table, self.1))
        };
        float8(self: Self) -> Neon = halves!(Neon: float8(self));
        bf16_bits(floats: Neon) -> Self = halves!(Self: bf16_bits(floats));
        add_bf16_products(self: Self, x: u32, sums: Neon) -> Neon = {
            let x = vdupq_n_u32(x);
            Neon(add_pairs(sums.0, self.0, x), add_pairs(sums.1, self.1, x))
        };
    }
}

/// The entries of a table of 16 floats at the lowest four bits.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn entries(table: uint8x16x4_t, words: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        // The table is of bytes: four times an index, and 0 to 3 more, in the bytes of a lane.
        let first = vshlq_n_u32::<2>(vandq_u32(words, vdupq_n_u32(15)));
        let bytes = vmlaq_n_u32(vdupq_n_u32(0x0302_0100), first, 0x0101_0101);
        vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)))
    }
}

/// The E4M3 floats with these bits.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn float8(words: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let magnitude = vandq_u32(words, vdupq_n_u32(0x7f));
        let eight = vdupq_n_u32(8);
        // What has no hidden bit is read as if it had one, which is then taken off.
        let is_small = vcltq_u32(magnitude, eight);
        let whole = vorrq_u32(magnitude, vandq_u32(is_small, eight));
        let bits = vaddq_u32(vshlq_n_u32::<20>(whole), vdupq_n_u32(FLOAT8_EXPONENT));
        let hidden = vandq_u32(is_small, vdupq_n_u32(SMALLEST_NORMAL.to_bits()));
        let float = vsubq_f32(vreinterpretq_f32_u32(bits), vreinterpretq_f32_u32(hidden));
        let sign = vshlq_n_u32::<24>(vandq_u32(words, vdupq_n_u32(0x80)));
        vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(float), sign))
    }
}

/// The bits of bf16, rounded to nearest, ties to even.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn bf16_bits(floats: float32x4_t) -> uint32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = vreinterpretq_u32_f32(floats);
        let high = vshrq_n_u32::<16>(bits);
        let half = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
        let rounded = vshrq_n_u32::<16>(vaddq_u32(bits, half));
        let quiet = vorrq_u32(high, vdupq_n_u32(0x40));
        vbslq_u32(vceqq_f32(floats, floats), rounded, quiet)
    }
}
