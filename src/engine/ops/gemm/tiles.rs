//! Products of rows by panels of 32 columns by tiles of bf16: see `device::simd::tiles`. Rows are
//! cut into tiles of equally many, two of which go through a panel at once.

use super::part_of;
use super::words::WordRows;
use vllm_batch_device::simd::tiles::{
    BLOCK_TILES, ConfiguredTiles, PANEL_STEP, STEP_WORDS, TILE_COLUMNS, TILE_ROWS, TileBlock,
    TilePanel, TileSums, TileUnit,
};
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch, prefetch_to_write};

/// Largest stride of rows of sums that lie in the first cache: two tiles of them are 32 kB.
const NEAR_STRIDE: usize = 256;

/// Some rows as tiles of equally many; the last one may read rows that are not its own.
pub(crate) struct RowTiles {
    pub tiles: ConfiguredTiles,
    /// The first row, and the end.
    rows: (usize, usize),
    num_tiles: usize,
}

/// Rows by a panel, or by some inputs of it.
pub(crate) struct TileProduct<'a> {
    pub x: WordRows<'a>,
    /// (words, columns)
    pub words: &'a [u32],
    /// The place of the first of these words in a row; a step's first one.
    pub first_word: usize,
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    /// A panel's width of values to add to complete sums.
    pub bias: Option<&'a [f32]>,
    /// Start of the data that is needed next, and its bytes.
    pub next: (*const u8, usize),
    /// The first output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
}

/// Rows by a panel whose steps lie in places of their own; its sums go on from what `out` holds.
pub(crate) struct StepsProduct<'a> {
    pub x: WordRows<'a>,
    /// The place of the first step in a row; a step's first word.
    pub first_word: usize,
    /// Where the words of each step are: (words, columns).
    pub steps: &'a [*const u32],
    /// Start of the data that is needed next, and its bytes.
    pub next: (*const u8, usize),
    /// The first output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
}

impl RowTiles {
    /// Rows from the first one to the end; at least one.
    pub(crate) fn new(unit: TileUnit, rows: (usize, usize)) -> Self {
        let num_rows = rows.1 - rows.0;
        let num_tiles = num_rows.div_ceil(TILE_ROWS);
        Self { tiles: unit.configure(num_rows.div_ceil(num_tiles)), rows, num_tiles }
    }

    /// One or two of them at a time: the first row, how many rows there are, and in how many tiles.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockRows> {
        let height = self.tiles.rows();
        (0..self.num_tiles).step_by(BLOCK_TILES).map(move |tile| {
            let num_tiles = BLOCK_TILES.min(self.num_tiles - tile);
            let first = self.rows.0 + tile * height;
            let num_rows = (num_tiles * height).min(self.rows.1 - first);
            let last = first + (num_tiles - 1) * height;
            BlockRows { index: tile / BLOCK_TILES, first, num_rows, num_tiles, last }
        })
    }

    /// Number of `blocks`.
    pub(crate) fn num_blocks(&self) -> usize {
        self.num_tiles.div_ceil(BLOCK_TILES)
    }

    /// All rows by the panel.
    ///
    /// # Safety
    /// `out` is readable and writable for a panel's width in all rows, and nobody else touches it.
    pub(crate) unsafe fn run(&self, isa: Isa, product: &TileProduct<'_>) {
        for rows in self.blocks() {
            let to = product.out.0.wrapping_add((rows.first - self.rows.0) * product.out.1);
            // SAFETY: the caller's promise.
            unsafe {
                self.run_block(isa, rows, &TileProduct { out: (to, product.out.1), ..*product })
            };
        }
    }

    /// Rows of a block by the panel; `out` is that of the first one of them.
    ///
    /// # Safety
    /// As of `run`.
    pub(crate) unsafe fn run_block(&self, isa: Isa, rows: BlockRows, product: &TileProduct<'_>) {
        let words = PanelWords::new(product.words);
        let next = part_of(product.next, words.num_steps(), (rows.index, self.num_blocks()));
        let blocks = words.block(product.x, (rows, product.first_word), next);
        let TileProduct { is_first, bias, out, .. } = *product;
        let multiply = |sums: (*mut f32, usize)| {
            for block in blocks.iter().flatten() {
                let block = TileBlock { is_first: is_first && block.is_first, ..*block };
                // SAFETY: rows are whole steps, and as many as the tiles have; the panel has all of
                // its words. The caller's promise for the sums.
                unsafe { self.tiles.multiply_bf16(&block, sums) };
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.send(isa, rows, SumRows { is_first, bias, out }, multiply) };
    }

    /// All rows by the panel, whose sums go on.
    ///
    /// # Safety
    /// As of `run`; every step of the panel is readable.
    pub(crate) unsafe fn run_steps(&self, isa: Isa, product: &StepsProduct<'_>) {
        let StepsProduct { x, first_word, steps, next, out } = *product;
        for rows in self.blocks() {
            let part = (rows.index, self.num_blocks());
            let block = TileBlock {
                rows: [rows.first, rows.last].map(|row| x.at_tile(row).wrapping_add(first_word)),
                num_tiles: rows.num_tiles,
                row_stride: x.stride,
                panel: TilePanel::Steps(steps.as_ptr()),
                num_steps: steps.len(),
                is_first: false,
                next: part_of(next, steps.len(), part),
            };
            let out = (out.0.wrapping_add((rows.first - self.rows.0) * out.1), out.1);
            // SAFETY: as in `run_block`.
            unsafe {
                let multiply = |sums| self.tiles.multiply_bf16(&block, sums);
                self.send(isa, rows, SumRows { is_first: false, bias: None, out }, multiply);
            }
        }
    }

    /// Has `multiply` write sums, or add to them: where the rows have them if these lie in the
    /// first cache, tiles are whole rows and there is nothing to add; else in a place of their own,
    /// while that of the rows is brought: a tile of rows that are far from each other would wait.
    ///
    /// # Safety
    /// As of `run`.
    unsafe fn send(
        &self,
        isa: Isa,
        rows: BlockRows,
        to: SumRows<'_>,
        multiply: impl Fn((*mut f32, usize)),
    ) {
        let are_near = to.out.1 <= NEAR_STRIDE || rows.num_tiles == 1;
        let are_whole = rows.num_rows == rows.num_tiles * self.tiles.rows();
        if are_near && are_whole && to.bias.is_none() {
            return multiply(to.out);
        }
        for row in 0..rows.num_rows {
            prefetch_to_write(to.out.0.wrapping_add(row * to.out.1), TILE_COLUMNS);
        }
        let mut sums = TileSums([0.0; _]);
        if !to.is_first {
            // SAFETY: the caller's promise.
            unsafe { to.take_up(rows.num_rows, &mut sums) };
        }
        multiply(sums.place());
        dispatch(isa, Sent { sums: &sums, num_rows: rows.num_rows, to });
    }
}

/// Rows of one or two tiles.
#[derive(Clone, Copy)]
pub(crate) struct BlockRows {
    /// Index among the `blocks`.
    pub index: usize,
    pub first: usize,
    pub num_rows: usize,
    num_tiles: usize,
    /// The first row of the last tile.
    last: usize,
}

/// Words of a panel in steps; the last one of them, if it is not whole, filled up with zeros.
pub(crate) struct PanelWords<'a> {
    words: &'a [u32],
    last: Option<LastStep>,
}

#[repr(C, align(64))]
struct LastStep([u32; PANEL_STEP]);

impl<'a> PanelWords<'a> {
    pub(crate) fn new(words: &'a [u32]) -> Self {
        let rest = words.as_chunks::<PANEL_STEP>().1;
        let last = (!rest.is_empty()).then(|| {
            let mut step = LastStep([0; _]);
            step.0[..rest.len()].copy_from_slice(rest);
            step
        });
        Self { words, last }
    }

    /// All steps.
    pub(crate) fn num_steps(&self) -> usize {
        self.words.len().div_ceil(PANEL_STEP)
    }

    /// The product of some rows, from a word of each on, with these: whole steps, then the rest.
    /// `next` is what each step asks for.
    pub(crate) fn block(
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
            panel: TilePanel::Whole(panel),
            num_steps,
            is_first: first_step == 0,
            next: (next.0.wrapping_add(first_step * next.1), next.1),
        };
        let whole = (num_whole > 0).then(|| block(0, self.words.as_ptr(), num_whole));
        [whole, self.last.as_ref().map(|last| block(num_whole, last.0.as_ptr(), 1))]
    }
}

/// Rows that sums go to.
#[derive(Clone, Copy)]
struct SumRows<'a> {
    /// Whether sums begin here, or go on from what is there.
    is_first: bool,
    bias: Option<&'a [f32]>,
    /// The first output of the first row, and the distance of rows.
    out: (*mut f32, usize),
}

impl SumRows<'_> {
    /// Takes up the sums that the rows hold.
    ///
    /// # Safety
    /// As of `RowTiles::run`.
    unsafe fn take_up(&self, num_rows: usize, sums: &mut TileSums<f32>) {
        let (out, stride) = self.out;
        for (row, to) in sums.0.chunks_exact_mut(TILE_COLUMNS).take(num_rows).enumerate() {
            // SAFETY: the caller's promise.
            unsafe { to.as_mut_ptr().copy_from(out.add(row * stride), TILE_COLUMNS) };
        }
    }
}

/// Sums on their way to their rows.
struct Sent<'a> {
    sums: &'a TileSums<f32>,
    num_rows: usize,
    to: SumRows<'a>,
}

impl Kernel for Sent<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (out, stride) = self.to.out;
        for row in 0..self.num_rows {
            for lane in (0..TILE_COLUMNS).step_by(V::LANES) {
                // SAFETY: sums have a panel's width in all rows, and so do the bias and, by the
                // promise of `RowTiles::run`, the outputs.
                unsafe {
                    let sum = V::load(self.sums.0[row * TILE_COLUMNS + lane..].as_ptr());
                    let sum = match self.to.bias {
                        Some(bias) => sum.add(V::load(bias[lane..].as_ptr())),
                        None => sum,
                    };
                    sum.store(out.add(row * stride + lane));
                }
            }
        }
    }
}
