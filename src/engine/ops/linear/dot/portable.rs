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
            let x = unsafe { *tile.x.add(row * tile.num_words + word) }.to_le_bytes();
            for (lane, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's promise.
                let weights = unsafe { *tile.weights.add(word * WIDTH + lane) }.to_le_bytes();
                let products = x.into_iter().zip(weights);
                *sum += products.map(|(x, w)| i32::from(x as i8) * i32::from(w as i8)).sum::<i32>();
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
