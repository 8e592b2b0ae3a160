//! linear on the CPU: blocks of rows by groups of panels, in blocks of k. A block's rows stay in
//! the L2 cache while the panels stream by.

use crate::engine::device::Cpu;
use crate::engine::device::simd::Isa;
use crate::engine::device::tensor::SharedMut;
use crate::engine::ops::gemm::panel::PanelElement;
use crate::engine::ops::gemm::{
    MAX_INPUTS, MAX_PANEL_WIDTH, PanelProduct, Widened, is_one_tile, next_panel,
};

/// Rows of a block: with 1024 inputs they are 590 kB, within a core's L2 cache beside a panel.
pub(super) const BLOCK_ROWS: usize = 144;

/// Panels that share a block of k of the rows while it is in the cache.
const MAX_GROUP_PANELS: usize = 8;

/// Multiply-adds of a work item at least: some 10 microseconds.
pub(super) const ITEM_MACS: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub num_rows: usize,
    pub n: usize,
    pub k: usize,
}

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
    out: &mut [f32],
) {
    let num_rows = shape.num_rows;
    let num_panels = shape.n.div_ceil(2 * cpu.isa.num_lanes());
    let num_blocks = num_rows.div_ceil(BLOCK_ROWS);
    let block_k = block_k(shape.k);
    let macs = num_rows.div_ceil(num_blocks) * shape.k * 2 * cpu.isa.num_lanes();
    let wanted = match shape.k > MAX_INPUTS {
        true => MAX_GROUP_PANELS.max(ITEM_MACS / macs.max(1)),
        false => ITEM_MACS / macs.max(1),
    };
    let group = group_panels(cpu, (num_blocks, num_panels), wanted);
    let num_groups = num_panels.div_ceil(group);
    let out = SharedMut::new(out);
    cpu.pool.run(num_blocks * num_groups, &|_, item| {
        let (block, group_index) = (item / num_groups, item % num_groups);
        // Even blocks: a short last one would waste the widening of its panels.
        let rows = (block * num_rows / num_blocks, (block + 1) * num_rows / num_blocks);
        let first_panel = group_index * group;
        let panels = first_panel..(first_panel + group).min(num_panels);
        Block { isa: cpu.isa, shape, x, weights, out, rows, block_k }.run(panels);
    });
}

/// Inputs of a block of k; even, so that pairs are never split.
fn block_k(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_INPUTS)).next_multiple_of(2)
}

/// Panels of a work item, about `wanted`, such that all threads get equally many.
pub(super) fn group_panels(
    cpu: &Cpu,
    (num_blocks, num_panels): (usize, usize),
    wanted: usize,
) -> usize {
    // Threads that share a block.
    let num_threads = cpu.pool.num_threads().div_ceil(num_blocks);
    let num_rounds = num_panels.div_ceil(num_threads * wanted.max(1));
    num_panels.div_ceil(num_rounds * num_threads)
}

/// Rows of a block in a panel that is cut off by n.
#[repr(C, align(64))]
struct Edge([f32; BLOCK_ROWS * MAX_PANEL_WIDTH]);

/// Rows `rows.0..rows.1`.
struct Block<'a, E> {
    isa: Isa,
    shape: Shape,
    x: &'a [f32],
    weights: Weights<'a, E>,
    out: SharedMut<f32>,
    rows: (usize, usize),
    block_k: usize,
}

/// One panel in one block of k.
#[derive(Clone, Copy)]
struct Slice {
    panel: usize,
    first_k: usize,
    num_k: usize,
}

impl<E: PanelElement> Block<'_, E> {
    fn run(&self, panels: std::ops::Range<usize>) {
        let Shape { n, k, .. } = self.shape;
        let mut widened = Widened::new();
        let width = 2 * self.isa.num_lanes();
        for first_k in (0..k).step_by(self.block_k) {
            let num_k = self.block_k.min(k - first_k);
            for panel in panels.clone() {
                let slice = Slice { panel, first_k, num_k };
                if (panel + 1) * width <= n {
                    let (row, end) = self.rows;
                    let start = row * n + panel * width;
                    let out = self.out.ptr(start, (end - 1 - row) * n + width);
                    self.panel(slice, (out, n), &mut widened);
                } else {
                    self.edge(slice, &mut widened);
                }
            }
        }
    }

    /// A panel of which only some outputs exist.
    fn edge(&self, slice: Slice, widened: &mut Widened) {
        let width = 2 * self.isa.num_lanes();
        let n = self.shape.n;
        let (row, end) = self.rows;
        let column = slice.panel * width;
        let mut edge = Edge([0.0; _]);
        // SAFETY: this item alone touches these columns of its rows.
        let out = |row: usize| unsafe { self.out.slice(row * n + column, n - column) };
        for (row, values) in (row..end).zip(edge.0.chunks_exact_mut(width)) {
            values[..n - column].copy_from_slice(out(row));
        }
        self.panel(slice, (edge.0.as_mut_ptr(), width), widened);
        for (row, values) in (row..end).zip(edge.0.chunks_exact(width)) {
            out(row).copy_from_slice(&values[..n - column]);
        }
    }

    /// All rows of the block by one panel in one block of k. `out` is where its first row begins,
    /// and the distance of its rows.
    fn panel(&self, slice: Slice, out: (*mut f32, usize), widened: &mut Widened) {
        let Slice { panel, first_k, num_k } = slice;
        let k = self.shape.k;
        let width = 2 * self.isa.num_lanes();
        let (row, end) = self.rows;
        let start = panel * k.next_multiple_of(2) * width + first_k * width;
        let weights = &self.weights.panels[start..start + num_k.next_multiple_of(2) * width];
        let bias = self.weights.bias.filter(|_| first_k + num_k == k);
        let product = PanelProduct {
            x: (self.x[row * k + first_k..(end - 1) * k + first_k + num_k].as_ptr(), k),
            weights: weights.as_ptr(),
            inputs: (0, num_k),
            out,
            num_rows: end - row,
            is_first: first_k == 0,
            bias: bias.map_or(std::ptr::null(), |bias| bias[panel * width..][..width].as_ptr()),
            is_narrow: false,
            next: next_panel(weights.as_ptr(), weights.len(), is_one_tile(self.isa, end - row)),
        };
        // SAFETY: the slices above reach the last input of the last row, of the panel and of the
        // bias; `out` is the block's own. The device was made for this CPU.
        unsafe { product.run(self.isa, widened) };
    }
}
