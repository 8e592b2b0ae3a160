//! Inputs for `vdpbf16ps`.

use half::bf16;

use crate::engine::device::simd::{Kernel, Vector, dispatch};
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
            dispatch(cpu.isa, PairsOfBf16 { x: &x[row * k..(row + 1) * k], words });
        }
    });
}

/// Rounds to nearest, ties to even.
struct PairsOfBf16<'a> {
    x: &'a [f32],
    words: &'a mut [u32],
}

impl Kernel for PairsOfBf16<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let bits = |value: f32| u32::from(bf16::from_f32(value).to_bits());
        for (word, pair) in self.words.iter_mut().zip(self.x.chunks(2)) {
            *word = bits(pair[0]) | pair.get(1).map_or(0, |&value| bits(value)) << 16;
        }
    }
}
