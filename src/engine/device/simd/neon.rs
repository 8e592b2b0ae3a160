//! Vectors of aarch64: NEON, two registers to a vector.
//!
//! So a vector is as wide as AVX2's, and every method does what AVX2's does, in one order: panels,
//! tiles and sums are the same.

pub mod dots;

use std::arch::aarch64::*;
use std::arch::asm;

use super::words::NeonWords;
use super::{Kernel, Vector, intrinsics};

/// Runs a kernel with dot products of bf16 among its instructions.
///
/// # Safety
/// The CPU has these features.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features.
    unsafe { kernel.run::<Neon>() }
}

/// The bits of the second of two bf16 that lie in a 32-bit lane.
const HIGH_HALF: u32 = 0xffff_0000;

/// Eight floats.
#[derive(Clone, Copy, Debug)]
pub struct Neon(pub(super) float32x4_t, pub(super) float32x4_t);

/// One intrinsic for both halves of vectors.
macro_rules! halves {
    ($vector:ident: $op:ident $(::<$lanes:literal>)? ($($arg:ident),*)) => {
        $vector($op $(::<$lanes>)? ($($arg.0),*), $op $(::<$lanes>)? ($($arg.1),*))
    };
}
pub(super) use halves;

/// Lanes that have the bit H of their index.
const fn second_lanes<const H: usize>() -> [u32; 4] {
    let mut lanes = [0; 4];
    let mut lane = 0;
    while lane < 4 {
        if lane & H != 0 {
            lanes[lane] = u32::MAX;
        }
        lane += 1;
    }
    lanes
}

impl Vector for Neon {
    type Words = NeonWords;
    const LANES: usize = 8;
    /// 32 registers of half the size.
    const NUM_REGISTERS: usize = 16;
    intrinsics! {
        splat(value: f32) -> Self = Self(vdupq_n_f32(value), vdupq_n_f32(value));
        load(ptr: *const f32) -> Self = Self(vld1q_f32(ptr), vld1q_f32(ptr.add(4)));
        load_bf16(ptr: *const u16) -> Self = {
            // Zeros below each make a float of it.
            let (halves, zeros) = (vld1q_u16(ptr), vdupq_n_u16(0));
            Self(
                vreinterpretq_f32_u16(vzip1q_u16(zeros, halves)),
                vreinterpretq_f32_u16(vzip2q_u16(zeros, halves)),
            )
        };
        load_f16(ptr: *const u16) -> Self = widen_f16(vld1q_u16(ptr));
        load_low_bf16(ptr: *const u32) -> Self = {
            let pairs = NeonWords(vld1q_u32(ptr), vld1q_u32(ptr.add(4)));
            let bits = halves!(NeonWords: vshlq_n_u32::<16>(pairs));
            halves!(Self: vreinterpretq_f32_u32(bits))
        };
        load_high_bf16(ptr: *const u32) -> Self = {
            let pairs = NeonWords(vld1q_u32(ptr), vld1q_u32(ptr.add(4)));
            let mask = NeonWords(vdupq_n_u32(HIGH_HALF), vdupq_n_u32(HIGH_HALF));
            let bits = halves!(NeonWords: vandq_u32(pairs, mask));
            halves!(Self: vreinterpretq_f32_u32(bits))
        };
        store(self: Self, ptr: *mut f32) -> () = {
            vst1q_f32(ptr, self.0);
            vst1q_f32(ptr.add(4), self.1);
        };
        add(self: Self, other: Self) -> Self = halves!(Self: vaddq_f32(self, other));
        sub(self: Self, other: Self) -> Self = halves!(Self: vsubq_f32(self, other));
        mul(self: Self, other: Self) -> Self = halves!(Self: vmulq_f32(self, other));
        div(self: Self, other: Self) -> Self = halves!(Self: vdivq_f32(self, other));
        // Not `fmax` and `fmin`, which have a way of their own with NaN and with zeros.
        max(self: Self, other: Self) -> Self = halves!(Self: larger(self, other));
        min(self: Self, other: Self) -> Self = halves!(Self: smaller(self, other));
        mul_add(self: Self, factor: Self, addend: Self) -> Self =
            halves!(Self: vfmaq_f32(addend, self, factor));
        round(self: Self) -> Self = halves!(Self: vrndnq_f32(self));
        mul_exp2(self: Self, exponent: Self) -> Self = halves!(Self: scaled(self, exponent));
        zero_below(self: Self, limit: Self, other: Self) -> Self = {
            let below = halves!(NeonWords: vcltq_f32(self, limit));
            let bits = halves!(NeonWords: vreinterpretq_u32_f32(other));
            let kept = halves!(NeonWords: vbicq_u32(bits, below));
            halves!(Self: vreinterpretq_f32_u32(kept))
        };
        sum(self: Self) -> f32 = {
            let quads = vaddq_f32(self.0, self.1);
            vpadds_f32(vadd_f32(vget_low_f32(quads), vget_high_f32(quads)))
        };
        largest(self: Self) -> f32 = {
            let quads = larger(self.0, self.1);
            let pairs = larger(quads, vextq_f32::<2>(quads, quads));
            vgetq_lane_f32::<0>(larger(pairs, vrev64q_f32(pairs)))
        };
        any_not_below(self: Self, limit: f32) -> bool = {
            let limit = vdupq_n_f32(limit);
            vminvq_u32(vandq_u32(vcltq_f32(self.0, limit), vcltq_f32(self.1, limit))) == 0
        };
    }
    #[inline(always)]
    unsafe fn butterflies<const H: usize>(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            match H {
                1 => Self(
                    butterflies::<1>(self.0, vrev64q_f32(self.0)),
                    butterflies::<1>(self.1, vrev64q_f32(self.1)),
                ),
                2 => Self(
                    butterflies::<2>(self.0, vextq_f32::<2>(self.0, self.0)),
                    butterflies::<2>(self.1, vextq_f32::<2>(self.1, self.1)),
                ),
                4 => Self(vaddq_f32(self.0, self.1), vsubq_f32(self.0, self.1)),
                _ => unreachable!("lanes {H} apart"),
            }
        }
    }
}

/// The larger; `b` where either is NaN, or where they are equal.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// The smaller; `b` where either is NaN, or where they are equal.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// values * 2^exponent
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn scaled(values: float32x4_t, exponent: float32x4_t) -> float32x4_t {
    // SAFETY: the caller's promise.
    unsafe {
        let n = vaddq_s32(vcvtnq_s32_f32(exponent), vdupq_n_s32(127));
        vmulq_f32(values, vreinterpretq_f32_s32(vshlq_n_s32::<23>(n)))
    }
}

/// Sums in the lanes without H, differences in those with it; `others` are the lanes H away.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn butterflies<const H: usize>(values: float32x4_t, others: float32x4_t) -> float32x4_t {
    let second = const { second_lanes::<H>() };
    // SAFETY: the caller's promise, and four lanes of memory.
    unsafe {
        let (sums, differences) = (vaddq_f32(values, others), vsubq_f32(others, values));
        vbslq_f32(vld1q_u32(second.as_ptr()), differences, sums)
    }
}

/// Eight f16 as floats. The intrinsics need a type that stable Rust did not always have.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn widen_f16(halves: uint16x8_t) -> Neon {
    let (low, high): (float32x4_t, float32x4_t);
    // SAFETY: the caller's promise; registers alone are touched.
    unsafe {
        asm!(
            "fcvtl {low:v}.4s, {halves:v}.4h",
            "fcvtl2 {high:v}.4s, {halves:v}.8h",
            low = out(vreg) low,
            high = lateout(vreg) high,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    Neon(low, high)
}

/// As [`super::prefetch`].
#[inline(always)]
pub(super) fn prefetch(ptr: *const u8) {
    // SAFETY: a prefetch of any address is allowed.
    unsafe {
        asm!("prfm pldl2keep, [{}]", in(reg) ptr.addr(), options(nomem, nostack, preserves_flags));
    }
}

/// Asks for the cache line at `ptr`, to write to it.
#[inline(always)]
pub(super) fn prefetch_to_write(ptr: *const u8) {
    // SAFETY: as above.
    unsafe {
        asm!("prfm pstl1keep, [{}]", in(reg) ptr.addr(), options(nomem, nostack, preserves_flags));
    }
}
