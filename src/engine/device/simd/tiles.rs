//! Products of tiles: up to 32 rows by a panel of 32 columns, by AMX or bit for bit as by AMX.
//!
//! A step is 16 words of each row and of each column: words of two bf16 or of four int8. For bf16
//! an output's even and odd products of a step are summed apart, from +0, each by fused
//! multiply-adds in their order; then even + odd is added to the output's sum. What is denormal
//! counts as zero, before and after each operation. That is what TDPBF16PS computes (Intel's
//! manual, and measured bit by bit), so a machine without it can give the same bits; only which
//! NaN comes out may differ. Sums of int8 are exact.
//!
//! An output depends on its own row and column: neither on how many rows there are, nor on where a
//! product is cut between two steps.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod twin;
#[cfg(target_arch = "x86_64")]
mod twin_avx2;

use std::hint::black_box;

/// Rows of a tile at most.
pub const TILE_ROWS: usize = 16;

/// Tiles of rows that a block has at most.
pub const BLOCK_TILES: usize = 2;

/// Columns of a panel.
pub const TILE_COLUMNS: usize = 32;

/// Words of a row, or of a column, in a step.
pub const STEP_WORDS: usize = 16;

/// Words of a panel in a step.
pub const PANEL_STEP: usize = STEP_WORDS * TILE_COLUMNS;

/// How far apart rows of so many words are where tiles read them. They are whole steps, which zeros
/// fill up, and an odd number of cache lines: rows that are a multiple of 4 kB apart would all lie
/// in one set of the first cache.
pub fn tile_stride(num_words: usize) -> usize {
    (num_words.div_ceil(STEP_WORDS) | 1) * STEP_WORDS
}

/// What multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileUnit {
    /// The CPU's own.
    Amx,
    /// AVX-512, with the bits of the other; products of bf16 alone.
    Twin,
    /// The same by AVX2.
    TwinAvx2,
}

/// A unit whose tiles have so many rows, for this thread, until it is dropped.
#[derive(Debug)]
pub struct ConfiguredTiles {
    unit: TileUnit,
    rows: usize,
}

/// The sums of a block of rows by a panel: (rows, [`TILE_COLUMNS`]), of f32 or of 32-bit integers.
#[repr(C, align(64))]
pub struct TileSums<T>(pub [T; BLOCK_TILES * TILE_ROWS * TILE_COLUMNS]);

impl<T> TileSums<T> {
    /// The first of them, and the distance of rows.
    pub fn place(&mut self) -> (*mut T, usize) {
        (self.0.as_mut_ptr(), TILE_COLUMNS)
    }
}

/// Where the words of a panel are.
#[derive(Clone, Copy)]
pub enum TilePanel {
    /// (words, [`TILE_COLUMNS`])
    Whole(*const u32),
    /// Of each step where its are: ([`STEP_WORDS`], [`TILE_COLUMNS`]).
    Steps(*const *const u32),
}

/// One or two tiles of rows by a panel.
#[derive(Clone, Copy)]
pub struct TileBlock {
    /// The first word of the first row of each tile; the second is left alone if there is one tile.
    pub rows: [*const u32; BLOCK_TILES],
    /// How many tiles there are: 1 or 2.
    pub num_tiles: usize,
    /// Words from row to row.
    pub row_stride: usize,
    /// Words of all steps.
    pub panel: TilePanel,
    /// Steps, at least one.
    pub num_steps: usize,
    /// Whether sums begin here, or go on.
    pub is_first: bool,
    /// What is needed next: where it begins, and its bytes for each step.
    pub next: (*const u8, usize),
}

impl TileUnit {
    /// Whether this machine has it, and the system lets this process use it.
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(super) fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            TileUnit::Amx => amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            TileUnit::Twin => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "x86_64")]
            TileUnit::TwinAvx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Makes it ready for blocks whose tiles have `rows` rows.
    ///
    /// # Panics
    /// A tile has no or too many rows.
    pub fn configure(self, rows: usize) -> ConfiguredTiles {
        assert!((1..=TILE_ROWS).contains(&rows));
        #[cfg(target_arch = "x86_64")]
        if self == TileUnit::Amx {
            // SAFETY: devices are made with what `Isa::is_available` found, and so are units.
            unsafe { amx::configure(rows) };
        }
        ConfiguredTiles { unit: self, rows }
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.unit == TileUnit::Amx {
            // SAFETY: it was configured, so it is available.
            unsafe { amx::release() };
        }
    }
}

impl ConfiguredTiles {
    /// Rows of a tile.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// sums, or sums + these, = rows by panel, words of two bf16. `sums` are the first of the first
    /// row, and the distance of rows: (rows of all tiles, [`TILE_COLUMNS`]).
    ///
    /// # Safety
    /// Rows of all tiles, as many as were configured, and the panel are readable for all steps, and
    /// the sums of these rows are readable and writable; nobody else touches them.
    pub unsafe fn multiply_bf16(&self, block: &TileBlock, sums: (*mut f32, usize)) {
        debug_assert!((1..=BLOCK_TILES).contains(&block.num_tiles) && block.num_steps > 0);
        match self.unit {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; the unit is configured.
            TileUnit::Amx => unsafe { amx::bf16(block, self.rows, (sums.0.cast(), sums.1)) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller's promise; the unit is available.
            TileUnit::Twin => unsafe { by_twin(block, self.rows, sums, twin::bf16) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            TileUnit::TwinAvx2 => unsafe { by_twin(block, self.rows, sums, twin_avx2::bf16) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => unreachable!("no unit here has {sums:?}"),
        }
    }

    /// The same for words of four int8, wrapping.
    ///
    /// # Safety
    /// As `multiply_bf16`.
    ///
    /// # Panics
    /// It is a twin.
    pub unsafe fn multiply_int8(&self, block: &TileBlock, sums: (*mut i32, usize)) {
        debug_assert!((1..=BLOCK_TILES).contains(&block.num_tiles) && block.num_steps > 0);
        assert_eq!(self.unit, TileUnit::Amx, "dot products of int8 need no twin");
        // SAFETY: the caller's promise; the unit is configured.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            amx::int8(block, self.rows, (sums.0.cast(), sums.1));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = sums;
    }
}

/// The block by a twin, which takes whole panels and has sums of its own: (rows of all tiles,
/// [`TILE_COLUMNS`]).
///
/// # Safety
/// As `ConfiguredTiles::multiply_bf16`; the twin is available.
#[cfg(target_arch = "x86_64")]
unsafe fn by_twin(
    block: &TileBlock,
    rows: usize,
    (to, stride): (*mut f32, usize),
    twin: unsafe fn(&TileBlock, *const u32, usize, *mut f32),
) {
    let mut sums = TileSums([0.0; _]);
    let rows_of_sums = |sums: &mut TileSums<f32>| {
        let sums = sums.0.as_mut_ptr();
        (0..block.num_tiles * rows)
            .map(move |row| (to.wrapping_add(row * stride), sums.wrapping_add(row * TILE_COLUMNS)))
    };
    // SAFETY: the caller's promise; `sums` have room for two tiles.
    unsafe {
        rows_of_sums(&mut sums)
            .filter(|_| !block.is_first)
            .for_each(|(from, sums)| sums.copy_from_nonoverlapping(from, TILE_COLUMNS));
        match block.panel {
            TilePanel::Whole(panel) => twin(block, panel, rows, sums.0.as_mut_ptr()),
            TilePanel::Steps(steps) => {
                for step in 0..block.num_steps {
                    let one = TileBlock {
                        rows: block.rows.map(|row| row.wrapping_add(step * STEP_WORDS)),
                        num_steps: 1,
                        is_first: block.is_first && step == 0,
                        ..*block
                    };
                    twin(&one, *steps.add(step), rows, sums.0.as_mut_ptr());
                }
            }
        }
        rows_of_sums(&mut sums)
            .for_each(|(to, sums)| to.copy_from_nonoverlapping(sums, TILE_COLUMNS));
    }
}

/// As `num_steps` steps of two whole tiles of rows, out of the first cache: what limits products of
/// bf16. Gives the multiply-adds of words in a step.
pub fn rounds_of_bf16(unit: TileUnit, num_steps: usize) -> usize {
    rounds(unit, num_steps, TileSums([0.0; _]), |tiles, block, sums| {
        // SAFETY: the block reads its own words.
        unsafe { tiles.multiply_bf16(block, sums.place()) };
    })
}

/// The same for int8.
pub fn rounds_of_int8(unit: TileUnit, num_steps: usize) -> usize {
    rounds(unit, num_steps, TileSums([0; _]), |tiles, block, sums| {
        // SAFETY: the block reads its own words.
        unsafe { tiles.multiply_int8(block, sums.place()) };
    })
}

/// `multiply` adds rows and a panel, all of them the same words, to the sums.
fn rounds<T>(
    unit: TileUnit,
    num_steps: usize,
    mut sums: TileSums<T>,
    multiply: impl Fn(&ConfiguredTiles, &TileBlock, &mut TileSums<T>),
) -> usize {
    let words = Box::new([0u32; ROUND_STEPS * PANEL_STEP]);
    let row_stride = ROUND_STEPS * STEP_WORDS;
    let block = TileBlock {
        rows: [0, TILE_ROWS].map(|row| words[row * row_stride..].as_ptr()),
        num_tiles: BLOCK_TILES,
        row_stride,
        panel: TilePanel::Whole(words.as_ptr()),
        num_steps: ROUND_STEPS,
        is_first: true,
        next: (words.as_ptr().cast(), 0),
    };
    let tiles = unit.configure(TILE_ROWS);
    for _ in 0..num_steps / ROUND_STEPS {
        multiply(&tiles, &block, &mut sums);
    }
    black_box(&sums.0);
    BLOCK_TILES * TILE_ROWS * PANEL_STEP
}

/// Steps of a panel of 16 kB, which is as long as two tiles of rows.
const ROUND_STEPS: usize = 8;
const _: () = assert!(BLOCK_TILES * TILE_ROWS * STEP_WORDS <= PANEL_STEP);
