//! Tiles of dot products on x86-64.

use std::arch::x86_64::*;

use super::DotTile;

macro_rules! by_height {
    ($height:expr, $tile:expr, $run:ident: $($mr:literal)*) => {
        match $height {
            $($mr => $run::<$mr>($tile),)*
            height => unreachable!("a tile of {height} rows"),
        }
    };
}

/// # Safety
/// As `DotTile::run`; the CPU has AVX512-BF16.
pub(super) unsafe fn run_bf16(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, bf16: 1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// As `DotTile::run`; the CPU has AVX512-VNNI.
pub(super) unsafe fn run_vnni(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, vnni: 1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// As `DotTile::run`; the CPU has AVX2.
pub(super) unsafe fn run_avx2(tile: &DotTile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, avx2: 1 2 3 4) }
}

/// # Safety
/// As `run_bf16`.
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
            tile.bring(word);
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
/// As `run_bf16` or `run_vnni`.
#[target_feature(enable = "avx512f")]
unsafe fn biases(tile: &DotTile) -> [__m512; 2] {
    match tile.bias.is_null() {
        true => [_mm512_setzero_ps(); 2],
        // SAFETY: the promise of `DotTile::run`.
        false => unsafe { [_mm512_loadu_ps(tile.bias), _mm512_loadu_ps(tile.bias.add(16))] },
    }
}

/// # Safety
/// As `run_vnni`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni<const MR: usize>(tile: &DotTile) {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        let initial = [
            _mm512_loadu_si512(tile.initial.cast()),
            _mm512_loadu_si512(tile.initial.add(16).cast()),
        ];
        let mut sums = [initial; MR];
        for word in 0..tile.num_words {
            tile.bring(word);
            let weights = tile.weights.add(word * 32);
            let low = _mm512_loadu_si512(weights.cast());
            let high = _mm512_loadu_si512(weights.add(16).cast());
            for (m, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*tile.x.add(m * tile.x_stride + word) as i32);
                sum[0] = _mm512_dpbusd_epi32(sum[0], x, low);
                sum[1] = _mm512_dpbusd_epi32(sum[1], x, high);
            }
        }
        let bias = biases(tile);
        let scales = [_mm512_loadu_ps(tile.scales), _mm512_loadu_ps(tile.scales.add(16))];
        for (m, sum) in sums.iter().enumerate() {
            let row_scale = _mm512_set1_ps(*tile.row_scales.add(m));
            let out = tile.out.add(m * tile.out_stride);
            for (half, &sum) in sum.iter().enumerate() {
                let scale = _mm512_mul_ps(row_scale, scales[half]);
                let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                _mm512_storeu_ps(out.add(16 * half), _mm512_add_ps(scaled, bias[half]));
            }
        }
    }
}

/// # Safety
/// As `run_avx2`.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const MR: usize>(tile: &DotTile) {
    // SAFETY: the promise of `DotTile::run`.
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); 2]; MR];
        let ones = _mm256_set1_epi16(1);
        for word in 0..tile.num_words {
            tile.bring(word);
            let weights = tile.weights.add(word * 16);
            let row =
                [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(8).cast())];
            for (m, sum) in sums.iter_mut().enumerate() {
                let x = _mm256_set1_epi32(*tile.x.add(m * tile.x_stride + word) as i32);
                let size = _mm256_abs_epi8(x);
                for (sum, row) in sum.iter_mut().zip(row) {
                    let pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(row, x));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
                }
            }
        }
        for (m, sum) in sums.iter().enumerate() {
            let row_scale = _mm256_set1_ps(*tile.row_scales.add(m));
            let out = tile.out.add(m * tile.out_stride);
            for (half, &sum) in sum.iter().enumerate() {
                let scale = _mm256_mul_ps(row_scale, _mm256_loadu_ps(tile.scales.add(8 * half)));
                let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                let bias = match tile.bias.is_null() {
                    true => _mm256_setzero_ps(),
                    false => _mm256_loadu_ps(tile.bias.add(8 * half)),
                };
                _mm256_storeu_ps(out.add(8 * half), _mm256_add_ps(scaled, bias));
            }
        }
    }
}
