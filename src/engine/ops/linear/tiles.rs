//! linear by tiles of bf16.

use crate::engine::device::Cpu;
use crate::engine::device::simd::tiles::{TILE_COLUMNS, TileUnit};
use crate::engine::ops::gemm::next_panel;
use crate::engine::ops::gemm::tiles::{RowTiles, TileProduct};
use crate::engine::ops::gemm::words::WordRows;

use super::blocks::{ItemSize, Outputs, Shape, for_blocks};
use super::cpu::ITEM_MACS;
use super::pairs::PairWeights;

/// Rows of inputs by the weights.
pub(super) fn linear(
    (cpu, unit): (&Cpu, TileUnit),
    shape: Shape,
    x: WordRows<'_>,
    weights: PairWeights<'_>,
    out: Outputs,
) {
    // Tiles are some ten times as fast as multiply-adds.
    let size = ItemSize { macs: 16 * ITEM_MACS, num_panels: 1 };
    let num_words = shape.k.div_ceil(2);
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        let tiles = RowTiles::new(unit, (rows.first, rows.end));
        for panel in panels {
            let product = |panel: usize, to: *mut f32, stride: usize| {
                let words = &weights.words[panel * num_words * TILE_COLUMNS..];
                let bias = weights.bias.map(|bias| &bias[panel * TILE_COLUMNS..][..TILE_COLUMNS]);
                let is_alone = tiles.num_blocks() == 1;
                let product = TileProduct {
                    x,
                    words: &words[..num_words * TILE_COLUMNS],
                    first_word: 0,
                    is_first: true,
                    bias,
                    next: next_panel(words.as_ptr(), num_words * TILE_COLUMNS, is_alone),
                    out: (to, stride),
                };
                // SAFETY: `out` is the block's own rows of this panel.
                unsafe { tiles.run(cpu.isa, &product) };
            };
            // SAFETY: this item alone computes these rows of its panels, all of them.
            unsafe { out.with_panel(cpu.isa, rows, panel, product) };
        }
    });
}
