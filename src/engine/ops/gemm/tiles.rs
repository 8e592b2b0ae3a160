//! Products of rows by panels of 32 columns by tiles of bf16: see `device::simd::tiles`. Rows are
//! cut into tiles of equally many, two of which go through a panel at once.

use super::part_of;
use super::words::WordRows;
use crate::engine::device::simd::tiles::{
    BLOCK_TILES, ConfiguredTiles, PANEL_STEP, STEP_WORDS, TILE_COLUMNS, TILE_ROWS, TileBlock,
    TileSums, TileUnit,
};
use crate::engine::device::simd::{Isa, Kernel, Vector, dispatch};

/// Some rows as tiles of equally many; the last one may read rows that are not its own.
pub struct RowTiles {
    pub tiles: ConfiguredTiles,
    /// The first row, and the end.
    rows: (usize, usize),
    num_tiles: usize,
}

/// Rows by a panel, or by some inputs of it.
pub struct TileProduct<'a> {
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
    /// Rows from the first one to the end; at least one.
    pub fn new(unit: TileUnit, rows: (usize, usize)) -> Self {
        let num_rows = rows.1 - rows.0;
        let num_tiles = num_rows.div_ceil(TILE_ROWS);
        Self { tiles: unit.configure(num_rows.div_ceil(num_tiles)), rows, num_tiles }
    }

    /// One or two of them at a time: the first row, how many rows there are, and in how many tiles.
    pub fn blocks(&self) -> impl Iterator<Item = BlockRows> {
        let height = self.tiles.rows();
        (0..self.num_tiles).step_by(BLOCK_TILES).map(move |tile| {
            let num_tiles = BLOCK_TILES.min(self.num_tiles - tile);
            let first = self.rows.0 + tile * height;
            let num_rows = (num_tiles * height).min(self.rows.1 - first);
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
            let num_before = rows.first - self.rows.0;
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
pub struct BlockRows {
    pub first: usize,
    pub num_rows: usize,
    num_tiles: usize,
    /// The first row of the last tile.
    last: usize,
}

/// Words of a panel in steps; the last one of them, if it is not whole, filled up with zeros.
pub struct PanelWords<'a> {
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

    /// The product of some rows, from a word of each on, with these: whole steps, then the rest.
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
