//! int8 tiles on x86-64. Sums of groups are in registers, those of rows in `out`.

use std::arch::x86_64::*;

use super::Int8Tile;
use crate::gemm::bring;
use crate::linear::blocks::by_height;

/// # Safety
/// As `Int8Tile::run`; the CPU has AVX512-VNNI.
pub(super) unsafe fn run_vnni(tile: &Int8Tile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, vnni: 1 2 3 4 5 6 7 8 9 10 11 12) }
}

/// # Safety
/// As `Int8Tile::run`; the CPU has AVX-VNNI.
pub(super) unsafe fn run_avx_vnni(tile: &Int8Tile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, avx_vnni: 1 2 3 4 5 6) }
}

/// # Safety
/// As `Int8Tile::run`; the CPU has AVX2.
pub(super) unsafe fn run_avx2(tile: &Int8Tile, height: usize) {
    // SAFETY: the caller's promise.
    unsafe { by_height!(height, tile, avx2: 1 2 3 4) }
}

/// # Safety
/// As `run_vnni`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn vnni<const MR: usize>(tile: &Int8Tile) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        for group in 0..tile.num_groups {
            let mut sums = [[_mm512_setzero_si512(); 2]; MR];
            for (m, sum) in sums.iter_mut().enumerate() {
                let start = *tile.row_starts.add(m * tile.num_groups + group);
                *sum = [_mm512_set1_epi32(start); 2];
            }
            for word in tile.words(group) {
                bring(tile.next, word, 1);
                let weights = tile.weights.add(word * 32);
                let low = _mm512_loadu_si512(weights.cast());
                let high = _mm512_loadu_si512(weights.add(16).cast());
                for (m, sum) in sums.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(*tile.x.add(m * tile.x_stride + word) as i32);
                    sum[0] = _mm512_dpbusd_epi32(sum[0], low, x);
                    sum[1] = _mm512_dpbusd_epi32(sum[1], high, x);
                }
            }
            add_group(tile, group, &sums);
        }
    }
}

/// Scales the sums of a group and adds them to the rows; with the last one goes the bias.
///
/// # Safety
/// As `run_vnni`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_group<const MR: usize>(tile: &Int8Tile, group: usize, sums: &[[__m512i; 2]; MR]) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        let lanes = Lanes::new(tile, group);
        for (m, sum) in sums.iter().enumerate() {
            lanes.add_row(tile, group, m, *sum);
        }
    }
}

/// As `add_group`, of sums in memory: (rows, 32).
///
/// # Safety
/// As `Int8Tile::run`, for as many rows; the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add_group_of(tile: &Int8Tile, group: usize, sums: &[i32]) {
    // SAFETY: the caller's promise.
    unsafe {
        let lanes = Lanes::new(tile, group);
        for (m, sums) in sums.as_chunks::<32>().0.iter().enumerate() {
            let halves = [sums.as_ptr(), sums[16..].as_ptr()];
            let [low, high] =
                [_mm512_loadu_si512(halves[0].cast()), _mm512_loadu_si512(halves[1].cast())];
            lanes.add_row(tile, group, m, [low, high]);
        }
    }
}

/// Scales and biases of a group's outputs.
struct Lanes {
    scales: [__m512; 2],
    bias: [__m512; 2],
    is_last: bool,
}

impl Lanes {
    /// # Safety
    /// As `run_vnni`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn new(tile: &Int8Tile, group: usize) -> Self {
        let is_last = group + 1 == tile.num_groups;
        // SAFETY: the promise of `Int8Tile::run`.
        unsafe {
            let scales = tile.scales.add(group * 32);
            let scales = [_mm512_loadu_ps(scales), _mm512_loadu_ps(scales.add(16))];
            let bias = match is_last && !tile.bias.is_null() {
                true => [_mm512_loadu_ps(tile.bias), _mm512_loadu_ps(tile.bias.add(16))],
                false => [_mm512_setzero_ps(); 2],
            };
            Self { scales, bias, is_last }
        }
    }

    /// # Safety
    /// As `run_vnni`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn add_row(&self, tile: &Int8Tile, group: usize, m: usize, sums: [__m512i; 2]) {
        // SAFETY: the promise of `Int8Tile::run`.
        unsafe {
            let row_scale = _mm512_set1_ps(*tile.row_scales.add(m * tile.num_groups + group));
            for (half, sum) in sums.into_iter().enumerate() {
                let out = tile.out.add(m * tile.out_stride + 16 * half);
                let scale = _mm512_mul_ps(row_scale, self.scales[half]);
                let mut total = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
                if group > 0 {
                    total = _mm512_add_ps(_mm512_loadu_ps(out), total);
                }
                if self.is_last {
                    total = _mm512_add_ps(total, self.bias[half]);
                }
                _mm512_storeu_ps(out, total);
            }
        }
    }
}

/// # Safety
/// As `run_avx_vnni`.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn avx_vnni<const MR: usize>(tile: &Int8Tile) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        for group in 0..tile.num_groups {
            let mut sums = [[_mm256_setzero_si256(); 2]; MR];
            for (m, sum) in sums.iter_mut().enumerate() {
                let start = *tile.row_starts.add(m * tile.num_groups + group);
                *sum = [_mm256_set1_epi32(start); 2];
            }
            for word in tile.words(group) {
                bring(tile.next, word, 1);
                let weights = tile.weights.add(word * 16);
                let low = _mm256_loadu_si256(weights.cast());
                let high = _mm256_loadu_si256(weights.add(8).cast());
                for (m, sum) in sums.iter_mut().enumerate() {
                    let x = _mm256_set1_epi32(*tile.x.add(m * tile.x_stride + word) as i32);
                    sum[0] = _mm256_dpbusd_avx_epi32(sum[0], low, x);
                    sum[1] = _mm256_dpbusd_avx_epi32(sum[1], high, x);
                }
            }
            add_narrow_group(tile, group, &sums);
        }
    }
}

/// # Safety
/// As `run_avx2`.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const MR: usize>(tile: &Int8Tile) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        for group in 0..tile.num_groups {
            let mut sums = [[_mm256_setzero_si256(); 2]; MR];
            for word in tile.words(group) {
                bring(tile.next, word, 1);
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
            add_narrow_group(tile, group, &sums);
        }
    }
}

/// As `add_group`, in vectors of half the width.
///
/// # Safety
/// As `run_avx2`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn add_narrow_group<const MR: usize>(
    tile: &Int8Tile,
    group: usize,
    sums: &[[__m256i; 2]; MR],
) {
    // SAFETY: the promise of `Int8Tile::run`.
    unsafe {
        let is_last = group + 1 == tile.num_groups;
        for (m, sum) in sums.iter().enumerate() {
            let row_scale = _mm256_set1_ps(*tile.row_scales.add(m * tile.num_groups + group));
            for (half, &sum) in sum.iter().enumerate() {
                let out = tile.out.add(m * tile.out_stride + 8 * half);
                let scales = _mm256_loadu_ps(tile.scales.add(group * 16 + 8 * half));
                let scale = _mm256_mul_ps(row_scale, scales);
                let mut total = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), scale);
                if group > 0 {
                    total = _mm256_add_ps(_mm256_loadu_ps(out), total);
                }
                if is_last {
                    let bias = match tile.bias.is_null() {
                        true => _mm256_setzero_ps(),
                        false => _mm256_loadu_ps(tile.bias.add(8 * half)),
                    };
                    total = _mm256_add_ps(total, bias);
                }
                _mm256_storeu_ps(out, total);
            }
        }
    }
}
