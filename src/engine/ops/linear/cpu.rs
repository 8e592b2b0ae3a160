//! linear on the CPU: blocks of rows by groups of panels, in blocks of k. A block's rows stay in
//! the L2 cache while the panels stream by.

use std::ops::Range;

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use crate::gemm::panel::PanelElement;
use crate::gemm::{MAX_INPUTS, PanelProduct, Tiling, Widened, num_short_rows};
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::Isa;

/// Panels, at least, that share a block of k of the rows while it is in the cache.
pub(super) const MIN_GROUP_PANELS: usize = 8;

/// Multiply-adds of a work item at least: some 10 microseconds.
pub(super) const ITEM_MACS: usize = 1 << 20;

/// Panels as `pack` makes them, and one bias per output of them, those past n included.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a, E> {
    pub panels: &'a [E],
    pub bias: Option<&'a [f32]>,
}

pub(super) fn linear<E: PanelElement>(
    cpu: &Cpu,
    shape: Shape,
    x: &[f32],
    weights: Weights<'_, E>,
    out: Outputs,
) {
    let block_k = match shape.num_rows <= num_short_rows(cpu.isa, false) {
        true => shape.k,
        false => block_k(shape.k),
    };
    let num_panels = if block_k < shape.k { MIN_GROUP_PANELS } else { 1 };
    let size = ItemSize::new(ITEM_MACS, num_panels);
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        let tiling = Tiling::new::<E>(cpu.isa, false, rows.end - rows.first);
        Block { tiling, isa: cpu.isa, k: shape.k, block_k, x, weights, out, rows }.run(panels);
    });
}

/// Inputs of a block of k; even, so that pairs are never split.
fn block_k(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_INPUTS)).next_multiple_of(2)
}

/// Some rows of a product.
struct Block<'a, E> {
    tiling: Tiling,
    isa: Isa,
    k: usize,
    block_k: usize,
    x: &'a [f32],
    weights: Weights<'a, E>,
    out: Outputs,
    rows: Rows,
}

/// A panel in a block of k, and the one that comes next.
#[derive(Clone, Copy)]
struct Slice {
    panel: usize,
    first_k: usize,
    /// (panel, first k)
    next: (usize, usize),
    /// Whether its tiles bring rows into the cache: see `PanelProduct`.
    brings_rows: bool,
}

impl<E: PanelElement> Block<'_, E> {
    fn run(&self, panels: Range<usize>) {
        let mut widened = Widened::new();
        for first_k in (0..self.k).step_by(self.block_k) {
            for panel in panels.clone() {
                let next = match panel + 1 < panels.end {
                    true => (panel + 1, first_k),
                    false => (panels.start, first_k + self.block_k),
                };
                let brings_rows = self.rows.is_new && panel == panels.start;
                self.panel(Slice { panel, first_k, next, brings_rows }, &mut widened);
            }
        }
    }

    /// All rows of the block by one panel in one block of k.
    fn panel(&self, slice: Slice, widened: &mut Widened) {
        let (isa, k, width) = (self.isa, self.k, self.out.width);
        let Rows { first, end, .. } = self.rows;
        let Slice { first_k, next, brings_rows, .. } = slice;
        let end_k = (first_k + self.block_k).min(k);
        let num_inputs = end_k - first_k;
        let panel_len = num_inputs.next_multiple_of(2) * width;
        let start =
            |panel: usize, first_k: usize| (panel * k.next_multiple_of(2) + first_k) * width;
        let is_cut = self.block_k < k;
        let next = is_cut.then(|| {
            let next = self.weights.panels.as_ptr().wrapping_add(start(next.0, next.1));
            (next.cast(), panel_len * size_of::<E>())
        });
        let x = self.x[first * k + first_k..(end - 1) * k + end_k].as_ptr();
        let bias = self.weights.bias.filter(|_| end_k == k);
        let product = |panel: usize, out: *mut f32, out_stride: usize| {
            let product = PanelProduct {
                tiling: &self.tiling,
                x: (x, k),
                weights: self.weights.panels[start(panel, first_k)..][..panel_len].as_ptr(),
                inputs: (0, num_inputs),
                out: (out, out_stride),
                is_first: first_k == 0,
                bias: bias.map_or(std::ptr::null(), |bias| bias[panel * width..][..width].as_ptr()),
                next,
                brings_rows,
            };
            // SAFETY: the slices above reach the last input of the last row, of the panel and of
            // the bias; `out` is the block's own. The device was made for this CPU.
            unsafe { product.run(widened) };
        };
        // SAFETY: this item alone computes these rows of its panels, and a product writes its rows.
        unsafe { self.out.with_panel(isa, self.rows, slice.panel, product) };
    }
}
