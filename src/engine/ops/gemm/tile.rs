//! Tiles: a few rows by one panel, sums in registers.

use super::panel::PanelElement;
use crate::engine::device::simd::{Isa, Kernel, Vector, dispatch, prefetch};

/// Largest heights of a tile that widens and of one that does not: two accumulators a row, and the
/// rest of the registers for a row of weights and what widening takes.
pub(super) fn max_heights(isa: Isa, is_narrow: bool) -> (usize, usize) {
    match isa {
        _ if is_narrow => (4, 4),
        Isa::Avx512 | Isa::Avx512Bf16 => (7, 12),
        Isa::Avx2 => (4, 6),
        Isa::Portable => (2, 4),
    }
}

/// What a tile works on beside its weights. Pointers are valid as the safety comment of their maker
/// says. Passed by reference: a copy would wait for the stores of the tile before.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    /// First input of the first row, and the distance of rows.
    pub x: *const f32,
    pub x_stride: usize,
    /// First output of the first row, and the distance of rows.
    pub out: *mut f32,
    pub out_stride: usize,
    /// Inputs to sum over: these indices of `x` and of the weights, the first 0 or 1.
    pub inputs: (usize, usize),
    /// Whether sums begin here, or go on from what `out` holds.
    pub is_first: bool,
    /// A panel's width of values to add to complete sums, or null.
    pub bias: *const f32,
    /// Where a widening tile leaves what it widened, one row after the other, for those after it.
    pub widened: *mut f32,
    pub prefetch: Prefetch,
}

/// What to bring into the cache while a tile computes: a line for each input.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    from: *const u8,
    /// Bytes from an input to the next among 16 of them, and from 16 of them to the next 16.
    step: usize,
    step_of_16: usize,
}

impl Prefetch {
    /// So many bytes from `from` on for each input: see `part_of`.
    pub fn part((from, step): (*const u8, usize)) -> Self {
        Self { from, step, step_of_16: 16 * step }
    }

    /// As many inputs as the tile has, 16 f32 to a line, of up to 16 rows from `from` on.
    pub fn rows(from: *const f32, stride: usize) -> Self {
        Self { from: from.cast(), step: 4 * stride, step_of_16: 64 }
    }

    /// The line to ask for at an input.
    #[inline(always)]
    pub fn at(&self, k: usize) -> *const u8 {
        self.from.wrapping_add(k % 16 * self.step + k / 16 * self.step_of_16)
    }
}

/// A tile over weights that are f32.
///
/// # Safety
/// The pointers of `args` are valid for `height` rows, its weights for a panel; nobody else writes
/// its outputs. `height` is at most the largest of `isa`, which this CPU has.
pub(super) unsafe fn run_wide(
    (isa, is_narrow): (Isa, bool),
    height: usize,
    weights: *const f32,
    args: &TileArgs,
) {
    macro_rules! by_height {
        ($width:literal: $($mr:literal)*) => {
            match height {
                $($mr => dispatch(isa, Tile::<f32, $mr, $width, false> { weights, args }),)*
                _ => unreachable!("a tile of {height} rows"),
            }
        };
    }
    match is_narrow {
        false => by_height!(2: 1 2 3 4 5 6 7 8 9 10 11 12),
        true => by_height!(1: 1 2 3 4),
    }
}

/// A tile that widens its weights, and if `keeps` leaves them behind for those after it.
///
/// # Safety
/// As `run_wide`, and `widened` has room for the panel.
pub(super) unsafe fn run_widening<E: PanelElement>(
    (isa, is_narrow): (Isa, bool),
    (height, keeps): (usize, bool),
    weights: *const E,
    args: &TileArgs,
) {
    macro_rules! by_height {
        ($width:literal: $($mr:literal)*) => {
            match (height, keeps) {
                $(
                    ($mr, false) => dispatch(isa, Tile::<E, $mr, $width, false> { weights, args }),
                    ($mr, true) => dispatch(isa, Tile::<E, $mr, $width, true> { weights, args }),
                )*
                _ => unreachable!("a widening tile of {height} rows"),
            }
        };
    }
    match is_narrow {
        false => by_height!(2: 1 2 3 4 5 6 7),
        true => by_height!(1: 1 2 3 4),
    }
}

/// MR rows by a panel of C vectors.
struct Tile<'a, E, const MR: usize, const C: usize, const KEEPS: bool> {
    /// The panel, at an even input.
    weights: *const E,
    args: &'a TileArgs,
}

impl<E: PanelElement, const MR: usize, const C: usize, const KEEPS: bool> Kernel
    for Tile<'_, E, MR, C, KEEPS>
{
    /// # Safety
    /// As `Kernel::run`; the arguments are as `run_wide` and `run_widening` ask for.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let args = self.args;
        let (first, end) = args.inputs;
        // SAFETY: as above.
        unsafe {
            let mut sums = [[V::splat(0.0); C]; MR];
            if !args.is_first {
                for (m, sum) in sums.iter_mut().enumerate() {
                    let out = args.out.add(m * args.out_stride);
                    *sum = std::array::from_fn(|c| V::load(out.add(c * V::LANES)));
                }
            }
            // The tallest tiles have no registers for the rows of a pair.
            if E::IS_WIDE {
                for k in first..end {
                    prefetch(args.prefetch.at(k));
                    self.step(k, E::load_row(self.weights.add(k * C * V::LANES)), &mut sums);
                }
            } else {
                self.pairs(&mut sums);
            }
            if !args.bias.is_null() {
                let bias: [V; C] = std::array::from_fn(|c| V::load(args.bias.add(c * V::LANES)));
                for sum in &mut sums {
                    *sum = std::array::from_fn(|c| sum[c].add(bias[c]));
                }
            }
            // By reference: an array that is moved goes through memory.
            for (m, sum) in sums.iter().enumerate() {
                let out = args.out.add(m * args.out_stride);
                for (c, sum) in sum.iter().enumerate() {
                    sum.store(out.add(c * V::LANES));
                }
            }
        }
    }
}

impl<E: PanelElement, const MR: usize, const C: usize, const KEEPS: bool>
    Tile<'_, E, MR, C, KEEPS>
{
    /// All inputs, pair by pair.
    ///
    /// # Safety
    /// As `run_widening`.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(&self, sums: &mut [[V; C]; MR]) {
        let args = self.args;
        let (first, end) = args.inputs;
        // SAFETY: the caller's promise.
        unsafe {
            let pair = |index: usize| self.weights.add(2 * index * C * V::LANES);
            if first == 1 {
                self.step(1, E::load_odd_row(pair(0)), sums);
            }
            for index in first..end / 2 {
                prefetch(args.prefetch.at(2 * index));
                prefetch(args.prefetch.at(2 * index + 1));
                self.step(2 * index, E::load_row(pair(index)), sums);
                self.step(2 * index + 1, E::load_odd_row(pair(index)), sums);
            }
            if end % 2 == 1 && end > first {
                self.step(end - 1, E::load_row(pair(end / 2)), sums);
            }
        }
    }

    /// sums += x[.., k] * row
    ///
    /// # Safety
    /// As `run_widening`; `k` is among the inputs.
    #[inline(always)]
    unsafe fn step<V: Vector>(&self, k: usize, row: [V; C], sums: &mut [[V; C]; MR]) {
        let args = self.args;
        // SAFETY: the caller's promise.
        unsafe {
            if KEEPS {
                for (c, row) in row.into_iter().enumerate() {
                    row.store(args.widened.add((k * C + c) * V::LANES));
                }
            }
            for (m, sum) in sums.iter_mut().enumerate() {
                let x = V::splat(*args.x.add(m * args.x_stride + k));
                for (sum, row) in sum.iter_mut().zip(row) {
                    *sum = x.mul_add(row, *sum);
                }
            }
        }
    }
}
