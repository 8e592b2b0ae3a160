//! int8 tiles for any CPU.

use super::{DotKernel, DotTile};

/// # Safety
/// As `DotTile::run`.
pub(super) unsafe fn run(tile: &DotTile, height: usize) {
    const WIDTH: usize = 16;
    assert_eq!(DotKernel::Portable.panel_width(), WIDTH);
    for row in 0..height {
        let mut sums = [0i32; WIDTH];
        for word in 0..tile.num_words {
            // SAFETY: the caller's promise.
            let (x, weights) = unsafe {
                let weights = tile.weights.add(word * WIDTH).cast::<[u32; WIDTH]>();
                (*tile.x.add(row * tile.x_stride + word), weights.read_unaligned())
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
        for (lane, sum) in sums.into_iter().enumerate() {
            // SAFETY: the caller's promise; null means that there is no bias.
            unsafe {
                let scaled = sum as f32 * (*tile.row_scales.add(row) * *tile.scales.add(lane));
                let bias = if tile.bias.is_null() { 0.0 } else { *tile.bias.add(lane) };
                *tile.out.add(row * tile.out_stride + lane) = scaled + bias;
            }
        }
    }
}
