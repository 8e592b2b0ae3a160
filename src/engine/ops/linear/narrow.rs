//! Inputs for `vdpbf16ps`.

use super::dot;
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, NarrowInputs};
use crate::engine::ops::for_row_chunks;

/// x (num_rows, k) as words of two bf16; the rest of a last word is zero.
pub(super) fn narrow_inputs(cpu: &Cpu, (x, k): (&[f32], usize), inputs: &mut NarrowInputs) {
    let num_rows = x.len() / k;
    let num_words = k.div_ceil(2);
    inputs.words.resize(num_rows * num_words, 0);
    let words = SharedMut::new(&mut inputs.words);
    for_row_chunks(&cpu.pool, num_rows, k, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let words = unsafe { words.slice(row * num_words, num_words) };
            dot::narrow(&x[row * k..(row + 1) * k], words);
        }
    });
}
