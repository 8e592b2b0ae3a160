//! Work items of a product: blocks of rows by groups of panels, and the place of a panel's outputs.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice::from_raw_parts_mut;

use super::largest::{LargestOfThreads, PanelSums};
use crate::activation::mul_by_activated;
use crate::gemm::{MAX_PANEL_WIDTH, even_tile};
use crate::shared_rows::SharedRows;
use vllm_batch_base::layers::Activation;
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::Isa;
use vllm_batch_device::tensor::SharedMut;

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

/// Size of a work item.
#[derive(Clone, Copy)]
pub(super) struct ItemSize {
    /// Multiply-adds at least: some 10 microseconds.
    pub macs: usize,
    /// Panels at least.
    pub num_panels: usize,
    /// Rows at most.
    pub max_rows: usize,
}

impl ItemSize {
    /// Size for products without tiles.
    pub(super) fn new(macs: usize, num_panels: usize) -> Self {
        Self { macs, num_panels, max_rows: BLOCK_ROWS }
    }
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
    let items = Items::new(shape, width, size, cpu.pool.num_threads());
    let num_items = items.num();
    cpu.pool.run(num_items, &|thread, item| {
        let (first, num) = items.rows(item);
        let panels = items.panels(item);
        let is_new = item == cpu.pool.first_item(num_items, thread) || panels.start == 0;
        block(Rows { first, end: first + num, is_new, thread }, panels);
    });
}

/// Work items of a product, those of a block of rows one after the other.
struct Items {
    num_rows: usize,
    num_blocks: usize,
    num_panels: usize,
    /// Panels of an item; the last of a block may have fewer.
    group: usize,
}

impl Items {
    fn new(shape: Shape, width: usize, size: ItemSize, num_threads: usize) -> Self {
        let Shape { num_rows, n, k } = shape;
        let num_panels = n.div_ceil(width);
        let num_blocks = num_rows.div_ceil(size.max_rows);
        let macs = num_rows.div_ceil(num_blocks) * k * width;
        let wanted = (size.macs / macs.max(1)).max(size.num_panels);
        let group = group_len((num_blocks, num_panels), num_threads, wanted);
        Self { num_rows, num_blocks, num_panels, group }
    }

    fn num(&self) -> usize {
        self.num_blocks * self.num_panels.div_ceil(self.group)
    }

    /// The first row of an item, and how many it has.
    fn rows(&self, item: usize) -> (usize, usize) {
        // Even blocks: a short last one would waste the widening of its panels.
        let block = item / self.num_panels.div_ceil(self.group);
        even_tile(self.num_rows, self.num_blocks, block)
    }

    fn panels(&self, item: usize) -> Range<usize> {
        let first = item % self.num_panels.div_ceil(self.group) * self.group;
        first..(first + self.group).min(self.num_panels)
    }
}

/// Panels of a work item: the fewest, but `wanted` where every thread gets so many, such that the
/// thread with the most has hardly more than its share; else such that it has the least.
fn group_len((num_blocks, num_panels): (usize, usize), num_threads: usize, wanted: usize) -> usize {
    let share = (num_blocks * num_panels).div_ceil(num_threads);
    let most =
        |group: usize| (num_blocks * num_panels.div_ceil(group)).div_ceil(num_threads) * group;
    let mut best = wanted.clamp(1, share.max(1));
    for group in best.. {
        // No thread has less than one item.
        if group >= most(best) || most(best) <= share + share / 16 {
            break;
        }
        if most(group) < most(best) {
            best = group;
        }
    }
    best
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
    /// Index of the thread.
    pub thread: usize,
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
    /// Outputs of a row.
    pub n: usize,
    /// Outputs of a panel.
    pub width: usize,
    pub to: Destination,
}

#[derive(Clone, Copy)]
pub(super) enum Destination {
    Sums(SumColumns),
    /// The product is twice as wide, gate then up, and f(gate) * up is what goes here. Panels are
    /// then those of the gate, all of them whole, and their inputs are not cut.
    Activated(SharedRows, Activation),
    /// Largest output of each row only. Inputs are not cut.
    Largest(LargestOfThreads),
}

/// Columns of a row-major matrix, from the first one on.
#[derive(Clone, Copy)]
pub(super) struct SumColumns {
    /// (num_rows, stride)
    pub values: SharedMut<f32>,
    pub stride: usize,
    pub first: usize,
}

impl Outputs {
    /// Has `product(panel, out, stride)` write its sums, or add to what is there, from `out` on
    /// with so far from row to row: whole panels of memory, where n cuts this one off too.
    ///
    /// # Safety
    /// No other thread touches the panel's outputs of these rows meanwhile. `product` writes all
    /// rows of the panel.
    pub(super) unsafe fn with_panel(
        &self,
        isa: Isa,
        rows: Rows,
        panel: usize,
        mut product: impl FnMut(usize, *mut f32, usize),
    ) {
        let Self { n, width, to } = *self;
        let num_rows = rows.end - rows.first;
        match to {
            Destination::Activated(out, activation) => {
                let mut sums = [const { Scratch([MaybeUninit::uninit(); _]) }; 2];
                let panels = [panel, panel + n / width];
                for (panel, sums) in panels.into_iter().zip(&mut sums) {
                    product(panel, sums.ptr(), width);
                }
                let len = num_rows * width;
                // SAFETY: the product wrote these; the caller's promise.
                unsafe {
                    let [gate, up] =
                        sums.each_mut().map(|sums| from_raw_parts_mut(sums.ptr(), len));
                    mul_by_activated(isa, activation, gate, up);
                    out.put_block((rows.first, panel * width), gate, width);
                }
            }
            Destination::Largest(to) => {
                let mut sums = Scratch([const { MaybeUninit::uninit() }; _]);
                product(panel, sums.ptr(), width);
                let num_columns = width.min(n - panel * width);
                // SAFETY: the product wrote these.
                let sums = unsafe { from_raw_parts_mut(sums.ptr(), num_rows * width) };
                let first_output = panel * width;
                // SAFETY: no two items with one thread index overlap.
                unsafe { to.put(isa, rows, PanelSums { sums, width, num_columns, first_output }) };
            }
            Destination::Sums(to) if (panel + 1) * width <= n => {
                let start = rows.first * to.stride + to.first + panel * width;
                let len = (num_rows - 1) * to.stride + width;
                product(panel, to.values.ptr(start, len), to.stride);
            }
            Destination::Sums(to) => {
                let edge = Edge { to, rows, column: panel * width, num_columns: n - panel * width };
                // SAFETY: the caller's promise.
                unsafe { edge.run(width, |out, stride| product(panel, out, stride)) };
            }
        }
    }
}

/// A panel of which only some outputs exist.
struct Edge {
    to: SumColumns,
    rows: Rows,
    column: usize,
    num_columns: usize,
}

impl Edge {
    /// # Safety
    /// As `Outputs::with_panel`.
    unsafe fn run(&self, width: usize, product: impl FnOnce(*mut f32, usize)) {
        let Self { to: SumColumns { values, stride, first }, rows, column, num_columns } = *self;
        let start = |row: usize| row * stride + first + column;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::cpu::{ITEM_MACS, MIN_GROUP_PANELS};
    use vllm_batch_device::thread_pool::first_item;

    /// Rows by panels of each thread's own items.
    fn shares(items: &Items, num_threads: usize) -> Vec<usize> {
        let first = |thread| first_item(items.num(), num_threads, thread);
        let share = |thread| -> usize {
            let own = first(thread)..first(thread + 1);
            own.map(|item| items.rows(item).1 * items.panels(item).len()).sum()
        };
        (0..num_threads).map(share).collect()
    }

    #[test]
    fn up_to_64_threads_get_equal_shares_of_a_product() {
        // Layers of 1 to 70 billion parameters, their MLPs, and vocabularies.
        let layers = [(2560, 2048), (4096, 4096), (6144, 4096), (10240, 8192), (28672, 4096)];
        let shapes = layers.into_iter().chain([(151_936, 2048), (128_256, 4096)]);
        let threads = [1, 2, 8, 16, 48, 64].into_iter();
        let ways: Vec<_> = threads.flat_map(|num| [(num, 16), (num, 32)]).collect();
        for ((n, k), num_rows) in shapes.flat_map(|s| [1, 64, 200, 300, 512, 4096].map(|r| (s, r)))
        {
            for &(num_threads, width) in &ways {
                let num_panels = if num_rows == 1 { 1 } else { MIN_GROUP_PANELS };
                let size = ItemSize::new(ITEM_MACS, num_panels);
                let items = Items::new(Shape { num_rows, n, k }, width, size, num_threads);
                let shares = shares(&items, num_threads);
                let total: usize = shares.iter().sum();
                assert_eq!(total, num_rows * items.num_panels);
                // Nothing is less than a panel of a block of rows.
                let num_pieces = items.num_blocks * items.num_panels;
                let least = num_pieces.div_ceil(num_threads) * items.rows(items.num() - 1).1;
                let most = *shares.iter().max().unwrap();
                assert!(
                    5 * most <= 6 * least,
                    "{num_rows} x {k} x {n} by {width}, {num_threads} threads, {} items of {}: \
                     {shares:?}",
                    items.num(),
                    items.group
                );
            }
        }
    }
}
