//! int8 products on any CPU, as `ops::linear` computes them there.

use std::hint::black_box;

use vllm_batch_base::isa::Isa;

const WIDTH: usize = 16;

/// Operations of a round: four products for each lane.
pub(super) const FLOPS: f64 = 2.0 * 4.0 * WIDTH as f64;

pub(super) fn dots(_: Isa, num_rounds: usize) {
    let x: u32 = black_box(0x0102_0304);
    let mut sums = [black_box(1i32); WIDTH];
    for _ in 0..num_rounds {
        // Weights that change with every round, so that no product is known beforehand.
        let weights = sums;
        for byte in 0..4 {
            let value = |word: u32| i32::from((word >> (8 * byte)) as i8);
            for (sum, weights) in sums.iter_mut().zip(weights) {
                *sum = sum.wrapping_add(value(x) * value(weights as u32));
            }
        }
    }
    black_box(sums);
}
