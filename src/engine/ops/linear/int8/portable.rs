//! int8 tiles for any CPU.

use super::{Int8Dots, Int8Tile};
use crate::linear::int8::Int8Layout;

/// # Safety
/// As `Int8Tile::run`.
pub(super) unsafe fn run(tile: &Int8Tile, height: usize) {
    const WIDTH: usize = 16;
    assert_eq!(Int8Dots::Portable.panel_width(), WIDTH);
    for row in 0..height {
        let mut total = [0.0f32; WIDTH];
        for group in 0..tile.num_groups {
            let mut sums = [0i32; WIDTH];
            for word in tile.words(group) {
                // SAFETY: the caller's promise.
                let (x, weights) = unsafe {
                    let weights = tile.weights.add(word * WIDTH).cast::<[u32; WIDTH]>();
                    (*tile.x.add(row * tile.num_words + word), weights.read_unaligned())
                };
                // Byte by byte over all lanes: a loop that is made vectors of.
                for byte in 0..4 {
                    let value = |word: u32| i32::from((word >> (8 * byte)) as i8);
                    let x = value(x);
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        *sum += x * value(weights);
                    }
                }
            }
            // SAFETY: the caller's promise.
            let (row_scale, scales) = unsafe {
                let scales = tile.scales.add(group * WIDTH).cast::<[f32; WIDTH]>();
                (*tile.row_scales.add(row * tile.num_groups + group), scales.read_unaligned())
            };
            for ((total, sum), scale) in total.iter_mut().zip(sums).zip(scales) {
                let scaled = sum as f32 * (row_scale * scale);
                *total = if group == 0 { scaled } else { *total + scaled };
            }
        }
        for (lane, total) in total.into_iter().enumerate() {
            // SAFETY: the caller's promise; null means that there is no bias.
            unsafe {
                let bias = if tile.bias.is_null() { 0.0 } else { *tile.bias.add(lane) };
                *tile.out.add(row * tile.out_stride + lane) = total + bias;
            }
        }
    }
}
