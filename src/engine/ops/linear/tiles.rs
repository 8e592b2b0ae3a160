//! linear by tiles of bf16.

use crate::engine::device::Cpu;
use crate::engine::device::simd::tiles::{TILE_COLUMNS, TileUnit};
use crate::engine::ops::gemm::next_panel;
use crate::engine::ops::gemm::tiles::{RowTiles, TileProduct};
use crate::engine::ops::gemm::words::WordRows;

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
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
    let panel_len = shape.k.div_ceil(2) * TILE_COLUMNS;
    for_tiled_panels((cpu, unit), shape, size, out, |tiles, _, panel, out| {
        let words = &weights.words[panel * panel_len..][..panel_len];
        let product = TileProduct {
            x,
            words,
            first_word: 0,
            is_first: true,
            bias: weights.bias.map(|bias| &bias[panel * TILE_COLUMNS..][..TILE_COLUMNS]),
            next: next_panel(words.as_ptr(), panel_len, tiles.num_blocks() == 1),
            out,
        };
        // SAFETY: `out` is the block's own rows of this panel.
        unsafe { tiles.run(cpu.isa, &product) };
    });
}

/// As `for_panels`, with the rows of the block as tiles.
pub(super) fn for_tiled_panels(
    (cpu, unit): (&Cpu, TileUnit),
    shape: Shape,
    size: ItemSize,
    out: Outputs,
    product: impl Fn(&RowTiles, Rows, usize, (*mut f32, usize)) + Sync,
) {
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        let tiles = RowTiles::new(unit, (rows.first, rows.end));
        for panel in panels {
            let of_panel = |panel, out, stride| product(&tiles, rows, panel, (out, stride));
            // SAFETY: this item alone computes these rows of its panels, all of them.
            unsafe { out.with_panel(cpu.isa, rows, panel, of_panel) };
        }
    });
}
