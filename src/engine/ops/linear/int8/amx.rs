//! int8 by tiles of AMX: a group of inputs is a product of whole steps.

use super::inputs::Int8Rows;
use super::{Block, GROUP, Int8Panels, WORD, x86};
use crate::gemm::tiles::{BlockRows, PanelWords, RowTiles};
use crate::gemm::{next_panel, part_of};
use crate::linear::blocks::{Outputs, Shape};
use crate::linear::cpu::ITEM_MACS;
use crate::linear::tiles::{for_tiled_panels, tiled_items};
use vllm_batch_device::Cpu;
use vllm_batch_device::simd::tiles::{STEP_WORDS, TILE_COLUMNS, TileSums, TileUnit};

/// As `Int8Panels::linear`.
pub(super) fn linear(
    cpu: &Cpu,
    shape: Shape,
    (x, weights, bias): (&Int8Rows<'_>, &Int8Panels, Option<&[f32]>),
    out: Outputs,
) {
    let size = tiled_items(shape.k, 2 * ITEM_MACS);
    let unit = (cpu, TileUnit::Amx);
    for_tiled_panels(unit, shape, size, out, |tiles, rows, panel, out| {
        let block = Block { x, weights, bias, k: shape.k };
        // SAFETY: `out` is the block's own rows of this panel.
        unsafe { block.by_tiles((tiles, rows), panel, out) };
    });
}

impl Block<'_> {
    /// Rows of one or two tiles by a panel.
    ///
    /// # Safety
    /// Rows have a panel's width of outputs, and nobody else touches these.
    unsafe fn by_tiles(
        &self,
        (tiles, rows): (&RowTiles, BlockRows),
        panel: usize,
        out: (*mut f32, usize),
    ) {
        let num_words = self.k.div_ceil(WORD);
        let words = &self.weights.words[panel * num_words * TILE_COLUMNS..];
        let words = &words[..num_words * TILE_COLUMNS];
        let next = next_panel(words.as_ptr(), words.len(), tiles.num_blocks() == 1);
        let next = part_of(next, num_words, (rows.index, tiles.num_blocks()));
        let tile = self.tile(panel, (rows.first, rows.num_rows), out, next);
        let mut sums = TileSums([0; _]);
        let group_words = GROUP / WORD * TILE_COLUMNS;
        for (group, words) in words.chunks(group_words).enumerate() {
            let first_word = group * (GROUP / WORD);
            let words = PanelWords::new(words);
            // Of a word; a step has more.
            let next = (next.0.wrapping_add(first_word * next.1), STEP_WORDS * next.1);
            let blocks = words.block(self.x.words, (rows, first_word), next);
            for block in blocks.into_iter().flatten() {
                // SAFETY: rows are whole steps, and as many as the tiles have; the panel has all of
                // its words.
                unsafe { tiles.tiles.multiply_int8(&block, sums.place()) };
            }
            let sums = &sums.0[..rows.num_rows * TILE_COLUMNS];
            // SAFETY: the caller's promise; CPUs with AMX have AVX-512.
            unsafe { x86::add_group_of(&tile, group, sums) };
        }
    }
}
