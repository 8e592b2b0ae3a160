//! Words of 16 lanes where registers have eight: two of AVX2 to a vector.

use std::arch::x86_64::*;

use super::Words;
use crate::simd::double_avx2::DoubleAvx2;

/// Sixteen words: the first eight, and the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoubleAvx2Words(__m256i, __m256i);

/// Methods that do the same to both halves; the arguments after the first are for either.
macro_rules! by_halves {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name(self $(, $arg: $ty)*) -> $out {
            // SAFETY: the promise of `Words`.
            unsafe { $out(self.0.$name($($arg),*), self.1.$name($($arg),*)) }
        }
    )*};
}

impl Words for DoubleAvx2Words {
    type Floats = DoubleAvx2;
    by_halves! {
        shift_right(bits: u32) -> Self;
        shift_left(bits: u32) -> Self;
        and(mask: u32) -> Self;
        to_floats() -> DoubleAvx2;
        as_floats() -> DoubleAvx2;
        lookup(table: *const f32) -> DoubleAvx2;
        float8() -> DoubleAvx2;
    }
    #[inline(always)]
    unsafe fn load(ptr: *const u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { Self(__m256i::load(ptr), __m256i::load(ptr.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_bytes(ptr: *const u8) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { Self(__m256i::load_bytes(ptr), __m256i::load_bytes(ptr.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut u32) {
        // SAFETY: the promise of `Words`.
        unsafe {
            self.0.store(ptr);
            self.1.store(ptr.add(8));
        }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { Self(self.0.or(other.0), self.1.or(other.1)) }
    }
    #[inline(always)]
    unsafe fn bf16_bits(floats: DoubleAvx2) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { Self(__m256i::bf16_bits(floats.0), __m256i::bf16_bits(floats.1)) }
    }
    /// As AVX512-BF16 rounds: what is subnormal becomes a zero.
    #[inline(always)]
    unsafe fn bf16_pairs(first: DoubleAvx2, second: DoubleAvx2) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe {
            let first = Self(flushed_bf16_bits(first.0), flushed_bf16_bits(first.1));
            let second = Self(flushed_bf16_bits(second.0), flushed_bf16_bits(second.1));
            first.or(second.shift_left(16))
        }
    }
}

/// As [`Words::bf16_bits`], but a subnormal float becomes a zero of its sign, as where the CPU has
/// the instruction.
///
/// # Safety
/// The CPU has AVX2.
#[inline(always)]
pub unsafe fn flushed_bf16_bits(floats: __m256) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let bits = _mm256_castps_si256(floats);
        let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(i32::MAX));
        let least_normal = _mm256_set1_epi32(f32::MIN_POSITIVE.to_bits() as i32);
        let is_small = _mm256_cmpgt_epi32(least_normal, magnitude);
        let kept = _mm256_andnot_si256(_mm256_and_si256(is_small, magnitude), bits);
        __m256i::bf16_bits(_mm256_castsi256_ps(kept))
    }
}
