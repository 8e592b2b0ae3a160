//! Codes and scales that are functions of their place, for tests of the CPU and of GPUs, and for
//! benchmarks. What includes this file imports the names of codes: the crate's own tests by other
//! paths than the rest.

use std::ops::Range;

use half::{bf16, f16};

use super::{
    CodeKind, CodedMatrix, Levels, QuantizedMatrix, RowScales, SUPER_GROUP, Scales, SourceMatrix,
    SourceValues,
};

/// A matrix of codes. Its values are so small that sums over a row stay at a few units.
#[derive(Clone, Debug)]
pub(crate) struct MadeUp {
    kind: CodeKind,
    k: usize,
    /// Whether a device hears of the codes.
    tells: bool,
}

/// Purpose of a random number.
const CODE: u32 = 1;
const SCALE: u32 = 2;
const MINIMUM: u32 = 3;
const ZERO: u32 = 4;
/// Added to the group's, for what is of a super-block.
const OUTER: u32 = 4;

impl MadeUp {
    /// Rows of `k` codes.
    pub(crate) fn new(kind: &CodeKind, k: usize, tells: bool) -> Self {
        Self { kind: kind.clone(), k, tells }
    }

    /// A matrix (n, k) of them.
    pub(crate) fn matrix(
        kind: &CodeKind,
        (n, k): (usize, usize),
        tells: bool,
    ) -> SourceMatrix<'static> {
        let values = SourceValues::Quantized(std::sync::Arc::new(Self::new(kind, k, tells)));
        SourceMatrix::new(n, k, values)
    }

    fn random(&self, row: usize, place: usize, salt: u32) -> u32 {
        let place = (place as u32).wrapping_mul(0x85eb_ca77);
        let x = (row as u32).wrapping_mul(0x9e37_79b1) ^ place ^ salt.wrapping_mul(0xc2b2_ae3d);
        let x = (x ^ x >> 15).wrapping_mul(0x2c1b_3c6d);
        (x ^ x >> 13).wrapping_mul(0x297a_2d39) >> 8
    }

    fn code(&self, row: usize, column: usize) -> u8 {
        let code = (self.random(row, column, CODE) & ((1 << self.kind.bits) - 1)) as u8;
        let is_nan = self.kind.levels == Levels::Float8 && code & 0x7f == 0x7f;
        if is_nan { 1 } else { code }
    }

    /// Bits of the scale or minimum of a group, and the f32 that they stand for.
    fn scale(&self, row: usize, group: usize, salt: u32) -> (u32, f32) {
        let random = self.random(row, group, salt);
        let largest = match self.kind.levels {
            Levels::Float8 => 448.0,
            _ => (1 << self.kind.bits) as f32,
        };
        let share = (random & 0xffff) as f32 / 65_536.0 + 0.1;
        let sign = if random & 0x1_0000 == 0 { 1.0 } else { -1.0 };
        let value = sign * share / (largest * (self.k as f32).sqrt());
        match &self.kind.scales {
            Scales::Float32 => (value.to_bits(), value),
            Scales::Float16 => (f16::from_f32(value).to_bits().into(), f16::from_f32(value).into()),
            Scales::BFloat16 => {
                (bf16::from_f32(value).to_bits().into(), bf16::from_f32(value).into())
            }
            Scales::Table(table) => (random & 0xff, table.0[random as usize & 0xff]),
            Scales::Super { signed } => {
                // Of scales only: minima are never negative.
                let (byte, inner) = match *signed && salt == SCALE {
                    true => ((random & 0xff) as u8, f32::from(random as u8 as i8)),
                    false => ((random & 0x3f) as u8, (random & 0x3f) as f32),
                };
                let column = group * self.kind.group_of(self.k);
                let outer = self.outer(row, column / SUPER_GROUP, salt).to_f32();
                (byte.into(), outer * inner)
            }
        }
    }

    fn outer(&self, row: usize, index: usize, salt: u32) -> f16 {
        f16::from_f32(((self.random(row, index, salt + OUTER) & 0xff) + 64) as f32 * 3e-7)
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        (self.random(row, group, ZERO) & ((1 << self.kind.bits) - 1)) as u8
    }
}

impl QuantizedMatrix for MadeUp {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        for (column, value) in columns.zip(out) {
            let group = column / self.kind.group_of(self.k);
            let code = self.code(row, column);
            let (_, scale) = self.scale(row, group, SCALE);
            *value = match &self.kind.levels {
                Levels::Integers { zero } => scale * (f32::from(code) - f32::from(*zero)),
                Levels::Zeros => scale * (f32::from(code) - f32::from(self.zero(row, group))),
                Levels::Minima => scale * f32::from(code) - self.scale(row, group, MINIMUM).1,
                Levels::Table(table) => scale * table.0[usize::from(code)],
                Levels::Float8 => scale * float8(code),
            };
        }
    }

    fn codes(&self) -> Option<&dyn CodedMatrix> {
        self.tells.then_some(self)
    }
}

/// E4M3 by its definition.
fn float8(code: u8) -> f32 {
    let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7) / 8.0);
    match exponent {
        0 => sign * fraction * (-6f32).exp2(),
        _ => sign * (1.0 + fraction) * ((exponent - 7) as f32).exp2(),
    }
}

impl CodedMatrix for MadeUp {
    fn kind(&self) -> CodeKind {
        self.kind.clone()
    }

    fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]) {
        for (column, code) in columns.zip(out) {
            *code = self.code(row, column);
        }
    }

    fn read_scales(&self, row: usize, out: RowScales<'_>) {
        for (group, bits) in out.scales.iter_mut().enumerate() {
            *bits = self.scale(row, group, SCALE).0;
        }
        for (group, offset) in out.offsets.iter_mut().enumerate() {
            *offset = match self.kind.levels {
                Levels::Minima => self.scale(row, group, MINIMUM).0,
                _ => self.zero(row, group).into(),
            };
        }
        for (index, bits) in out.supers.iter_mut().enumerate() {
            *bits = self.outer(row, index, SCALE).to_bits();
        }
        for (index, bits) in out.super_minima.iter_mut().enumerate() {
            *bits = self.outer(row, index, MINIMUM).to_bits();
        }
    }
}
