//! What products of words of two bf16 read: rows of inputs, and panels of weights.

use crate::engine::device::simd::Bf16Products;
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, NarrowInputs};
use crate::engine::ops::for_row_chunks;
use crate::engine::ops::gemm::words::{WordRows, narrow, room, tile_stride};

/// Inputs of a word.
const WORD: usize = 2;

/// Words of the weights by panel, (words, panel width) each, and one bias per lane of all panels.
#[derive(Clone, Copy)]
pub(super) struct PairWeights<'a> {
    pub words: &'a [u32],
    pub bias: Option<&'a [f32]>,
}

/// x (num_rows, k), rounded to nearest, ties to even; what is behind a row's last input is zero.
pub(super) fn narrow_inputs<'a>(
    cpu: &Cpu,
    (x, k): (&[f32], usize),
    inputs: &'a mut NarrowInputs,
) -> WordRows<'a> {
    let num_words = k.div_ceil(WORD);
    let stride = match cpu.isa.bf16_products() {
        Bf16Products::Tiles(_) => tile_stride(num_words),
        Bf16Products::Dots | Bf16Products::Widened => num_words,
    };
    let num_rows = x.len() / k;
    let words = room(&mut inputs.words, num_rows, stride);
    let shared = SharedMut::new(&mut *words);
    for_row_chunks(&cpu.pool, num_rows, k, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let words = unsafe { shared.slice(row * stride, stride) };
            let (words, rest) = words.split_at_mut(num_words);
            narrow(&x[row * k..(row + 1) * k], words);
            rest.fill(0);
        }
    });
    WordRows { words, stride }
}
