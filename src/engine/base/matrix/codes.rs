//! Quantized matrices: unsigned codes with scales by group, and what a code stands for.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// Inputs of a unit: each bit of their codes is one word of a lane.
pub const UNIT: usize = 32;

/// Inputs that share the outer scale of [`Scales::Super`].
pub const SUPER_GROUP: usize = 256;

/// Format of a quantized matrix: how codes are held, and their values. A value is
/// `scale * level(code)`, or `scale * code - minimum`; both are rounded once, to f32.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeKind {
    /// Bits of a code, unsigned: 2 to 6, or 8.
    pub bits: u32,
    /// Values of codes.
    pub levels: Levels,
    /// Inputs that share a scale: 16, a multiple of 32, or at least as many as there are.
    pub group: usize,
    /// Type of a scale. A minimum has the same type.
    pub scales: Scales,
}

/// Values of codes, before scaling.
#[derive(Clone, Debug, PartialEq)]
pub enum Levels {
    /// The code less this zero.
    Integers {
        /// The code of 0.
        zero: u8,
    },
    /// The code less the zero of its group.
    Zeros,
    /// The code; the minimum of its group is then taken off. `scale * code` is exact.
    Minima,
    /// An entry of a table, of codes of 4 bits.
    Table(Table<16>),
    /// A float of 8 bits, E4M3 without infinities.
    Float8,
}

/// Type of the scale of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Scales {
    /// 4 bytes.
    Float32,
    /// 2 bytes.
    Float16,
    /// 2 bytes.
    BFloat16,
    /// A byte: an entry of a table.
    Table(Table<256>),
    /// A byte, times a float16 for each [`SUPER_GROUP`] inputs: exact in f32. Minima have a
    /// float16 of their own.
    Super {
        /// Whether the byte of a scale is an i8. That of a minimum is an u8.
        signed: bool,
    },
}

/// Values by index. Two are equal if their bits are.
#[derive(Clone, Debug)]
pub struct Table<const N: usize>(pub Arc<[f32; N]>);

impl<const N: usize> PartialEq for Table<N> {
    fn eq(&self, other: &Self) -> bool {
        let bits = |table: &Self| table.0.map(f32::to_bits);
        bits(self) == bits(other)
    }
}

impl Scales {
    /// Bytes of one.
    pub fn num_bytes(&self) -> usize {
        match self {
            Scales::Float32 => 4,
            Scales::Float16 | Scales::BFloat16 => 2,
            Scales::Table(_) | Scales::Super { .. } => 1,
        }
    }
}

impl CodeKind {
    /// Whether panels have room for such codes.
    pub fn is_supported(&self) -> bool {
        let has_levels = match &self.levels {
            Levels::Integers { .. } | Levels::Zeros | Levels::Minima => true,
            Levels::Table(_) => self.bits == 4,
            Levels::Float8 => self.bits == 8,
        };
        let is_whole = self.group == 16 || (self.group > 0 && self.group.is_multiple_of(UNIT));
        has_levels && is_whole && matches!(self.bits, 2..=6 | 8)
    }

    /// Inputs that share a scale where there are `k`, in whole units but for 16.
    pub fn group_of(&self, k: usize) -> usize {
        self.group.min(k.next_multiple_of(UNIT))
    }

    /// Bytes of a group's offset: its zero or its minimum.
    pub fn offset_bytes(&self) -> usize {
        match self.levels {
            Levels::Zeros => 1,
            Levels::Minima => self.scales.num_bytes(),
            Levels::Integers { .. } | Levels::Table(_) | Levels::Float8 => 0,
        }
    }
}

/// A matrix whose codes a device may keep. Its values are those of the `QuantizedMatrix` that it
/// belongs to, bit for bit.
pub trait CodedMatrix: Debug + Send + Sync {
    /// Format of all of its codes.
    fn kind(&self) -> CodeKind;

    /// The codes of some columns of a row.
    fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]);

    /// The scales of all groups of a row, as bits of the kind's types.
    fn read_scales(&self, row: usize, out: RowScales<'_>);
}

/// Room for what the groups of a row hold: bits of an f32, in the low half those of a float16 or
/// bfloat16, or in the lowest byte an index or an integer.
#[derive(Debug)]
pub struct RowScales<'a> {
    /// One per group.
    pub scales: &'a mut [u32],
    /// One per group: its zero, or its minimum, which is taken off; none without.
    pub offsets: &'a mut [u32],
    /// Bits of a float16 for each 256 inputs; none without.
    pub supers: &'a mut [u16],
    /// The same for minima.
    pub super_minima: &'a mut [u16],
}
