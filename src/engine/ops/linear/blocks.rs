//! How a product is shared out: blocks of rows by groups of panels, and where a panel's outputs go.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::from_raw_parts;

use crate::engine::device::Cpu;
use crate::engine::device::simd::Isa;
use crate::engine::device::tensor::SharedMut;
use crate::engine::ops::activation::{Activation, activate_and_mul_panel};
use crate::engine::ops::gemm::{MAX_PANEL_WIDTH, even_tile};

/// `$run::<height>(tile)` of one of these heights.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_height {
    ($height:expr, $tile:expr, $run:ident: $($mr:literal)*) => {
        match $height {
            $($mr => $run::<$mr>($tile),)*
            height => unreachable!("a tile of {height} rows"),
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use by_height;

/// Rows of a block: with 1024 inputs they are 590 kB, within a core's L2 cache beside a panel.
pub(super) const BLOCK_ROWS: usize = 144;

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
    let num_items = num_blocks * num_groups;
    cpu.pool.run(num_items, &|thread, item| {
        // Even blocks: a short last one would waste the widening of its panels.
        let (first, num) = even_tile(shape.num_rows, num_blocks, item / num_groups);
        let panel = item % num_groups * group;
        let is_new = item == cpu.pool.first_item(num_items, thread) || panel == 0;
        let rows = Rows { first, end: first + num, is_new };
        block(rows, panel..(panel + group).min(num_panels));
    });
}

/// Has `product(rows, panel, (out, stride))` write every panel's sums of all rows, from `out` on
/// with so far from row to row: all rows of the panel.
pub(super) fn for_panels(
    cpu: &Cpu,
    shape: Shape,
    size: ItemSize,
    out: Outputs,
    product: &(dyn Fn(Rows, usize, (*mut f32, usize)) + Sync),
) {
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        for panel in panels {
            let of_panel = |panel, out, stride| product(rows, panel, (out, stride));
            // SAFETY: this item alone computes these rows of its panels, all of them.
            unsafe { out.with_panel(cpu.isa, rows, panel, of_panel) };
        }
    });
}

/// Rows of a block.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub first: usize,
    pub end: usize,
    /// This thread most likely had other rows before.
    pub is_new: bool,
}

/// Rows of a block by one panel, where they do not go to their place at once.
#[repr(C, align(64))]
struct Scratch([MaybeUninit<f32>; BLOCK_ROWS * MAX_PANEL_WIDTH]);

impl Scratch {
    fn ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Where a product goes.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    /// (num_rows, stride)
    pub values: SharedMut<f32>,
    pub stride: usize,
    /// The first of the n columns of these.
    pub first: usize,
    pub n: usize,
    /// Outputs of a panel.
    pub width: usize,
    /// The product is twice as wide, gate then up, and f(gate) * up is what goes here. Panels are
    /// then those of the gate, all of them whole, and their inputs are not cut.
    pub gated_by: Option<Activation>,
}

impl Outputs {
    /// Has `product(panel, out, stride)` write its sums, or add to what is there, from `out` on
    /// with so far from row to row: whole panels of memory, where n cuts this one off too.
    ///
    /// # Safety
    /// No other thread touches the panel's outputs of these rows meanwhile. `product` writes all
    /// rows of the panel.
    pub unsafe fn with_panel(
        &self,
        isa: Isa,
        rows: Rows,
        panel: usize,
        mut product: impl FnMut(usize, *mut f32, usize),
    ) {
        let Self { values, stride, first, n, width, gated_by } = *self;
        let num_rows = rows.end - rows.first;
        let start = rows.first * stride + first + panel * width;
        let len = (num_rows - 1) * stride + width;
        if let Some(activation) = gated_by {
            let mut sums = [const { Scratch([MaybeUninit::uninit(); _]) }; 2];
            let panels = [panel, panel + n / width];
            for (panel, sums) in panels.into_iter().zip(&mut sums) {
                product(panel, sums.ptr(), width);
            }
            // SAFETY: the product wrote these.
            let [gate, up] =
                unsafe { sums.each_mut().map(|sums| from_raw_parts(sums.ptr(), num_rows * width)) };
            let out = (values.ptr(start, len), stride);
            // SAFETY: the caller's promise.
            unsafe { activate_and_mul_panel(isa, activation, (gate, up), out, width) };
        } else if (panel + 1) * width <= n {
            product(panel, values.ptr(start, len), stride);
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.with_edge(rows, panel, |out, stride| product(panel, out, stride)) };
        }
    }

    /// A panel of which only some outputs exist.
    ///
    /// # Safety
    /// As `with_panel`.
    unsafe fn with_edge(&self, rows: Rows, panel: usize, product: impl FnOnce(*mut f32, usize)) {
        let Self { values, stride, first, n, width, .. } = *self;
        let start = |row: usize| row * stride + first + panel * width;
        let num_columns = n - panel * width;
        let mut edge = Scratch([const { MaybeUninit::new(0.0) }; _]);
        for (index, row) in (rows.first..rows.end).enumerate() {
            // SAFETY: the caller's promise; a row of the scratch is a panel wide.
            unsafe {
                let out = values.slice(start(row), num_columns);
                edge.ptr().add(index * width).copy_from_nonoverlapping(out.as_ptr(), num_columns);
            }
        }
        product(edge.ptr(), width);
        for (index, row) in (rows.first..rows.end).enumerate() {
            // SAFETY: as above.
            unsafe {
                let out = values.slice(start(row), num_columns);
                out.as_mut_ptr()
                    .copy_from_nonoverlapping(edge.ptr().add(index * width), num_columns);
            }
        }
    }
}
