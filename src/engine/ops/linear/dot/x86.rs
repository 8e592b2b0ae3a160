//! Tiles of `vdpbf16ps`, and their inputs.

use std::arch::x86_64::*;

use super::DotTile;
use crate::engine::ops::gemm::bring;
use crate::engine::ops::linear::blocks::by_height;

/// # Safety
/// As `DotTile::run`.
pub(super) unsafe fn run(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, bf16: 1 2 3 4 5 6 7 8 9 10 11 12) }
}

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

/// # Safety
/// As `run`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn bf16<const MR: usize>(tile: &DotTile) {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; MR];
        if !tile.is_first {
            for (m, sum) in sums.iter_mut().enumerate() {
                let out = tile.out.add(m * tile.out_stride);
                *sum = [_mm512_loadu_ps(out), _mm512_loadu_ps(out.add(16))];
            }
        }
        for word in 0..tile.num_words {
            bring(tile.next, word, 1);
            let weights = tile.weights.add(word * 32);
            let row: [__m512bh; 2] = [
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(weights.cast())),
                std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(
                    weights.add(16).cast(),
                )),
            ];
            for (m, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*tile.x.add(m * tile.x_stride + word) as i32);
                let x = std::mem::transmute::<__m512i, __m512bh>(x);
                sum[0] = _mm512_dpbf16_ps(sum[0], x, row[0]);
                sum[1] = _mm512_dpbf16_ps(sum[1], x, row[1]);
            }
        }
        let bias = biases(tile);
        for (m, sum) in sums.iter().enumerate() {
            let out = tile.out.add(m * tile.out_stride);
            _mm512_storeu_ps(out, _mm512_add_ps(sum[0], bias[0]));
            _mm512_storeu_ps(out.add(16), _mm512_add_ps(sum[1], bias[1]));
        }
    }
}

/// The panel's biases, or zeros.
///
/// # Safety
/// As `run`.
#[target_feature(enable = "avx512f")]
unsafe fn biases(tile: &DotTile) -> [__m512; 2] {
    match tile.bias.is_null() {
        true => [_mm512_setzero_ps(); 2],
        // SAFETY: the promise of `DotTile::run`.
        false => unsafe { [_mm512_loadu_ps(tile.bias), _mm512_loadu_ps(tile.bias.add(16))] },
    }
}
