//! Vectors of x86-64: AVX-512, and AVX2 with FMA.

use super::double_avx2::DoubleAvx2;
use super::words::Words;
use super::{Kernel, Vector, intrinsics};
use std::arch::x86_64::*;

/// The bits of the second of two bf16 that lie in a 32-bit lane.
const HIGH_HALF: i32 = 0xffff_0000u32 as i32;

/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,avx2")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features.
    unsafe { kernel.run::<__m512>() }
}

/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c,avx2")]
pub(super) unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features.
    unsafe { kernel.run::<__m512>() }
}

/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features.
    unsafe { kernel.run::<__m256>() }
}

/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_double_avx2<K: Kernel>(kernel: K) {
    // SAFETY: this function's own target features.
    unsafe { kernel.run::<DoubleAvx2>() }
}

/// 1 in the first of each two lanes that are H apart, and -1 in the second.
const fn butterfly_signs<const H: usize>() -> [f32; 16] {
    let mut signs = [1.0; 16];
    let mut lane = 0;
    while lane < 16 {
        if lane & H != 0 {
            signs[lane] = -1.0;
        }
        lane += 1;
    }
    signs
}

impl Vector for __m512 {
    type Words = __m512i;
    const LANES: usize = 16;
    const NUM_REGISTERS: usize = 32;
    const IS_AVX512: bool = true;
    intrinsics! {
        splat(value: f32) -> Self = _mm512_set1_ps(value);
        load(ptr: *const f32) -> Self = _mm512_loadu_ps(ptr);
        load_bf16(ptr: *const u16) -> Self = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(ptr.cast()))));
        load_f16(ptr: *const u16) -> Self = _mm512_cvtph_ps(_mm256_loadu_si256(ptr.cast()));
        load_low_bf16(ptr: *const u32) -> Self =
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(ptr.cast())));
        load_high_bf16(ptr: *const u32) -> Self = _mm512_castsi512_ps(_mm512_and_si512(
            _mm512_loadu_si512(ptr.cast()), _mm512_set1_epi32(HIGH_HALF)));
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut f32) {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_storeu_ps(ptr, self) }
    }
    #[inline(always)]
    unsafe fn store_bf16_apart(self, ptr: *mut u16) {
        // SAFETY: the promise of `Vector`; the mask leaves out what is between.
        unsafe {
            let narrowed = Self::Words::bf16_bits(self);
            _mm512_mask_storeu_epi16(ptr.cast(), 0x5555_5555, narrowed);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_min_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_fmadd_ps(self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self) }
    }
    #[inline(always)]
    unsafe fn mul_exp2(self, exponent: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_scalef_ps(self, exponent) }
    }
    #[inline(always)]
    unsafe fn zero_below(self, limit: Self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self, limit);
            _mm512_mask_mov_ps(other, below, _mm512_setzero_ps())
        }
    }
    #[inline(always)]
    unsafe fn butterflies<const H: usize>(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let others = match H {
                1 => _mm512_permute_ps::<0b10_11_00_01>(self),
                2 => _mm512_permute_ps::<0b01_00_11_10>(self),
                4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(self, self),
                8 => _mm512_shuffle_f32x4::<0b01_00_11_10>(self, self),
                _ => unreachable!("lanes {H} apart"),
            };
            // Products with 1 and -1 are exact, and spare a mask.
            let signs = const { butterfly_signs::<H>() };
            _mm512_fmadd_ps(self, _mm512_loadu_ps(signs.as_ptr()), others)
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let low = _mm512_castps512_ps256(self);
            let high = _mm512_extractf32x8_ps::<1>(self);
            _mm256_add_ps(low, high).sum()
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let low = _mm512_castps512_ps256(self);
            let high = _mm512_extractf32x8_ps::<1>(self);
            _mm256_max_ps(low, high).largest()
        }
    }
    #[inline(always)]
    unsafe fn any_not_below(self, limit: f32) -> bool {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self, _mm512_set1_ps(limit)) != 0 }
    }
}

impl Vector for __m256 {
    type Words = __m256i;
    const LANES: usize = 8;
    const NUM_REGISTERS: usize = 16;
    intrinsics! {
        splat(value: f32) -> Self = _mm256_set1_ps(value);
        load(ptr: *const f32) -> Self = _mm256_loadu_ps(ptr);
        load_bf16(ptr: *const u16) -> Self = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(ptr.cast()))));
        load_f16(ptr: *const u16) -> Self = _mm256_cvtph_ps(_mm_loadu_si128(ptr.cast()));
        load_low_bf16(ptr: *const u32) -> Self =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_loadu_si256(ptr.cast())));
        load_high_bf16(ptr: *const u32) -> Self = _mm256_castsi256_ps(_mm256_and_si256(
            _mm256_loadu_si256(ptr.cast()), _mm256_set1_epi32(HIGH_HALF)));
    }
    #[inline(always)]
    unsafe fn store(self, ptr: *mut f32) {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_storeu_ps(ptr, self) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_add_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_sub_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_mul_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_div_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_max_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_min_ps(self, other) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_fmadd_ps(self, factor, addend) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self) }
    }
    #[inline(always)]
    unsafe fn mul_exp2(self, exponent: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let n = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
            _mm256_mul_ps(self, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n)))
        }
    }
    #[inline(always)]
    unsafe fn zero_below(self, limit: Self, other: Self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self, limit), other) }
    }
    #[inline(always)]
    unsafe fn butterflies<const H: usize>(self) -> Self {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let others = match H {
                1 => _mm256_permute_ps::<0b10_11_00_01>(self),
                2 => _mm256_permute_ps::<0b01_00_11_10>(self),
                4 => _mm256_permute2f128_ps::<1>(self, self),
                _ => unreachable!("lanes {H} apart"),
            };
            let (sums, differences) = (_mm256_add_ps(self, others), _mm256_sub_ps(others, self));
            match H {
                1 => _mm256_blend_ps::<0xaa>(sums, differences),
                2 => _mm256_blend_ps::<0xcc>(sums, differences),
                _ => _mm256_blend_ps::<0xf0>(sums, differences),
            }
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let low = _mm256_castps256_ps128(self);
            let quads = _mm_add_ps(low, _mm256_extractf128_ps::<1>(self));
            let pairs = _mm_add_ps(quads, _mm_movehl_ps(quads, quads));
            _mm_cvtss_f32(_mm_add_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs)))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let low = _mm256_castps256_ps128(self);
            let quads = _mm_max_ps(low, _mm256_extractf128_ps::<1>(self));
            let pairs = _mm_max_ps(quads, _mm_movehl_ps(quads, quads));
            _mm_cvtss_f32(_mm_max_ss(pairs, _mm_shuffle_ps::<1>(pairs, pairs)))
        }
    }
    #[inline(always)]
    unsafe fn any_not_below(self, limit: f32) -> bool {
        // SAFETY: the promise of `Vector`.
        unsafe {
            let not_below = _mm256_cmp_ps::<_CMP_NLT_UQ>(self, _mm256_set1_ps(limit));
            _mm256_movemask_ps(not_below) != 0
        }
    }
}
