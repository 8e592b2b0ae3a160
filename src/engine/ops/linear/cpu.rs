//! linear on the CPU: blocks of rows by groups of panels, in blocks of k. A block's rows stay in
//! the L2 cache while the panels stream by.

use std::ops::Range;

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use crate::engine::device::Cpu;
use crate::engine::device::simd::Isa;
use crate::engine::ops::gemm::panel::PanelElement;
use crate::engine::ops::gemm::{MAX_INPUTS, PanelProduct, Widened};

/// Panels, at least, that share a block of k of the rows while it is in the cache.
const MIN_GROUP_PANELS: usize = 8;

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
    let num_panels = if shape.k > MAX_INPUTS { MIN_GROUP_PANELS } else { 1 };
    let size = ItemSize { macs: ITEM_MACS, num_panels };
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        Block { isa: cpu.isa, k: shape.k, x, weights, out, rows }.run(panels);
    });
}

/// Inputs of a block of k; even, so that pairs are never split.
fn block_k(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_INPUTS)).next_multiple_of(2)
}

/// Some rows of a product.
struct Block<'a, E> {
    isa: Isa,
    k: usize,
    x: &'a [f32],
    weights: Weights<'a, E>,
    out: Outputs,
    rows: Rows,
}

impl<E: PanelElement> Block<'_, E> {
    fn run(&self, panels: Range<usize>) {
        let mut widened = Widened::new();
        let block_k = block_k(self.k);
        for first_k in (0..self.k).step_by(block_k) {
            let inputs = first_k..(first_k + block_k).min(self.k);
            for panel in panels.clone() {
                self.panel(panel, inputs.clone(), &mut widened);
            }
        }
    }

    /// All rows of the block by one panel in one block of k.
    fn panel(&self, panel: usize, inputs: Range<usize>, widened: &mut Widened) {
        let (isa, k, width) = (self.isa, self.k, self.out.width);
        let Rows { first, end } = self.rows;
        let x = self.x[first * k + inputs.start..(end - 1) * k + inputs.end].as_ptr();
        let bias = self.weights.bias.filter(|_| inputs.end == k);
        let product = |panel: usize, out: *mut f32, out_stride: usize| {
            let start = panel * k.next_multiple_of(2) * width + inputs.start * width;
            let panel_len = inputs.len().next_multiple_of(2) * width;
            let product = PanelProduct {
                x: (x, k),
                weights: self.weights.panels[start..start + panel_len].as_ptr(),
                inputs: (0, inputs.len()),
                out: (out, out_stride),
                num_rows: end - first,
                is_first: inputs.start == 0,
                bias: bias.map_or(std::ptr::null(), |bias| bias[panel * width..][..width].as_ptr()),
                is_narrow: false,
                next: None,
            };
            // SAFETY: the slices above reach the last input of the last row, of the panel and of
            // the bias; `out` is the block's own. The device was made for this CPU.
            unsafe { product.run(isa, widened) };
        };
        // SAFETY: this item alone computes these rows of its panels, and a product writes its rows.
        unsafe { self.out.with_panel(isa, self.rows, panel, product) };
    }
}
