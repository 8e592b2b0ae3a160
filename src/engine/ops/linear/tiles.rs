//! linear by tiles of bf16: see `device::simd::tiles`. A block's rows are cut into tiles of equally
//! many rows, two of which go through a panel at once.

use crate::engine::device::Cpu;
use crate::engine::device::simd::tiles::{
    BLOCK_TILES, ConfiguredTiles, PANEL_STEP, STEP_WORDS, TILE_COLUMNS, TILE_ROWS, TileBlock,
    TileSums, TileUnit,
};
use crate::engine::device::simd::{Isa, Kernel, Vector, dispatch};
use crate::engine::ops::gemm::{next_panel, part_of};

use super::blocks::{ItemSize, Outputs, Rows, Shape, for_blocks};
use super::cpu::ITEM_MACS;
use super::pairs::PairWeights;
use super::words::WordRows;

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
        let tiles = RowTiles::new(unit, rows);
        for panel in panels {
            let product = |panel: usize, to: *mut f32, stride: usize| {
                let words = &weights.words[panel * num_words * TILE_COLUMNS..];
                let bias = weights.bias.map(|bias| &bias[panel * TILE_COLUMNS..][..TILE_COLUMNS]);
                let is_alone = tiles.num_tiles <= BLOCK_TILES;
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

/// Some rows as tiles of equally many; the last one may read rows that are not its own.
pub(super) struct RowTiles {
    pub tiles: ConfiguredTiles,
    rows: Rows,
    num_tiles: usize,
}

/// Rows by a panel, or by some inputs of it.
pub(super) struct TileProduct<'a> {
    pub x: WordRows<'a>,
    /// (words, columns)
    pub words: &'a [u32],
    /// The place of the first of these words in a row; a step's first one.
    pub first_word: usize,
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    /// A panel's width of values to add to complete sums.
    pub bias: Option<&'a [f32]>,
    /// What is needed next: where it begins, and its bytes.
    pub next: (*const u8, usize),
    /// The first output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
}

impl RowTiles {
    pub fn new(unit: TileUnit, rows: Rows) -> Self {
        let num_rows = rows.end - rows.first;
        let num_tiles = num_rows.div_ceil(TILE_ROWS);
        Self { tiles: unit.configure(num_rows.div_ceil(num_tiles)), rows, num_tiles }
    }

    /// One or two of them at a time: the first row, how many rows there are, and in how many tiles.
    pub fn blocks(&self) -> impl Iterator<Item = BlockRows> {
        let height = self.tiles.rows();
        (0..self.num_tiles).step_by(BLOCK_TILES).map(move |tile| {
            let num_tiles = BLOCK_TILES.min(self.num_tiles - tile);
            let first = self.rows.first + tile * height;
            let num_rows = (num_tiles * height).min(self.rows.end - first);
            BlockRows { first, num_rows, num_tiles, last: first + (num_tiles - 1) * height }
        })
    }

    /// How many `blocks` there are.
    pub fn num_blocks(&self) -> usize {
        self.num_tiles.div_ceil(BLOCK_TILES)
    }

    /// All rows by the panel.
    ///
    /// # Safety
    /// `out` is readable and writable for a panel's width in all rows, and nobody else touches it.
    pub unsafe fn run(&self, isa: Isa, product: &TileProduct<'_>) {
        let words = PanelWords::new(product.words);
        let mut sums = TileSums([0.0; _]);
        for (index, rows) in self.blocks().enumerate() {
            let num_before = rows.first - self.rows.first;
            let mut sent = Sent {
                sums: &mut sums,
                num_rows: rows.num_rows,
                bias: product.bias,
                out: product.out.0.wrapping_add(num_before * product.out.1),
                stride: product.out.1,
            };
            if !product.is_first {
                // SAFETY: the caller's promise.
                unsafe { sent.take_up() };
            }
            let next = part_of(product.next, words.num_steps(), (index, self.num_blocks()));
            let block = words.block(product.x, (rows, product.first_word), next);
            for block in block.into_iter().flatten() {
                let is_first = product.is_first && block.is_first;
                // SAFETY: rows are whole steps, and as many as the tiles have; the panel has all of
                // its words.
                unsafe {
                    self.tiles.multiply_bf16(&TileBlock { is_first, ..block }, sent.sums);
                }
            }
            dispatch(isa, sent);
        }
    }
}

/// Rows of one or two tiles.
#[derive(Clone, Copy)]
pub(super) struct BlockRows {
    pub first: usize,
    pub num_rows: usize,
    num_tiles: usize,
    /// The first row of the last tile.
    last: usize,
}

/// Words of a panel in steps; the last one of them, if it is not whole, filled up with zeros.
pub(super) struct PanelWords<'a> {
    words: &'a [u32],
    last: Option<LastStep>,
}

#[repr(C, align(64))]
struct LastStep([u32; PANEL_STEP]);

impl<'a> PanelWords<'a> {
    pub fn new(words: &'a [u32]) -> Self {
        let rest = words.as_chunks::<PANEL_STEP>().1;
        let last = (!rest.is_empty()).then(|| {
            let mut step = LastStep([0; _]);
            step.0[..rest.len()].copy_from_slice(rest);
            step
        });
        Self { words, last }
    }

    /// All steps.
    pub fn num_steps(&self) -> usize {
        self.words.len().div_ceil(PANEL_STEP)
    }

    /// The product of some rows, from a word of each on, with these: whole steps, and then the rest.
    /// `next` is what each step asks for.
    pub fn block(
        &self,
        x: WordRows<'_>,
        (rows, first_word): (BlockRows, usize),
        next: (*const u8, usize),
    ) -> [Option<TileBlock>; 2] {
        let num_whole = self.words.len() / PANEL_STEP;
        let block = |first_step: usize, panel: *const u32, num_steps: usize| TileBlock {
            rows: [rows.first, rows.last]
                .map(|row| x.at_tile(row).wrapping_add(first_word + first_step * STEP_WORDS)),
            num_tiles: rows.num_tiles,
            row_stride: x.stride,
            panel,
            num_steps,
            is_first: first_step == 0,
            next: (next.0.wrapping_add(first_step * next.1), next.1),
        };
        let whole = (num_whole > 0).then(|| block(0, self.words.as_ptr(), num_whole));
        [whole, self.last.as_ref().map(|last| block(num_whole, last.0.as_ptr(), 1))]
    }
}

/// Sums on their way to their rows.
struct Sent<'a> {
    sums: &'a mut TileSums<f32>,
    num_rows: usize,
    bias: Option<&'a [f32]>,
    out: *mut f32,
    stride: usize,
}

impl Sent<'_> {
    /// Takes up the sums that the rows hold.
    ///
    /// # Safety
    /// As of `RowTiles::run`.
    unsafe fn take_up(&mut self) {
        for row in 0..self.num_rows {
            let to = &mut self.sums.0[row * TILE_COLUMNS..][..TILE_COLUMNS];
            // SAFETY: the caller's promise.
            unsafe { to.as_mut_ptr().copy_from(self.out.add(row * self.stride), TILE_COLUMNS) };
        }
    }
}

impl Kernel for Sent<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for row in 0..self.num_rows {
            for lane in (0..TILE_COLUMNS).step_by(V::LANES) {
                // SAFETY: sums have a panel's width in all rows, and so do the bias and, by the
                // promise of `RowTiles::run`, the outputs.
                unsafe {
                    let sum = V::load(self.sums.0[row * TILE_COLUMNS + lane..].as_ptr());
                    let sum = match self.bias {
                        Some(bias) => sum.add(V::load(bias[lane..].as_ptr())),
                        None => sum,
                    };
                    sum.store(self.out.add(row * self.stride + lane));
                }
            }
        }
    }
}
