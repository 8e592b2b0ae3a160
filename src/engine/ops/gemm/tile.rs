//! Tiles: a few rows by one panel, sums in registers.

use super::panel::PanelElement;
use super::part_of;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch, prefetch, prefetch_to_write};

/// Largest heights of a tile that widens and of one that does not.
pub(super) fn max_heights(isa: Isa, is_narrow: bool) -> (usize, usize) {
    heights_within(isa.num_registers(), is_narrow)
}

/// The same for so many registers: two accumulators a row, and the rest for a row of weights and
/// what widening takes.
const fn heights_within(num_registers: usize, is_narrow: bool) -> (usize, usize) {
    match num_registers {
        _ if is_narrow => (4, 4),
        32.. => (7, 12),
        16.. => (4, 6),
        _ => (2, 4),
    }
}

/// Data of tiles of one height beside their weights, one after the other. Pointers are valid
/// as the safety comment of their maker says. Passed by reference: a copy would wait for the stores
/// of the tile before.
#[derive(Clone, Copy)]
pub(super) struct TileArgs {
    pub num_tiles: usize,
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

/// Lines to prefetch while tiles compute: one for each input of each tile.
#[derive(Clone, Copy)]
pub(super) struct Prefetch {
    from: *const u8,
    /// Bytes from an input to the next among 16 of them, from 16 of them to the next 16, and from
    /// a tile to the next.
    step: usize,
    step_of_16: usize,
    step_of_tile: usize,
}

impl Prefetch {
    /// So many bytes from `from` on, over so many tiles of so many inputs.
    pub(super) fn part(part: (*const u8, usize), num_inputs: usize, num_tiles: usize) -> Self {
        let (from, step) = part_of(part, num_inputs, (0, num_tiles));
        Self { from, step, step_of_16: 16 * step, step_of_tile: num_inputs * step }
    }

    /// As many inputs as a tile has, 16 f32 to a line, of up to 16 rows from `from` on; of the next
    /// tile those after the first `height`.
    pub(super) fn rows(from: *const f32, stride: usize, height: usize) -> Self {
        let step = 4 * stride;
        Self { from: from.cast(), step, step_of_16: 64, step_of_tile: height * step }
    }

    /// Where so many tiles leave off.
    #[inline(always)]
    pub(super) fn behind(self, num_tiles: usize) -> Self {
        Self { from: self.from.wrapping_add(num_tiles * self.step_of_tile), ..self }
    }

    /// The line to ask for at an input of the first tile.
    #[inline(always)]
    fn line(&self, k: usize) -> *const u8 {
        self.from.wrapping_add(k % 16 * self.step + k / 16 * self.step_of_16)
    }
}

/// Tiles over weights that are f32.
///
/// # Safety
/// The pointers of `args` are valid for all rows of the tiles, of `height` each, `weights` for a
/// panel; nobody else writes their outputs. `height` is at most the largest of `isa`, which this
/// CPU has.
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

/// Tiles that widen their weights, and if `keeps` leave them behind for those after them.
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

/// Inputs of a round of a tile's loop, so that the loop's end is foreseen: a power of two, 16 at
/// most. Where registers are few a compiler brings the loads of a long round forward, and spills a
/// sum, whose way through memory each input then waits for.
const fn round_inputs(num_registers: usize) -> usize {
    match num_registers {
        32.. => 8,
        _ => 2,
    }
}

/// The body for each of these values, as constants.
macro_rules! for_each {
    ($i:ident in $($value:literal)* => $body:block) => {
        $({
            const $i: usize = $value;
            $body
        })*
    };
}

/// Tiles of MR rows by a panel of C vectors.
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
        // Such tiles are never asked for; compiling them would take minutes.
        if !const { Self::fits(V::NUM_REGISTERS) } {
            unreachable!("a tile of {MR} rows");
        }
        let args = self.args;
        let (mut x, mut out, mut prefetch) = (args.x, args.out, args.prefetch);
        // SAFETY: as above.
        unsafe {
            for _ in 0..args.num_tiles {
                let mut sums = [[V::splat(0.0); C]; MR];
                for (m, sum) in sums.iter_mut().enumerate() {
                    let out = out.wrapping_add(m * args.out_stride);
                    if args.is_first {
                        prefetch_to_write(out, C * V::LANES);
                    } else {
                        for (c, sum) in sum.iter_mut().enumerate() {
                            *sum = V::load(out.add(c * V::LANES));
                        }
                    }
                }
                self.inputs(x, prefetch, &mut sums);
                if !args.bias.is_null() {
                    for sum in &mut sums {
                        for (c, sum) in sum.iter_mut().enumerate() {
                            *sum = sum.add(V::load(args.bias.add(c * V::LANES)));
                        }
                    }
                }
                // By reference: an array that is moved goes through memory.
                for (m, sum) in sums.iter().enumerate() {
                    let out = out.add(m * args.out_stride);
                    for (c, sum) in sum.iter().enumerate() {
                        sum.store(out.add(c * V::LANES));
                    }
                }
                x = x.wrapping_add(MR * args.x_stride);
                out = out.wrapping_add(MR * args.out_stride);
                prefetch = prefetch.behind(1);
            }
        }
    }
}

impl<E: PanelElement, const MR: usize, const C: usize, const KEEPS: bool>
    Tile<'_, E, MR, C, KEEPS>
{
    /// Whether a tiling has tiles of this kind where there are so many registers.
    const fn fits(num_registers: usize) -> bool {
        let (widening, wide) = heights_within(num_registers, C == 1);
        match (E::IS_WIDE, KEEPS) {
            (true, _) => MR <= wide,
            (false, true) => MR == widening,
            (false, false) => MR <= widening,
        }
    }

    /// All inputs of a tile.
    ///
    /// # Safety
    /// As `run_widening`; `x` is the first input of the tile's first row.
    #[inline(always)]
    unsafe fn inputs<V: Vector>(&self, x: *const f32, lines: Prefetch, sums: &mut [[V; C]; MR]) {
        let (first, end) = self.args.inputs;
        let round = const { round_inputs(V::NUM_REGISTERS) };
        let mut k = first;
        // SAFETY: the caller's promise; rounds begin at an even input.
        unsafe {
            while k < end && !k.is_multiple_of(round) {
                self.step(x, k, self.row(k), sums);
                k += 1;
            }
            while k + round <= end {
                let line = (lines.line(k), lines.step);
                for_each!(I in 0 1 => { self.input_of_round::<V, I>(x, k, line, sums) });
                if const { round_inputs(V::NUM_REGISTERS) > 2 } {
                    for_each!(I in 2 3 4 5 6 7 => {
                        self.input_of_round::<V, I>(x, k, line, sums)
                    });
                }
                k += round;
            }
            while k < end {
                prefetch(lines.line(k));
                self.step(x, k, self.row(k), sums);
                k += 1;
            }
        }
    }

    /// Input `k + I` of a round that begins at `k`; `lines` are those to prefetch in it, and their
    /// distance.
    ///
    /// # Safety
    /// As `inputs`; `k + I` is among the inputs.
    #[inline(always)]
    unsafe fn input_of_round<V: Vector, const I: usize>(
        &self,
        x: *const f32,
        k: usize,
        (line, step): (*const u8, usize),
        sums: &mut [[V; C]; MR],
    ) {
        prefetch(line.wrapping_add(I * step));
        // SAFETY: the caller's promise; rounds begin at an even input.
        unsafe {
            let row = match I % 2 {
                1 if !E::IS_WIDE => E::load_odd_row(self.pair::<V>(k + I - 1)),
                _ => E::load_row(self.pair::<V>(k + I)),
            };
            self.step(x, k + I, row, sums);
        }
    }

    /// Where the row of weights of an input begins, of halves that of an even one and the next.
    #[inline(always)]
    fn pair<V: Vector>(&self, k: usize) -> *const E {
        self.weights.wrapping_add(k * C * V::LANES)
    }

    /// The weights of an input.
    ///
    /// # Safety
    /// As `run_widening`; `k` is among the inputs.
    #[inline(always)]
    unsafe fn row<V: Vector>(&self, k: usize) -> [V; C] {
        // SAFETY: the caller's promise.
        unsafe {
            match k % 2 {
                1 if !E::IS_WIDE => E::load_odd_row(self.pair::<V>(k - 1)),
                _ => E::load_row(self.pair::<V>(k)),
            }
        }
    }

    /// sums += x[.., k] * row
    ///
    /// # Safety
    /// As `run_widening`; `k` is among the inputs.
    #[inline(always)]
    unsafe fn step<V: Vector>(
        &self,
        x: *const f32,
        k: usize,
        row: [V; C],
        sums: &mut [[V; C]; MR],
    ) {
        let args = self.args;
        // SAFETY: the caller's promise.
        unsafe {
            if KEEPS {
                for (c, row) in row.into_iter().enumerate() {
                    row.store(args.widened.add((k * C + c) * V::LANES));
                }
            }
            for (m, sum) in sums.iter_mut().enumerate() {
                let x = V::splat(*x.add(m * args.x_stride + k));
                for (sum, row) in sum.iter_mut().zip(row) {
                    *sum = x.mul_add(row, *sum);
                }
            }
        }
    }
}
