//! Operands of products of words of two bf16: rows of inputs, and panels of weights.

use std::sync::PoisonError;
use vllm_batch_device::simd::InstructionSet;

use crate::for_row_chunks;
use crate::gemm::words::{WordRows, narrow, room};
use vllm_batch_device::simd::tiles::TILE_ROWS;
use vllm_batch_device::tensor::{Rows, SharedMut};
use vllm_batch_device::{Cpu, NarrowInputs};

/// Inputs of a word.
const WORD: usize = 2;

/// The rows of inputs of a product.
#[derive(Clone, Copy)]
pub(super) enum Inputs<'a> {
    /// (num_rows, k)
    Floats(&'a [f32]),
    /// Words of two bf16, for dot products or tiles.
    Pairs(WordRows<'a>),
}

impl<'a> Inputs<'a> {
    /// `num_rows` rows of a tensor.
    pub(super) fn of(Rows { tensor, first }: Rows<'a>, num_rows: usize) -> Self {
        match tensor.pairs() {
            Some((words, stride)) => {
                let words = &words[first * stride..(first + num_rows + TILE_ROWS) * stride];
                Inputs::Pairs(WordRows { words, stride })
            }
            None => {
                let k = tensor.width();
                Inputs::Floats(&tensor.values()[first * k..(first + num_rows) * k])
            }
        }
    }

    /// The rows of a product that does not round them to bf16.
    ///
    /// # Panics
    /// They are rounded.
    pub(super) fn floats(self) -> &'a [f32] {
        match self {
            Inputs::Floats(x) => x,
            Inputs::Pairs(_) => panic!("a layer that takes f32 was given pairs of bf16"),
        }
    }

    /// Bytes of an input.
    pub(super) fn bytes(self) -> usize {
        match self {
            Inputs::Floats(_) => 4,
            Inputs::Pairs(_) => 2,
        }
    }
}

/// Words of the weights by panel, (words, panel width) each, and one bias per lane of all panels.
#[derive(Clone, Copy)]
pub(super) struct PairWeights<'a> {
    pub words: &'a [u32],
    pub bias: Option<&'a [f32]>,
}

/// Has `product` multiply rows of k inputs, rounded to bf16 unless they are.
pub(super) fn with_pairs(
    cpu: &Cpu,
    (x, k): (Inputs<'_>, usize),
    product: impl FnOnce(WordRows<'_>),
) {
    match x {
        Inputs::Pairs(rows) => product(rows),
        Inputs::Floats(x) => {
            // A poisoned lock only says that a thread panicked: what is there is written anew.
            let inputs = &mut *cpu.narrow_inputs.lock().unwrap_or_else(PoisonError::into_inner);
            let row = |row: usize| &x[row * k..(row + 1) * k];
            product(narrow_rows(cpu, (x.len() / k, k), row, inputs));
        }
    }
}

/// `num_rows` rows of k inputs, rounded to nearest, ties to even; what is behind a row's last input
/// is zero.
pub(super) fn narrow_rows<'a, 'x>(
    cpu: &Cpu,
    (num_rows, k): (usize, usize),
    row: impl Fn(usize) -> &'x [f32] + Sync,
    inputs: &'a mut NarrowInputs,
) -> WordRows<'a> {
    let num_words = k.div_ceil(WORD);
    let stride = cpu.isa.bf16_products().row_stride(k);
    let words = room(&mut inputs.words, num_rows, stride);
    let shared = SharedMut::new(&mut *words);
    for_row_chunks(&cpu.pool, num_rows, k, &|start, end| {
        for index in start..end {
            // SAFETY: each row belongs to one item.
            let words = unsafe { shared.slice(index * stride, stride) };
            let (words, rest) = words.split_at_mut(num_words);
            narrow(row(index), words);
            rest.fill(0);
        }
    });
    WordRows { words, stride }
}
