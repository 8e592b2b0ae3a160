//! The units of this machine against the oracle.

use super::*;
use crate::simd::InstructionSet;
use vllm_batch_base::isa::Isa;
use vllm_batch_base::split_mix::{GAMMA, mix};

struct Random(u64);

impl Random {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }
}

/// Kinds of data: what operations can differ in.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Numbers about 1: the order of the sums.
    Ordinary,
    /// Any bits, NaN and infinities among them.
    AnyBits,
    /// Denormal numbers among small ones.
    Denormal,
    /// Products below the normal numbers, and just there.
    Underflow,
    /// Products about 2^-126, of which a sum's last places decide what is tiny.
    Tininess,
    /// Sums beyond the largest number.
    Overflow,
    /// Infinities among numbers.
    Infinite,
    /// NaN among numbers.
    NotANumber,
    /// Zeros of both signs.
    Zeros,
}

const KINDS: [Kind; 9] = [
    Kind::Ordinary,
    Kind::AnyBits,
    Kind::Denormal,
    Kind::Underflow,
    Kind::Tininess,
    Kind::Overflow,
    Kind::Infinite,
    Kind::NotANumber,
    Kind::Zeros,
];

/// The bits of a bf16 with this exponent, a random sign and random places.
fn with_exponent(random: u64, exponent: u64) -> u64 {
    (random & 0x807f) | exponent << 7
}

/// One bf16 of a kind; `index` is its word's in the step.
fn value(kind: Kind, index: usize, random: u64) -> u64 {
    let choice = random >> 32;
    match kind {
        Kind::Ordinary => with_exponent(random, 120 + choice % 12),
        Kind::AnyBits => random & 0xffff,
        Kind::Denormal => with_exponent(random, if choice.is_multiple_of(3) { 0 } else { 60 }),
        Kind::Underflow => with_exponent(random, 56 + choice % 16),
        // 2^-63 times 2^-63, and from then on products about 2^-152.
        Kind::Tininess if index == 0 => 64 << 7,
        Kind::Tininess => with_exponent(random, 48 + choice % 6),
        Kind::Overflow => with_exponent(random, 186 + choice % 8),
        Kind::Infinite if choice.is_multiple_of(40) => random & 0x8000 | 0x7f80,
        Kind::NotANumber if choice.is_multiple_of(200) => random & 0x807f | 0x7f81,
        Kind::Infinite | Kind::NotANumber => with_exponent(random, 120 + choice % 12),
        Kind::Zeros if choice.is_multiple_of(2) => random & 0x8000,
        Kind::Zeros => with_exponent(random, 100),
    }
}

fn words(kind: Kind, num_steps: usize, num: usize, random: &mut Random) -> Vec<u32> {
    let word = |index: usize, random: &mut Random| {
        let index = index / num % STEP_WORDS;
        let [low, high] = [random.next_u64(), random.next_u64()].map(|r| value(kind, index, r));
        (low | high << 16) as u32
    };
    (0..num_steps * STEP_WORDS * num).map(|index| word(index, random)).collect()
}

/// As bits, in which all NaN are one.
fn bits(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

/// A product and its rows, (rows, words), and panel, (words, columns).
struct Case {
    num_rows: usize,
    num_steps: usize,
    rows: Vec<u32>,
    panel: Vec<u32>,
    starts: Vec<f32>,
}

impl Case {
    fn new(kind: Kind, (num_rows, num_steps): (usize, usize), random: &mut Random) -> Self {
        let by_word = words(kind, num_steps, num_rows, random);
        let num_words = num_steps * STEP_WORDS;
        let rows = (0..num_rows * num_words)
            .map(|index| by_word[index % num_words * num_rows + index / num_words])
            .collect();
        let panel = words(kind, num_steps, TILE_COLUMNS, random);
        let starts = words(kind, 1, 2 * num_rows, random);
        let starts = starts.into_iter().map(|word| match kind {
            Kind::AnyBits => f32::from_bits(word),
            _ => f32::from_bits(word << 16),
        });
        Self { num_rows, num_steps, rows, panel, starts: starts.collect() }
    }

    /// What a sum begins with.
    fn start(&self, row: usize, column: usize) -> f32 {
        self.starts[row * TILE_COLUMNS + column]
    }

    fn expected(&self, is_first: bool, row: usize, column: usize) -> f32 {
        let mut sum = if is_first { 0.0 } else { self.start(row, column) };
        let row = &self.rows[row * self.num_steps * STEP_WORDS..];
        for step in 0..self.num_steps {
            let words = step * STEP_WORDS..(step + 1) * STEP_WORDS;
            let columns: Vec<u32> =
                words.clone().map(|word| self.panel[word * TILE_COLUMNS + column]).collect();
            sum = oracle::add_step(sum, &row[words], &columns);
        }
        sum
    }

    /// In tiles of so many rows, from `cut` steps on in a second call.
    fn run(&self, unit: TileUnit, tile_rows: usize, cut: usize, is_first: bool) -> Vec<f32> {
        let stride = self.num_steps * STEP_WORDS;
        let mut padded = self.rows.clone();
        padded.resize((self.num_rows + TILE_ROWS) * stride, 0xffff_ffff);
        let tiles = unit.configure(tile_rows);
        let mut out = vec![];
        for first in (0..self.num_rows).step_by(2 * tile_rows) {
            let num_rows = (self.num_rows - first).min(2 * tile_rows);
            let mut sums = TileSums([0.0; _]);
            for row in first..first + num_rows {
                let start = (0..TILE_COLUMNS).map(|column| self.start(row, column));
                sums.0[(row - first) * TILE_COLUMNS..]
                    .iter_mut()
                    .zip(start)
                    .for_each(|(sum, start)| *sum = start);
            }
            for (begin, end) in [(0, cut), (cut, self.num_steps)] {
                if begin == end {
                    continue;
                }
                let rows = [first, (first + tile_rows).min(self.num_rows)]
                    .map(|row| padded[row * stride + begin * STEP_WORDS..].as_ptr());
                let block = TileBlock {
                    rows,
                    num_tiles: num_rows.div_ceil(tile_rows),
                    row_stride: stride,
                    panel: TilePanel::Whole(self.panel[begin * PANEL_STEP..].as_ptr()),
                    num_steps: end - begin,
                    is_first: is_first && begin == 0,
                    next: (self.panel.as_ptr().cast(), 2048),
                };
                // SAFETY: rows are followed by as many as a tile has, the panel has all steps.
                unsafe { tiles.multiply_bf16(&block, sums.place()) };
            }
            out.extend_from_slice(&sums.0[..num_rows * TILE_COLUMNS]);
        }
        out
    }

    /// That units give what the oracle gives.
    fn check(&self, units: &[TileUnit], tile_rows: usize, cut: usize, kind: Kind) {
        for is_first in [true, false] {
            let outputs = (0..self.num_rows * TILE_COLUMNS)
                .map(|index| self.expected(is_first, index / TILE_COLUMNS, index % TILE_COLUMNS));
            let expected: Vec<f32> = outputs.collect();
            for &unit in units {
                let got = self.run(unit, tile_rows, cut, is_first);
                assert_eq!(got.len(), expected.len());
                for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    let (row, column) = (index / TILE_COLUMNS, index % TILE_COLUMNS);
                    assert_eq!(
                        bits(*got),
                        bits(*expected),
                        "{unit:?} {kind:?}, row {row} of {} by {tile_rows}, column {column}",
                        self.num_rows
                    );
                }
            }
        }
    }
}

/// Those of this machine. `scripts/check-amx` has all of them on any.
fn units() -> Vec<TileUnit> {
    let units = [TileUnit::Amx, TileUnit::Twin, TileUnit::TwinAvx2].into_iter();
    units.filter(|unit| unit.is_available()).collect()
}

/// Outputs that are compared: fewer on CPUs that `scripts/check-amx` emulates.
fn num_outputs(units: &[TileUnit]) -> usize {
    let is_emulated = units.contains(&TileUnit::Amx) || !Isa::Avx512Bf16.is_available();
    if is_emulated { 500_000 } else { 5_000_000 }
}

#[test]
fn products_of_bf16_have_the_bits_of_the_oracle() {
    let units = units();
    let mut random = Random(7);
    let mut num_compared = 0;
    for round in 0.. {
        let kind = KINDS[round % KINDS.len()];
        let num_rows = 1 + random.next_u64() as usize % 40;
        let num_steps = 1 + random.next_u64() as usize % 3;
        let case = Case::new(kind, (num_rows, num_steps), &mut random);
        let tile_rows = 1 + random.next_u64() as usize % TILE_ROWS;
        let cut = random.next_u64() as usize % (num_steps + 1);
        case.check(&units, tile_rows, cut, kind);
        num_compared += 2 * num_rows * TILE_COLUMNS;
        if units.is_empty() || num_compared >= num_outputs(&units) {
            break;
        }
    }
}

/// Rows may be of any kind: none changes another.
#[test]
fn a_row_has_its_bits_beside_any_other() {
    let mut random = Random(8);
    let mut case = Case::new(Kind::Ordinary, (33, 2), &mut random);
    let other = Case::new(Kind::AnyBits, (33, 2), &mut random);
    let width = 2 * STEP_WORDS;
    for row in (0..33).filter(|row| row % 2 == 1) {
        case.rows[row * width..][..width].copy_from_slice(&other.rows[row * width..][..width]);
    }
    for tile_rows in 1..=TILE_ROWS {
        case.check(&units(), tile_rows, 1, Kind::AnyBits);
    }
}

#[test]
fn steps_lie_anywhere_and_sums_far_from_each_other() {
    const STRIDE: usize = TILE_COLUMNS + 5;
    let mut random = Random(11);
    for (num_rows, tile_rows, num_steps) in
        [(1, 1, 1), (3, 3, 4), (5, 3, 2), (16, 16, 3), (31, 16, 5)]
    {
        let case = Case::new(Kind::Ordinary, (num_rows, num_steps), &mut random);
        let stride = num_steps * STEP_WORDS;
        let mut rows = case.rows.clone();
        rows.resize(2 * TILE_ROWS * stride, 0);
        // Those of later steps come first.
        let backwards: Vec<u32> = case.panel.chunks(PANEL_STEP).rev().flatten().copied().collect();
        let steps: Vec<_> = backwards.chunks(PANEL_STEP).rev().map(<[u32]>::as_ptr).collect();
        for (unit, is_first) in units().into_iter().flat_map(|unit| [(unit, true), (unit, false)]) {
            let block = TileBlock {
                rows: [0, tile_rows].map(|row| rows[row * stride..].as_ptr()),
                num_tiles: num_rows.div_ceil(tile_rows),
                row_stride: stride,
                panel: TilePanel::Steps(steps.as_ptr()),
                num_steps,
                is_first,
                next: (steps[0].cast(), 64),
            };
            let mut sums = vec![7.0; 2 * TILE_ROWS * STRIDE];
            for (row, sums) in sums.chunks_mut(STRIDE).take(num_rows).enumerate() {
                (0..TILE_COLUMNS).for_each(|column| sums[column] = case.start(row, column));
            }
            // SAFETY: rows, steps and sums are there for two whole tiles.
            unsafe { unit.configure(tile_rows).multiply_bf16(&block, (sums.as_mut_ptr(), STRIDE)) };
            for (row, sums) in sums.chunks(STRIDE).take(num_rows).enumerate() {
                let (sums, between) = sums.split_at(TILE_COLUMNS);
                assert_eq!(between, [7.0; STRIDE - TILE_COLUMNS], "{unit:?}");
                for (column, sum) in sums.iter().enumerate() {
                    let expected = case.expected(is_first, row, column);
                    assert_eq!(bits(*sum), bits(expected), "{unit:?}, row {row} of {num_rows}");
                }
            }
        }
    }
}

/// A sum after a step.
type Step = fn(f32, &[u32], &[u32]) -> f32;

/// What the data sets are for: other arithmetic does not pass.
#[test]
fn wrong_arithmetic_is_found() {
    let one_chain = |sum: f32, row: &[u32], column: &[u32]| {
        row.iter().zip(column).fold(sum, |sum, (&x, &w)| {
            let product = |shift: u32| {
                let value = |word: u32| f32::from_bits(word << shift & 0xffff_0000);
                value(x) * value(w)
            };
            sum + product(16) + product(0)
        })
    };
    let kept = |sum: f32, row: &[u32], column: &[u32]| {
        let chain = |shift: u32| {
            row.iter().zip(column).fold(0.0f32, |sum, (&x, &w)| {
                let value = |word: u32| f32::from_bits(word << shift & 0xffff_0000);
                value(x).mul_add(value(w), sum)
            })
        };
        sum + (chain(16) + chain(0))
    };
    let wrong: [(Step, Kind); 3] =
        [(one_chain, Kind::Ordinary), (kept, Kind::Denormal), (kept, Kind::Tininess)];
    for (wrong, kind) in wrong {
        let mut random = Random(9);
        let num_differing = (0..2000)
            .filter(|_| {
                let row = words(kind, 1, 1, &mut random);
                let column = words(kind, 1, 1, &mut random);
                bits(wrong(0.0, &row, &column)) != bits(oracle::add_step(0.0, &row, &column))
            })
            .count();
        assert!(num_differing > 20, "{kind:?}: {num_differing} of 2000 differ");
    }
}

#[test]
fn products_of_int8_are_exact() {
    if !TileUnit::Amx.is_available() {
        return;
    }
    let mut random = Random(10);
    for num_rows in [1, 5, 16, 32] {
        let case = Case::new(Kind::AnyBits, (num_rows, 3), &mut random);
        let tile_rows = num_rows.min(TILE_ROWS);
        let tiles = TileUnit::Amx.configure(tile_rows);
        let stride = 3 * STEP_WORDS;
        let block = TileBlock {
            rows: [0, num_rows - tile_rows].map(|row| case.rows[row * stride..].as_ptr()),
            num_tiles: num_rows.div_ceil(tile_rows),
            row_stride: stride,
            panel: TilePanel::Whole(case.panel.as_ptr()),
            num_steps: 3,
            is_first: true,
            next: (case.panel.as_ptr().cast(), 0),
        };
        let mut sums = TileSums([0; _]);
        // SAFETY: rows and panel have three steps.
        unsafe { tiles.multiply_int8(&block, sums.place()) };
        for (index, sum) in sums.0[..num_rows * TILE_COLUMNS].iter().enumerate() {
            let (row, column) = (index / TILE_COLUMNS, index % TILE_COLUMNS);
            let expected: i32 = (0..stride)
                .flat_map(|word| {
                    let x = case.rows[row * stride + word].to_le_bytes();
                    let w = case.panel[word * TILE_COLUMNS + column].to_le_bytes();
                    x.into_iter().zip(w)
                })
                .map(|(x, w)| i32::from(x as i8) * i32::from(w as i8))
                .sum();
            assert_eq!(*sum, expected);
        }
    }
}
