//! How a product is shared out: blocks of rows by groups of panels, and where a panel's outputs go.

use std::ops::Range;

use crate::engine::device::Cpu;
use crate::engine::device::tensor::SharedMut;
use crate::engine::ops::gemm::{MAX_PANEL_WIDTH, even_tile};

/// Rows of a block: with 1024 inputs they are 590 kB, within a core's L2 cache beside a panel.
const BLOCK_ROWS: usize = 144;

/// Sizes of a product.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub num_rows: usize,
    pub n: usize,
    pub k: usize,
}

/// How large a work item is.
#[derive(Clone, Copy)]
pub(super) struct ItemSize {
    /// Multiply-adds at least: some 10 microseconds.
    pub macs: usize,
    /// Panels at least.
    pub num_panels: usize,
}

/// Runs `block(rows, panels)` for all rows and all panels of `width` outputs, on all threads, such
/// that they get equally many.
pub(super) fn for_blocks(
    cpu: &Cpu,
    shape: Shape,
    width: usize,
    size: ItemSize,
    block: &(dyn Fn(Rows, Range<usize>) + Sync),
) {
    let num_panels = shape.n.div_ceil(width);
    let num_blocks = shape.num_rows.div_ceil(BLOCK_ROWS);
    let macs = shape.num_rows.div_ceil(num_blocks) * shape.k * width;
    let wanted = (size.macs / macs.max(1)).max(size.num_panels);
    // Threads that share a block.
    let num_threads = cpu.pool.num_threads().div_ceil(num_blocks);
    let num_rounds = (num_panels / (num_threads * wanted)).max(1);
    let group = num_panels.div_ceil(num_rounds * num_threads);
    let num_groups = num_panels.div_ceil(group);
    cpu.pool.run(num_blocks * num_groups, &|_, item| {
        // Even blocks: a short last one would waste the widening of its panels.
        let (first, num) = even_tile(shape.num_rows, num_blocks, item / num_groups);
        let panel = item % num_groups * group;
        block(Rows { first, end: first + num }, panel..(panel + group).min(num_panels));
    });
}

/// Rows of a block.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub first: usize,
    pub end: usize,
}

/// Rows of a block in a panel that is cut off by n.
#[repr(C, align(64))]
struct Edge([f32; BLOCK_ROWS * MAX_PANEL_WIDTH]);

/// The outputs of a product, (num_rows, n).
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    pub values: SharedMut<f32>,
    pub n: usize,
    /// Outputs of a panel.
    pub width: usize,
}

impl Outputs {
    /// Runs `product` with the place of a panel's first output in the first of `rows`, and the
    /// distance of rows: whole panels of memory, where n cuts this one off too.
    ///
    /// # Safety
    /// No other thread touches the panel's outputs of these rows meanwhile.
    pub unsafe fn with_panel(
        &self,
        rows: Rows,
        panel: usize,
        product: impl FnOnce(*mut f32, usize),
    ) {
        let Self { values, n, width } = *self;
        let column = panel * width;
        if column + width <= n {
            let len = (rows.end - 1 - rows.first) * n + width;
            return product(values.ptr(rows.first * n + column, len), n);
        }
        let mut edge = Edge([0.0; _]);
        // SAFETY: the caller's promise.
        let out = |row: usize| unsafe { values.slice(row * n + column, n - column) };
        for (row, edge) in (rows.first..rows.end).zip(edge.0.chunks_exact_mut(width)) {
            edge[..n - column].copy_from_slice(out(row));
        }
        product(edge.0.as_mut_ptr(), width);
        for (row, edge) in (rows.first..rows.end).zip(edge.0.chunks_exact(width)) {
            out(row).copy_from_slice(&edge[..n - column]);
        }
    }
}
