//! Words of x86-64: AVX-512, and AVX2.

use std::arch::x86_64::*;

use super::Words;
use crate::simd::intrinsics;

/// 2^-6, E4M3's smallest normal number.
const SMALLEST_NORMAL: f32 = 0.015_625;

/// What the exponents of f32 and of E4M3 differ by, in its place.
const FLOAT8_EXPONENT: i32 = 120 << 23;

/// 16-bit lanes of two vectors, one of each by turns.
const ALTERNATING: [u16; 32] = [
    0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
    13, 29, 14, 30, 15, 31,
];

impl Words for __m512i {
    type Floats = __m512;
    intrinsics! {
        load(ptr: *const u32) -> Self = _mm512_loadu_si512(ptr.cast());
        load_bytes(ptr: *const u8) -> Self = _mm512_cvtepu8_epi32(_mm_loadu_si128(ptr.cast()));
        bf16_pairs(first: __m512, second: __m512) -> Self = _mm512_permutexvar_epi16(
            _mm512_loadu_si512(ALTERNATING.as_ptr().cast()),
            std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first)));
        add_bf16_products(self: Self, x: u32, sums: __m512) -> __m512 = _mm512_dpbf16_ps(
            sums, std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32)),
            std::mem::transmute::<__m512i, __m512bh>(self));
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut u32) {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_storeu_si512(ptr.cast(), self) }
    }
    #[inline(always)]
    unsafe fn shift_right(self, bits: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_srlv_epi32(self, _mm512_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn shift_left(self, bits: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_sllv_epi32(self, _mm512_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn and(self, mask: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_and_si512(self, _mm512_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_or_si512(self, other) }
    }
    #[inline(always)]
    unsafe fn to_floats(self) -> __m512 {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_cvtepi32_ps(self) }
    }
    #[inline(always)]
    unsafe fn as_floats(self) -> __m512 {
        // SAFETY: the promise of `Words`.
        unsafe { _mm512_castsi512_ps(self) }
    }
    #[inline(always)]
    unsafe fn lookup(self, table: *const f32) -> __m512 {
        // SAFETY: the promise of `Words`, and 16 entries.
        unsafe { _mm512_permutexvar_ps(self, _mm512_loadu_ps(table)) }
    }
    #[inline(always)]
    unsafe fn float8(self) -> __m512 {
        // SAFETY: the promise of `Words`.
        unsafe {
            let magnitude = _mm512_and_si512(self, _mm512_set1_epi32(0x7f));
            let eight = _mm512_set1_epi32(8);
            // What has no hidden bit is read as if it had one, which is then taken off.
            let is_small = _mm512_cmplt_epi32_mask(magnitude, eight);
            let whole = _mm512_mask_or_epi32(magnitude, is_small, magnitude, eight);
            let bits = _mm512_add_epi32(
                _mm512_slli_epi32::<20>(whole),
                _mm512_set1_epi32(FLOAT8_EXPONENT),
            );
            let float = _mm512_castsi512_ps(bits);
            let hidden = _mm512_set1_ps(SMALLEST_NORMAL);
            let float = _mm512_mask_sub_ps(float, is_small, float, hidden);
            let sign = _mm512_slli_epi32::<24>(_mm512_and_si512(self, _mm512_set1_epi32(0x80)));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(float), sign))
        }
    }
    #[inline(always)]
    unsafe fn bf16_bits(floats: __m512) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe {
            let bits = _mm512_castps_si512(floats);
            let high = _mm512_srli_epi32::<16>(bits);
            let odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(floats, floats);
            _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40))
        }
    }
}

impl Words for __m256i {
    type Floats = __m256;
    intrinsics! {
        load(ptr: *const u32) -> Self = _mm256_loadu_si256(ptr.cast());
        load_bytes(ptr: *const u8) -> Self = _mm256_cvtepu8_epi32(_mm_loadl_epi64(ptr.cast()));
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut u32) {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_storeu_si256(ptr.cast(), self) }
    }
    #[inline(always)]
    unsafe fn shift_right(self, bits: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_srlv_epi32(self, _mm256_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn shift_left(self, bits: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_sllv_epi32(self, _mm256_set1_epi32(bits as i32)) }
    }
    #[inline(always)]
    unsafe fn and(self, mask: u32) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_and_si256(self, _mm256_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_or_si256(self, other) }
    }
    #[inline(always)]
    unsafe fn to_floats(self) -> __m256 {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_cvtepi32_ps(self) }
    }
    #[inline(always)]
    unsafe fn as_floats(self) -> __m256 {
        // SAFETY: the promise of `Words`.
        unsafe { _mm256_castsi256_ps(self) }
    }
    #[inline(always)]
    unsafe fn lookup(self, table: *const f32) -> __m256 {
        // SAFETY: the promise of `Words`, and 16 entries.
        unsafe {
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), self);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.add(8)), self);
            let is_high = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(self));
            _mm256_blendv_ps(low, high, is_high)
        }
    }
    #[inline(always)]
    unsafe fn float8(self) -> __m256 {
        // SAFETY: the promise of `Words`.
        unsafe {
            let magnitude = _mm256_and_si256(self, _mm256_set1_epi32(0x7f));
            let eight = _mm256_set1_epi32(8);
            // What has no hidden bit is read as if it had one, which is then taken off.
            let is_small = _mm256_cmpgt_epi32(eight, magnitude);
            let whole = _mm256_or_si256(magnitude, _mm256_and_si256(is_small, eight));
            let bits = _mm256_add_epi32(
                _mm256_slli_epi32::<20>(whole),
                _mm256_set1_epi32(FLOAT8_EXPONENT),
            );
            let hidden =
                _mm256_and_ps(_mm256_castsi256_ps(is_small), _mm256_set1_ps(SMALLEST_NORMAL));
            let float = _mm256_sub_ps(_mm256_castsi256_ps(bits), hidden);
            let sign = _mm256_slli_epi32::<24>(_mm256_and_si256(self, _mm256_set1_epi32(0x80)));
            _mm256_or_ps(float, _mm256_castsi256_ps(sign))
        }
    }
    #[inline(always)]
    unsafe fn bf16_bits(floats: __m256) -> Self {
        // SAFETY: the promise of `Words`.
        unsafe {
            let bits = _mm256_castps_si256(floats);
            let high = _mm256_srli_epi32::<16>(bits);
            let odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
            let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
            let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
            let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
            let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(floats, floats));
            _mm256_blendv_epi8(rounded, quiet, is_nan)
        }
    }
}
