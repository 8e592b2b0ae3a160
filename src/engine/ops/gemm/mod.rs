//! The CPU's matrix products: rows by a panel, whether of weights or of a KV cache.
//!
//! The rows are cut into tiles that fit the registers. A panel of halves is widened once, by the
//! first tile, for all others. In a tile every output has its own lane of one accumulator and k
//! runs upward; a product that is continued takes up its sums from `out`, which is exact. So
//! neither the number of rows, nor the tiles, nor where k is cut changes a bit.

pub mod panel;
mod tile;

use std::mem::MaybeUninit;

use crate::engine::device::simd::Isa;
use panel::PanelElement;
use tile::{Prefetch, TileArgs};

/// Most inputs of one product of more than [`num_short_rows`] rows.
pub const MAX_INPUTS: usize = 1024;

/// So many rows by a panel of halves take any number of inputs: nothing of the panel is kept.
pub fn num_short_rows(isa: Isa) -> usize {
    2 * tile::max_heights(isa, false).0
}

/// Widest panel of any instruction set.
pub const MAX_PANEL_WIDTH: usize = 32;

/// A panel, widened: 128 kB on the stack of the thread that uses it.
#[repr(C, align(64))]
pub struct Widened([MaybeUninit<f32>; MAX_INPUTS * MAX_PANEL_WIDTH]);

impl Widened {
    /// Room, nothing more.
    #[inline(always)]
    pub fn new() -> Self {
        Self([MaybeUninit::uninit(); _])
    }
}

/// Rows by one panel: out = x Wᵀ, or out += x Wᵀ.
#[derive(Clone, Copy)]
pub struct PanelProduct<E> {
    /// First input of the first row, and the distance of rows.
    pub x: (*const f32, usize),
    /// The panel, at an even input.
    pub weights: *const E,
    /// Inputs to sum over, indices of `x` and `weights`: the first is 0 or 1, the end at most
    /// [`MAX_INPUTS`] if there are more than [`num_short_rows`] rows.
    pub inputs: (usize, usize),
    /// First output of the first row, and the distance of rows.
    pub out: (*mut f32, usize),
    /// Rows.
    pub num_rows: usize,
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    /// A panel's width of values to add to complete sums, or null.
    pub bias: *const f32,
    /// One vector wide, not two.
    pub is_narrow: bool,
    /// Where what is needed next begins, and its bytes: it is brought into the cache meanwhile.
    /// None: the panel behind this one.
    pub next: Option<(*const u8, usize)>,
    /// The rows may be in the cache of another core: each tile brings those of the next one.
    pub brings_rows: bool,
}

/// How far ahead a panel is read that only one tile uses: the latency of memory at its rate.
const AHEAD_BYTES: usize = 8192;

/// What to prefetch during a product with the panel at `weights`, one of many in a row: the one
/// behind it, or if there is one tile only, its own continuation. Past the last panel there is
/// nothing to read, and no harm done.
pub fn next_panel<E>(weights: *const E, panel_len: usize, is_one_tile: bool) -> (*const u8, usize) {
    let bytes = panel_len * size_of::<E>();
    let ahead = if is_one_tile { AHEAD_BYTES } else { bytes };
    (weights.cast::<u8>().wrapping_add(ahead), bytes)
}

/// Part `part.0` of `part.1` of what is needed next (where it begins, its bytes), over so many
/// inputs: where the part begins, and its bytes for each input.
pub fn part_of(
    (from, bytes): (*const u8, usize),
    num_inputs: usize,
    part: (usize, usize),
) -> (*const u8, usize) {
    let (index, num_parts) = part;
    let step = bytes.div_ceil(num_parts * num_inputs.max(1));
    (from.wrapping_add(index * num_inputs * step), step)
}

impl<E: PanelElement> PanelProduct<E> {
    /// Computes it.
    ///
    /// # Safety
    /// `x` is readable for all inputs of all rows, `weights` for the panel's inputs, an even number
    /// of them, `bias` for its width; `out` is readable and writable for its width in all rows, and
    /// nobody else touches these. This CPU has `isa`.
    pub unsafe fn run(self, isa: Isa, widened: &mut Widened) {
        let plan = TilePlan::new(isa, self.is_narrow, E::IS_WIDE, self.num_rows);
        assert!(self.inputs.0 <= 1 && (self.inputs.1 <= MAX_INPUTS || !plan.keeps));
        let num_inputs = self.inputs.1.next_multiple_of(2);
        let num_tiles = plan.num_others + 1;
        let width = isa.num_lanes() * if self.is_narrow { 1 } else { 2 };
        let behind = || next_panel(self.weights, num_inputs * width, num_tiles == 1);
        let next = self.next.unwrap_or_else(behind);
        for index in 0..num_tiles {
            let (row, height) = plan.tile(index);
            let (x, x_stride) = self.x;
            let (out, out_stride) = self.out;
            let widened: *mut f32 = widened.0.as_mut_ptr().cast();
            let prefetch = if !self.brings_rows {
                Prefetch::part(part_of(next, num_inputs, (index, num_tiles)))
            } else if index + 1 < num_tiles {
                Prefetch::rows(x.wrapping_add(plan.tile(index + 1).0 * x_stride), x_stride)
            } else {
                Prefetch::part(part_of(next, num_inputs, (0, 1)))
            };
            let args = TileArgs {
                x: x.wrapping_add(row * x_stride),
                x_stride,
                out: out.wrapping_add(row * out_stride),
                out_stride,
                inputs: self.inputs,
                is_first: self.is_first,
                bias: self.bias,
                widened,
                prefetch,
            };
            // SAFETY: the caller's promise, for the rows of this tile; `widened` has room for all
            // inputs of the widest panel, and the first tile fills it for the others.
            unsafe {
                let kind = (isa, self.is_narrow);
                if E::IS_WIDE {
                    tile::run_wide(kind, height, self.weights.cast(), &args);
                } else if index == 0 || !plan.keeps {
                    tile::run_widening(kind, (height, plan.keeps), self.weights, &args);
                } else {
                    tile::run_wide(kind, height, widened, &args);
                }
            }
        }
    }
}

/// How rows are cut into tiles. The first one is short where it widens the panel for the others:
/// that takes registers. Two short ones each widen for themselves: that costs less than to leave
/// the wide panel, twice a panel of halves, in the L2 cache.
#[derive(Clone, Copy)]
struct TilePlan {
    /// The first tile leaves the panel for the others.
    keeps: bool,
    first_height: usize,
    num_others: usize,
    num_rows: usize,
}

impl TilePlan {
    fn new(isa: Isa, is_narrow: bool, is_wide: bool, num_rows: usize) -> Self {
        let (max_widening, max_height) = tile::max_heights(isa, is_narrow);
        let keeps = !is_wide && num_rows > 2 * max_widening;
        let first_height = match keeps {
            true => max_widening,
            false => {
                let max_height = if is_wide { max_height } else { max_widening };
                num_rows.div_ceil(num_rows.div_ceil(max_height))
            }
        };
        let num_others = (num_rows - first_height).div_ceil(max_height);
        Self { keeps, first_height, num_others, num_rows }
    }

    /// First row and height of a tile.
    fn tile(&self, index: usize) -> (usize, usize) {
        if index == 0 {
            return (0, self.first_height);
        }
        let others = self.num_rows - self.first_height;
        let (start, height) = even_tile(others, self.num_others, index - 1);
        (self.first_height + start, height)
    }
}

/// First row and height of tile `index` of `num_tiles` that are as even as they can be.
pub fn even_tile(num_rows: usize, num_tiles: usize, index: usize) -> (usize, usize) {
    let start = |index: usize| index * num_rows / num_tiles;
    (start(index), start(index + 1) - start(index))
}
