//! Tiles of `vdpbf16ps`.

use std::arch::x86_64::*;

use super::DotTile;
use crate::gemm::bring;
use crate::linear::blocks::by_height;

/// # Safety
/// As `DotTile::run`.
pub(super) unsafe fn run(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, bf16: 1 2 3 4 5 6 7 8 9 10 11 12) }
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
