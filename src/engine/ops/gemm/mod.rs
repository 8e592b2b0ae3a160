//! The CPU's matrix products: rows by a panel, whether of weights or of a KV cache.
//!
//! The rows are cut into tiles that fit the registers. A panel of halves is widened once, by the
//! first tile, for all others. In a tile every output has its own lane of one accumulator and k
//! runs upward; a product that is continued takes up its sums from `out`, which is exact. So
//! neither the number of rows, nor the tiles, nor where k is cut changes a bit.

pub(crate) mod panel;
mod tile;
pub(crate) mod tiles;
mod tiling;
pub(crate) mod words;

use std::mem::MaybeUninit;

use panel::PanelElement;
use tile::{Prefetch, TileArgs};
use tiling::Tiles;
pub(crate) use tiling::{Tiling, num_short_rows};
use vllm_batch_device::simd::prefetch;

/// Most inputs of one product of more than [`num_short_rows`] rows.
pub(crate) const MAX_INPUTS: usize = 1024;

/// Widest panel of any instruction set.
pub(crate) const MAX_PANEL_WIDTH: usize = 32;

/// Bytes that a CPU brings at once.
const CACHE_LINE_BYTES: usize = 64;

/// A panel, widened: 128 kB on the stack of the thread that uses it.
#[repr(C, align(64))]
pub(crate) struct Widened([MaybeUninit<f32>; MAX_INPUTS * MAX_PANEL_WIDTH]);

impl Widened {
    /// Room, nothing more.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self([MaybeUninit::uninit(); _])
    }

    fn ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr().cast()
    }
}

/// Rows by one panel: out = x Wᵀ, or out += x Wᵀ.
#[derive(Clone, Copy)]
pub(crate) struct PanelProduct<'a, E> {
    /// Tiles of the rows.
    pub tiling: &'a Tiling,
    /// First input of the first row, and the distance of rows.
    pub x: (*const f32, usize),
    /// The panel, at an even input.
    pub weights: *const E,
    /// Inputs to sum over, indices of `x` and `weights`: the first is 0 or 1, the end at most
    /// [`MAX_INPUTS`] if there are more than [`num_short_rows`] rows.
    pub inputs: (usize, usize),
    /// First output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    /// A panel's width of values to add to complete sums, or null.
    pub bias: *const f32,
    /// Where what is needed next begins, and its bytes: it is brought into the cache meanwhile.
    /// None: the panel behind this one.
    pub next: Option<(*const u8, usize)>,
    /// The rows may be in the cache of another core: each tile brings those of the next one.
    pub brings_rows: bool,
}

/// Prefetch distance for a panel of a single tile: the latency of memory at its rate.
const AHEAD_BYTES: usize = 8192;

/// Prefetch during a product with the panel at `weights`, one of many in a row: the one
/// behind it, or if there is one tile only, its own continuation. Past the last panel there is
/// nothing to read, and no harm done.
pub(crate) fn next_panel<E>(
    weights: *const E,
    panel_len: usize,
    is_one_tile: bool,
) -> (*const u8, usize) {
    let bytes = panel_len * size_of::<E>();
    let ahead = if is_one_tile { AHEAD_BYTES } else { bytes };
    (weights.cast::<u8>().wrapping_add(ahead), bytes)
}

/// Part `part.0` of `part.1` of what is needed next (where it begins, its bytes), over so many
/// inputs: where the part begins, and its bytes for each input.
pub(crate) fn part_of(
    (from, bytes): (*const u8, usize),
    num_inputs: usize,
    part: (usize, usize),
) -> (*const u8, usize) {
    let (index, num_parts) = part;
    let step = bytes.div_ceil(num_parts * num_inputs.max(1));
    (from.wrapping_add(index * num_inputs * step), step)
}

/// Asks for the cache lines, of which there may be two, that stand for some inputs from `input` on;
/// `next` is what [`part_of`] gives.
#[inline(always)]
pub(crate) fn bring((next, step): (*const u8, usize), input: usize, num_inputs: usize) {
    prefetch(next.wrapping_add(input * step));
    if num_inputs * step > CACHE_LINE_BYTES {
        prefetch(next.wrapping_add(input * step + CACHE_LINE_BYTES));
    }
}

impl<E: PanelElement> PanelProduct<'_, E> {
    /// Computes it.
    ///
    /// # Safety
    /// `x` is readable for all inputs of all rows, `weights` for the panel's inputs, an even number
    /// of them, `bias` for its width; `out` is readable and writable for its width in all rows, and
    /// nobody else touches these. This CPU has the tiling's instructions.
    pub(crate) unsafe fn run(&self, widened: &mut Widened) {
        let tiling = self.tiling;
        assert!(self.inputs.0 <= 1 && (self.inputs.1 <= MAX_INPUTS || !tiling.keeps()));
        let num_inputs = self.inputs.1.next_multiple_of(2);
        let num_tiles = tiling.num_tiles;
        let behind = || next_panel(self.weights, num_inputs * tiling.width(), num_tiles == 1);
        let next = self.next.unwrap_or_else(behind);
        if self.brings_rows {
            // SAFETY: the caller's promise.
            unsafe { self.run_bringing_rows(next, num_inputs, widened) };
            return;
        }
        let mut prefetch = Prefetch::part(next, num_inputs, num_tiles);
        for tiles in &tiling.groups {
            // SAFETY: the caller's promise; the first tile widens for the others.
            unsafe { self.tiles(tiles, prefetch, widened.ptr()) };
            prefetch = prefetch.behind(tiles.num);
        }
    }

    /// As `run`: each tile brings the rows of the one behind it, and the last one what comes next.
    ///
    /// # Safety
    /// As [`Self::run`].
    #[cold]
    unsafe fn run_bringing_rows(
        &self,
        next: (*const u8, usize),
        num_inputs: usize,
        widened: &mut Widened,
    ) {
        let (x, stride) = self.x;
        let mut num_left = self.tiling.num_tiles;
        for tiles in &self.tiling.groups {
            num_left -= tiles.num;
            let num = if num_left == 0 { tiles.num - 1 } else { tiles.num };
            let row = tiles.first_row + tiles.height;
            let rows = Prefetch::rows(x.wrapping_add(row * stride), stride, tiles.height);
            // SAFETY: the caller's promise; the first tile widens for the others.
            unsafe { self.tiles(&Tiles { num, ..*tiles }, rows, widened.ptr()) };
            if num_left == 0 {
                let first_row = tiles.first_row + num * tiles.height;
                let last = Tiles { first_row, num: 1, ..*tiles };
                let prefetch = Prefetch::part(next, num_inputs, 1);
                // SAFETY: as above.
                unsafe { self.tiles(&last, prefetch, widened.ptr()) };
                return;
            }
        }
    }

    /// Only the first rows, by a piece of a panel: what is widened is left from input `at` on of a
    /// panel that [`Self::run_joined`] takes. Many pieces of few inputs then cost the other rows
    /// one loop, not one each.
    ///
    /// # Safety
    /// As [`Self::run`].
    pub(crate) unsafe fn run_piece(&self, widened: &mut Widened, at: usize) {
        let tiling = self.tiling;
        assert!(tiling.keeps() && self.inputs.0 <= 1 && at + self.inputs.1 <= MAX_INPUTS);
        let next = self.next.unwrap_or((self.weights.cast(), 0));
        let prefetch = Prefetch::part(next, self.inputs.1, 1);
        let widened = widened.ptr().wrapping_add(at * tiling.width());
        // SAFETY: the caller's promise; there is room for the piece, as above.
        unsafe { self.tiles(&tiling.groups[0], prefetch, widened) };
    }

    /// The other rows by pieces that were joined: `inputs` are all of theirs, and `x` and `out` as
    /// they were for the first.
    ///
    /// # Safety
    /// As [`Self::run`], and [`Self::run_piece`] was called for all of the inputs.
    pub(crate) unsafe fn run_joined(&self, widened: &mut Widened) {
        let tiling = self.tiling;
        assert!(tiling.keeps() && self.inputs.1 <= MAX_INPUTS);
        let prefetch = Prefetch::part((self.x.0.cast(), 0), 1, 1);
        for tiles in &tiling.groups[1..] {
            // SAFETY: the caller's promise.
            unsafe { self.tiles(tiles, prefetch, widened.ptr()) };
        }
    }

    /// Tiles of one height.
    ///
    /// # Safety
    /// As [`Self::run`]; the first tile has filled `widened` for the others.
    unsafe fn tiles(&self, tiles: &Tiles, prefetch: Prefetch, widened: *mut f32) {
        let Tiles { first_row, height, num } = *tiles;
        if num == 0 {
            return;
        }
        let (x, x_stride) = self.x;
        let (out, out_stride) = self.out;
        let args = TileArgs {
            num_tiles: num,
            x: x.wrapping_add(first_row * x_stride),
            x_stride,
            out: out.wrapping_add(first_row * out_stride),
            out_stride,
            inputs: self.inputs,
            is_first: self.is_first,
            bias: self.bias,
            widened,
            prefetch,
        };
        let kind = (self.tiling.isa, self.tiling.is_narrow);
        let keeps = self.tiling.keeps();
        // SAFETY: the caller's promise, for the rows of these tiles; `widened` has room for all
        // inputs of the widest panel.
        unsafe {
            if E::IS_WIDE {
                tile::run_wide(kind, height, self.weights.cast(), &args);
            } else if first_row == 0 || !keeps {
                tile::run_widening(kind, (height, keeps), self.weights, &args);
            } else {
                tile::run_wide(kind, height, widened, &args);
            }
        }
    }
}

/// First row and height of tile `index` of `num_tiles` that are as even as they can be.
pub(crate) fn even_tile(num_rows: usize, num_tiles: usize, index: usize) -> (usize, usize) {
    let start = |index: usize| index * num_rows / num_tiles;
    (start(index), start(index + 1) - start(index))
}
