//! The CPU's GEMM: tiles of rows by one panel, all of k in one pass.
//!
//! Work is split into (block of rows, group of panels); the rows of a block stay in the L2 cache
//! while the panels stream by. In a tile, every output has its own lane of one accumulator and k
//! runs upward, so neither the tile height nor the block changes a bit.

use crate::engine::device::Cpu;
use crate::engine::device::simd::{Element, Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;

/// Rows of a block: 96 rows of 4096 inputs are 1.5 MB, within a core's L2 cache.
const BLOCK_ROWS: usize = 96;

/// Multiply-adds of a work item at least: some 10 microseconds.
const ITEM_MACS: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub num_rows: usize,
    pub n: usize,
    pub k: usize,
}

pub(super) fn linear<E: Element>(
    cpu: &Cpu,
    shape: Shape,
    x: &[f32],
    panels: &[E],
    bias: Option<&[f32]>,
    out: &mut [f32],
) {
    let Shape { num_rows, n, k } = shape;
    let panel_width = 2 * cpu.isa.num_lanes();
    let num_panels = n.div_ceil(panel_width);
    let block_macs = num_rows.min(BLOCK_ROWS) * k * panel_width;
    let group =
        (ITEM_MACS / block_macs.max(1)).clamp(1, num_panels.div_ceil(4 * cpu.pool.num_threads()));
    let num_groups = num_panels.div_ceil(group);
    let out = SharedMut::new(out);
    cpu.pool.run(num_rows.div_ceil(BLOCK_ROWS) * num_groups, &|_, item| {
        let row = item / num_groups * BLOCK_ROWS;
        let rows = BLOCK_ROWS.min(num_rows - row);
        let panel = item % num_groups * group;
        dispatch(
            cpu.isa,
            BlockTask {
                shape,
                x: &x[row * k..(row + rows) * k],
                panels,
                bias,
                out,
                first_row: row,
                panel_range: panel..(panel + group).min(num_panels),
            },
        );
    });
}

struct BlockTask<'a, E> {
    shape: Shape,
    x: &'a [f32],
    panels: &'a [E],
    bias: Option<&'a [f32]>,
    out: SharedMut<f32>,
    first_row: usize,
    panel_range: std::ops::Range<usize>,
}

impl<E: Element> Kernel for BlockTask<'_, E> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let num_rows = self.x.len() / self.shape.k;
        for panel in self.panel_range.clone() {
            let mut row = 0;
            while row < num_rows {
                // SAFETY: the tile's rows are below num_rows; dispatched for this CPU.
                row += unsafe {
                    match (V::LANES, num_rows - row) {
                        // 13 to 16 rows are better two tiles of 8 than 12 and a small rest.
                        (16, 12 | 17..) => self.tile::<V, 12>(panel, row),
                        (16, 8..) => self.tile::<V, 8>(panel, row),
                        (8, 6..) => self.tile::<V, 6>(panel, row),
                        (_, 4..) => self.tile::<V, 4>(panel, row),
                        (_, 2..) => self.tile::<V, 2>(panel, row),
                        _ => self.tile::<V, 1>(panel, row),
                    }
                };
            }
        }
    }
}

impl<E: Element> BlockTask<'_, E> {
    /// Rows `row..row + MR` of the block by one panel. Returns MR.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn tile<V: Vector, const MR: usize>(&self, panel: usize, row: usize) -> usize {
        let Shape { n, k, .. } = self.shape;
        let panel_width = 2 * V::LANES;
        let weights = &self.panels[panel * panel_width * k..(panel + 1) * panel_width * k];
        let x = &self.x[row * k..(row + MR) * k];
        // SAFETY: `x` holds MR rows and `weights` one panel of k; indices stay below.
        let sums = unsafe {
            let (x, weights) = (x.as_ptr(), weights.as_ptr());
            let mut sums = [[V::splat(0.0); 2]; MR];
            for i in 0..k {
                let low = E::load::<V>(weights.add(i * panel_width));
                let high = E::load::<V>(weights.add(i * panel_width + V::LANES));
                for (m, sum) in sums.iter_mut().enumerate() {
                    let value = V::splat(*x.add(m * k + i));
                    sum[0] = value.mul_add(low, sum[0]);
                    sum[1] = value.mul_add(high, sum[1]);
                }
            }
            sums
        };
        let column = panel * panel_width;
        let num_columns = panel_width.min(n - column);
        let mut buffer = [0.0f32; 32];
        for (m, sum) in sums.iter().enumerate() {
            // SAFETY: the buffer holds two vectors; this item alone writes these rows and columns.
            let out = unsafe {
                sum[0].store(buffer.as_mut_ptr());
                sum[1].store(buffer.as_mut_ptr().add(V::LANES));
                self.out.slice((self.first_row + row + m) * n + column, num_columns)
            };
            match self.bias {
                None => out.copy_from_slice(&buffer[..num_columns]),
                Some(bias) => {
                    let bias = &bias[column..column + num_columns];
                    for ((out, sum), bias) in out.iter_mut().zip(&buffer).zip(bias) {
                        *out = sum + bias;
                    }
                }
            }
        }
        MR
    }
}
