//! What codes mean, and how wide the parts of a panel are.

use std::sync::Arc;

/// Inputs of a unit: each bit of their codes is one word of a lane.
pub const UNIT: usize = 32;

/// Inputs that share the outer scale of [`Scales::Super`].
pub const SUPER_GROUP: usize = 256;

/// How the codes of a matrix are held and what they stand for. A value is
/// `scale * level(code)`, or `scale * code - minimum`; both are rounded once, to f32.
#[derive(Clone, Debug, PartialEq)]
pub struct CodeKind {
    /// Bits of a code, unsigned: 2 to 6, or 8.
    pub bits: u32,
    /// What a code stands for.
    pub levels: Levels,
    /// Inputs that share a scale: 16, a multiple of 32, or at least as many as there are.
    pub group: usize,
    /// How a scale is held. A minimum is held in the same way.
    pub scales: Scales,
}

/// What a code stands for, before it is scaled.
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

/// How the scale of a group is held.
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
