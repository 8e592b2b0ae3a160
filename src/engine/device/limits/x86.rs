//! Dot products of x86-64, the instructions of `ops::linear` without its loads: rounds of one per
//! accumulator, none of which can be computed beforehand.

use crate::simd::InstructionSet;
use std::arch::x86_64::*;
use std::hint::black_box;

use vllm_batch_base::isa::Isa;

/// As many as hide the latency and fit the registers.
const NUM: usize = 12;

/// Operations of a round: 16 lanes of two products.
pub(super) const BF16_FLOPS: f64 = 2.0 * 2.0 * 16.0 * NUM as f64;
/// 16 lanes of four products.
pub(super) const VNNI_FLOPS: f64 = 2.0 * 4.0 * 16.0 * NUM as f64;
/// 8 lanes of four products.
pub(super) const AVX2_FLOPS: f64 = 2.0 * 4.0 * 8.0 * NUM as f64;

pub(super) fn bf16_dots(isa: Isa, num_rounds: usize) {
    assert!(isa == Isa::Avx512Bf16 && isa.is_available());
    // SAFETY: this CPU has the set.
    unsafe { bf16(num_rounds) }
}

pub(super) fn vnni_dots(isa: Isa, num_rounds: usize) {
    assert!(isa.is_available() && is_x86_feature_detected!("avx512vnni"));
    // SAFETY: this CPU has the instructions: every set with it has AVX-512.
    unsafe { vnni(num_rounds) }
}

pub(super) fn avx_vnni_dots(_: Isa, num_rounds: usize) {
    assert!(Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"));
    // SAFETY: this CPU has the instructions.
    unsafe { avx_vnni(num_rounds) }
}

pub(super) fn avx2_dots(_: Isa, num_rounds: usize) {
    assert!(Isa::Avx2.is_available());
    // SAFETY: this CPU has the set.
    unsafe { avx2(num_rounds) }
}

/// # Safety
/// The CPU has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn bf16(num_rounds: usize) {
    // SAFETY: both are 64 bytes of plain bits.
    let x = unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(black_box(0))) };
    let mut sums = [_mm512_setzero_ps(); NUM];
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_set1_ps(black_box(index as f32));
    }
    for _ in 0..num_rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, x);
        }
    }
    for sum in sums {
        black_box(_mm512_reduce_add_ps(sum));
    }
}

/// # Safety
/// The CPU has AVX512-VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni(num_rounds: usize) {
    let x = _mm512_set1_epi32(black_box(0x0102_0304));
    let mut sums = [_mm512_setzero_si512(); NUM];
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = _mm512_set1_epi32(black_box(index as i32));
    }
    for _ in 0..num_rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, x);
        }
    }
    for sum in sums {
        black_box(_mm512_reduce_add_epi32(sum));
    }
}

/// # Safety
/// The CPU has AVX-VNNI.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn avx_vnni(num_rounds: usize) {
    let x = _mm256_set1_epi32(black_box(0x0102_0304));
    let mut sums = [_mm256_setzero_si256(); NUM];
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = _mm256_set1_epi32(black_box(index as i32));
    }
    for _ in 0..num_rounds {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, x, x);
        }
    }
    for sum in sums {
        black_box(_mm256_extract_epi32::<0>(sum));
    }
}

/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn avx2(num_rounds: usize) {
    let (x, ones) = (_mm256_set1_epi32(black_box(0x0102_0304)), _mm256_set1_epi16(1));
    let mut sums = [_mm256_setzero_si256(); NUM];
    for (index, sum) in sums.iter_mut().enumerate() {
        *sum = _mm256_set1_epi32(black_box(index as i32));
    }
    for _ in 0..num_rounds {
        for sum in &mut sums {
            // The sums serve as weights: products of what stays the same would be computed once.
            let pairs = _mm256_maddubs_epi16(x, _mm256_sign_epi8(*sum, x));
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
        }
    }
    for sum in sums {
        black_box(_mm256_extract_epi32::<0>(sum));
    }
}
