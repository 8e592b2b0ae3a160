//! A few rows by a panel of codes: values are multiplied as they come out of their codes, so that
//! neither waits for the other. The bits are those of widened pieces.

use super::layout::{Panel, Rounding};
use super::widen::Sink;
use crate::gemm::bring;
use vllm_batch_base::matrix::UNIT;
use vllm_batch_device::simd::{Isa, Kernel, Vector, Words, dispatch_bf16, dispatch_vectors};

/// Most rows that are multiplied so: their sums have registers beside what widening takes.
pub(super) const MAX_ROWS: usize = 4;

/// Whether rows of k inputs can be: panels are read in whole units. Plain arrays gain nothing by
/// it, and would take long to compile.
pub(super) fn takes(isa: Isa, num_rows: usize, k: usize) -> bool {
    isa != Isa::Portable && num_rows <= MAX_ROWS && k.is_multiple_of(UNIT)
}

/// Rows by all inputs of a panel.
#[derive(Clone, Copy)]
pub(super) struct FewRows<'a> {
    pub panel: Panel<'a>,
    pub rounding: Rounding,
    /// Inputs of a row.
    pub k: usize,
    /// First input of the first row, f32 or pairs of bf16 by the rounding, and the distance of
    /// rows in such elements.
    pub x: (*const u32, usize),
    pub num_rows: usize,
    /// A panel's width of values to add, or null.
    pub bias: *const f32,
    /// First output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
    /// Start of the data that is needed next, and its bytes for each input.
    pub next: (*const u8, usize),
}

impl FewRows<'_> {
    /// Computes them.
    ///
    /// # Safety
    /// `takes` them. `x` is readable for all inputs of all rows, `bias` for the panel's width;
    /// `out` is writable for its width in all rows, and nobody else touches these. The panel has
    /// the width of `isa`, which this CPU has.
    pub(super) unsafe fn run(self, isa: Isa) {
        assert!(takes(isa, self.num_rows, self.k));
        match (self.rounding, self.num_rows) {
            (Rounding::Pairs, 1) => dispatch_bf16(PairRows::<1>(self)),
            (Rounding::Pairs, _) => dispatch_bf16(PairRows::<MAX_ROWS>(self)),
            (_, 1) => dispatch_vectors(isa, FloatRows::<1>(self)),
            (_, _) => dispatch_vectors(isa, FloatRows::<MAX_ROWS>(self)),
        }
    }

    /// Where the rows begin; those past the last one are the last.
    #[inline(always)]
    fn rows<const M: usize>(&self) -> [*const u32; M] {
        let mut rows = [self.x.0; M];
        for (row, x) in rows.iter_mut().enumerate() {
            *x = self.x.0.wrapping_add(row.min(self.num_rows - 1) * self.x.1);
        }
        rows
    }

    /// Adds the bias, or else `without`, where that is something, and writes the sums.
    ///
    /// # Safety
    /// As `run`.
    #[inline(always)]
    unsafe fn write<V: Vector, const M: usize>(&self, sums: &[[V; 2]; M], without: Option<f32>) {
        for (row, sum) in sums.iter().enumerate().take(self.num_rows) {
            for (c, sum) in sum.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let bias = self.bias.wrapping_add(c * V::LANES);
                    let sum = match without {
                        _ if !self.bias.is_null() => sum.add(V::load(bias)),
                        Some(value) => sum.add(V::splat(value)),
                        None => *sum,
                    };
                    sum.store(self.out.0.add(row * self.out.1 + c * V::LANES));
                }
            }
        }
    }
}

/// Rows of f32, as tiles of f32 sum them.
struct FloatRows<'a, const M: usize>(FewRows<'a>);

impl<const M: usize> Kernel for FloatRows<'_, M> {
    /// # Safety
    /// As `Kernel::run` and `FewRows::run`.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(few) = self;
        // SAFETY: as above.
        unsafe {
            let sums = [[V::splat(0.0); 2]; M];
            let mut sink = FloatSums { few: &few, x: few.rows(), sums };
            few.panel.put_values(0..few.k, &mut sink);
            few.write(&sink.sums, None);
        }
    }
}

struct FloatSums<'a, V, const M: usize> {
    few: &'a FewRows<'a>,
    x: [*const u32; M],
    sums: [[V; 2]; M],
}

impl<V: Vector, const M: usize> Sink<V> for FloatSums<'_, V, M> {
    #[inline(always)]
    unsafe fn begin_quad(&mut self, input: usize) {
        bring(self.few.next, input, 4);
    }

    #[inline(always)]
    unsafe fn put_pair(&mut self, input: usize, first: [V; 2], second: [V; 2]) {
        let values = [first, second];
        // SAFETY: the caller's promise.
        unsafe {
            for (index, mut values) in values.into_iter().enumerate() {
                if self.few.rounding == Rounding::BFloat16 {
                    for value in &mut values {
                        *value = V::Words::bf16_bits(*value).shift_left(16).as_floats();
                    }
                }
                for (x, sums) in self.x.iter().zip(&mut self.sums) {
                    let x = V::splat(*x.cast::<f32>().add(input + index));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = x.mul_add(value, *sum);
                    }
                }
            }
        }
    }
}

/// Rows of pairs of bf16, as tiles of dot products sum them.
struct PairRows<'a, const M: usize>(FewRows<'a>);

impl<const M: usize> Kernel for PairRows<'_, M> {
    /// # Safety
    /// As `Kernel::run` and `FewRows::run`.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(few) = self;
        // SAFETY: as above.
        unsafe {
            let sums = [[V::splat(0.0); 2]; M];
            let mut sink = PairSums { few: &few, x: few.rows(), sums };
            few.panel.put_values(0..few.k, &mut sink);
            // Tiles add a zero where there is no bias.
            few.write(&sink.sums, Some(0.0));
        }
    }
}

struct PairSums<'a, V, const M: usize> {
    few: &'a FewRows<'a>,
    x: [*const u32; M],
    sums: [[V; 2]; M],
}

impl<V: Vector, const M: usize> Sink<V> for PairSums<'_, V, M> {
    #[inline(always)]
    unsafe fn begin_quad(&mut self, input: usize) {
        bring(self.few.next, input, 4);
    }

    #[inline(always)]
    unsafe fn put_pair(&mut self, input: usize, first: [V; 2], second: [V; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            for c in 0..2 {
                let pairs = V::Words::bf16_pairs(first[c], second[c]);
                for (x, sums) in self.x.iter().zip(&mut self.sums) {
                    sums[c] = pairs.add_bf16_products(*x.add(input / 2), sums[c]);
                }
            }
        }
    }
}
