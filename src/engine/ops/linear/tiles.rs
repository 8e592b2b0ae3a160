//! linear by tiles of bf16.

use crate::gemm::next_panel;
use crate::gemm::tiles::{BlockRows, RowTiles, TileProduct};
use crate::gemm::words::WordRows;
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::tiles::{BLOCK_TILES, TILE_COLUMNS, TILE_ROWS, TileUnit};

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use super::cpu::ITEM_MACS;
use super::pairs::PairWeights;

/// Rows that go through a panel at once.
const BLOCK_HEIGHT: usize = BLOCK_TILES * TILE_ROWS;

/// Bytes of a block's inputs: half of an L2 cache of 2 MiB.
const CACHED_INPUT_BYTES: usize = 1 << 20;

/// Rows of inputs by the weights.
pub(super) fn linear(
    (cpu, unit): (&Cpu, TileUnit),
    shape: Shape,
    x: WordRows<'_>,
    weights: PairWeights<'_>,
    out: Outputs,
) {
    let size = tiled_items(2 * shape.k, ITEM_MACS);
    let panel_len = shape.k.div_ceil(2) * TILE_COLUMNS;
    for_tiled_panels((cpu, unit), shape, size, out, |tiles, rows, panel, out| {
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
        unsafe { tiles.run_block(cpu.isa, rows, &product) };
    });
}

/// Items of products by tiles: as many rows as lie in a core's L2 cache beside a panel, since every
/// block of rows reads all weights, and tiles outrun the cache that they come from.
pub(super) fn tiled_items(row_bytes: usize, macs: usize) -> ItemSize {
    let num_blocks = CACHED_INPUT_BYTES / (row_bytes * BLOCK_HEIGHT).max(1);
    ItemSize { macs, num_panels: 1, max_rows: num_blocks.clamp(2, 8) * BLOCK_HEIGHT }
}

/// `product(tiles, rows, panel, (out, stride))` for the panels and rows of all items: those of one
/// or two tiles by a panel at a time, whose sums stay in the first cache on their way.
pub(super) fn for_tiled_panels(
    (cpu, unit): (&Cpu, TileUnit),
    shape: Shape,
    size: ItemSize,
    out: Outputs,
    product: impl Fn(&RowTiles, BlockRows, usize, (*mut f32, usize)) + Sync,
) {
    for_blocks(cpu, shape, out.width, size, &|rows, panels| {
        let tiles = RowTiles::new(unit, (rows.first, rows.end));
        for panel in panels {
            for block in tiles.blocks() {
                let rows = Rows { first: block.first, end: block.first + block.num_rows, ..rows };
                let of_panel = |panel, out, stride| product(&tiles, block, panel, (out, stride));
                // SAFETY: this item alone computes these rows of its panels, all of them.
                unsafe { out.with_panel(cpu.isa, rows, panel, of_panel) };
            }
        }
    });
}
