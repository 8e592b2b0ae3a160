//! `GroupedMatrix`: codes with a scale, and perhaps a zero, for each group of them. Every format
//! that is read is one, with its own layout of codes and its own groups.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::floats;
use super::layout::Codes;
use vllm_batch_base::matrix::QuantizedMatrix;
use vllm_batch_base::matrix::{CodeKind, CodedMatrix, Levels, RowScales, Scales, Table, UNIT};

/// What a matrix is made of: a value is `scale * (level(code) - zero)`, with the scale and the zero
/// of its group.
#[derive(Debug)]
pub(super) struct Parts<'a> {
    /// Inputs of the layer.
    pub num_columns: usize,
    /// Where codes lie.
    pub codes: Codes<'a>,
    /// What each code stands for.
    pub meaning: Meaning,
    /// Which group a value belongs to.
    pub groups: Groups,
    /// One for each group.
    pub scales: ScaleValues<'a>,
    /// Of what is subtracted.
    pub zeros: Zeros,
    /// What each product is multiplied with afterwards.
    pub factor: Option<f32>,
}

/// The matrix that they make.
#[derive(Debug)]
pub(super) struct GroupedMatrix<'a> {
    parts: Parts<'a>,
    /// What each code stands for.
    levels: Box<[f32; 256]>,
    /// None: a device does not keep the codes.
    kind: Option<CodeKind>,
}

/// What a code stands for.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    /// Itself.
    Unsigned,
    /// The integer of 8 bits that it is.
    Signed,
    /// E4M3.
    Float8,
    /// An entry of a table.
    Table(Arc<[f32; 16]>),
}

/// The code of 0 among integers of 8 bits, as unsigned codes.
const SIGN: u8 = 0x80;

impl Meaning {
    /// The level of a code.
    fn level(&self, code: u8) -> f32 {
        match self {
            Meaning::Unsigned => f32::from(code),
            Meaning::Signed => f32::from(code as i8),
            Meaning::Float8 => floats::e4m3(code),
            Meaning::Table(table) => table[usize::from(code & 15)],
        }
    }
}

/// Levels that are subtracted before a value is scaled.
#[derive(Debug)]
pub(super) enum Zeros {
    /// One for all groups.
    Same(i16),
    /// One for each group.
    Each(Vec<i16>),
}

impl Zeros {
    fn of(&self, group: usize) -> i16 {
        match self {
            Zeros::Same(zero) => *zero,
            Zeros::Each(zeros) => zeros[group],
        }
    }

    fn all(&self) -> &[i16] {
        match self {
            Zeros::Same(zero) => std::slice::from_ref(zero),
            Zeros::Each(zeros) => zeros,
        }
    }
}

/// Scales, as the files hold them.
#[derive(Clone, Debug)]
pub(super) struct ScaleValues<'a> {
    /// Little-endian.
    pub bytes: Cow<'a, [u8]>,
    /// What each is.
    pub kind: Scales,
}

impl ScaleValues<'_> {
    /// The bits of one, as they are held.
    fn bits(&self, index: usize) -> u32 {
        let size = self.kind.num_bytes();
        let bytes = &self.bytes[index * size..(index + 1) * size];
        bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u32::from(*byte))
    }

    /// One, exactly.
    fn value(&self, index: usize) -> f32 {
        let bits = self.bits(index);
        match &self.kind {
            Scales::Float32 => f32::from_bits(bits),
            Scales::Float16 => f16::from_bits(bits as u16).to_f32(),
            Scales::BFloat16 => bf16::from_bits(bits as u16).to_f32(),
            Scales::Table(Table(table)) => table[bits as usize],
            Scales::Super { .. } => unreachable!("no format of safetensors has them"),
        }
    }
}

/// Which group a value belongs to.
#[derive(Debug)]
pub(super) enum Groups {
    /// Blocks of rows and columns: group (row block) * row_stride + (column block) *
    /// column_stride.
    Blocks { rows: usize, columns: usize, strides: (usize, usize) },
    /// The same with a list of the column blocks of all columns, and one row to a block.
    Listed { of_columns: Vec<u32>, strides: (usize, usize) },
    /// Runs of so many values, row by row, which may end within a row.
    Runs { num_columns: usize, len: usize },
}

impl Groups {
    /// Blocks, row of blocks by row of blocks.
    pub(super) fn blocks((rows, columns): (usize, usize), num_columns: usize) -> Self {
        Groups::Blocks { rows, columns, strides: (num_columns.div_ceil(columns), 1) }
    }

    /// Inputs that share a scale, in whole units where it is all of them; None: those that do are
    /// not side by side, or the groups of a row begin within one.
    fn inputs(&self, num_columns: usize) -> Option<usize> {
        let size = match *self {
            Groups::Blocks { columns, .. } => columns,
            Groups::Runs { len, .. } if num_columns.is_multiple_of(len) => len,
            Groups::Listed { .. } | Groups::Runs { .. } => return None,
        };
        Some(if size >= num_columns { num_columns.next_multiple_of(UNIT) } else { size })
    }

    /// The group of a value, and the first column behind those that share it.
    fn run(&self, row: usize, column: usize) -> (usize, usize) {
        match self {
            Groups::Blocks { rows, columns, strides } => {
                let block = column / columns;
                (row / rows * strides.0 + block * strides.1, (block + 1).saturating_mul(*columns))
            }
            Groups::Listed { of_columns, strides } => {
                let group = of_columns[column] as usize;
                (row * strides.0 + group * strides.1, column + 1)
            }
            Groups::Runs { num_columns, len } => {
                let index = row * num_columns + column;
                (index / len, column + len - index % len)
            }
        }
    }
}

impl<'a> From<Parts<'a>> for GroupedMatrix<'a> {
    fn from(parts: Parts<'a>) -> Self {
        let levels = Box::new(std::array::from_fn(|code| parts.meaning.level(code as u8)));
        let kind = parts.kind();
        Self { parts, levels, kind }
    }
}

impl Parts<'_> {
    /// What a device may keep: groups in the order of inputs, and zeros of a byte.
    fn kind(&self) -> Option<CodeKind> {
        let zero = |zero: i16| u8::try_from(zero + self.bias()).ok();
        let levels = match (&self.meaning, &self.zeros) {
            (Meaning::Unsigned | Meaning::Signed, Zeros::Same(same)) => {
                Levels::Integers { zero: zero(*same)? }
            }
            (Meaning::Unsigned | Meaning::Signed, Zeros::Each(_)) => Levels::Zeros,
            (Meaning::Float8, _) => Levels::Float8,
            (Meaning::Table(table), _) => Levels::Table(Table(Arc::clone(table))),
        };
        let group = self.groups.inputs(self.num_columns)?;
        let is_kept = self.factor.is_none() && self.zeros.all().iter().all(|z| zero(*z).is_some());
        let (bits, scales) = (self.codes.bits() as u32, self.scales.kind.clone());
        is_kept.then_some(CodeKind { bits, levels, group, scales })
    }

    /// What is added to integers with a sign, so that codes have none.
    fn bias(&self) -> i16 {
        if matches!(self.meaning, Meaning::Signed) { i16::from(SIGN) } else { 0 }
    }
}

impl QuantizedMatrix for GroupedMatrix<'_> {
    fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let Parts { codes, groups, scales, zeros, .. } = &self.parts;
        assert!(columns.end <= self.parts.num_columns && columns.len() == out.len());
        for (value, column) in out.iter_mut().zip(columns.clone()) {
            *value = self.levels[usize::from(codes.code(row, column))];
        }
        let mut column = columns.start;
        while column < columns.end {
            let (group, end) = groups.run(row, column);
            let end = end.min(columns.end);
            let (scale, zero) = (scales.value(group), f32::from(zeros.of(group)));
            for value in &mut out[column - columns.start..end - columns.start] {
                *value = scale * (*value - zero);
            }
            column = end;
        }
        if let Some(factor) = self.parts.factor {
            out.iter_mut().for_each(|value| *value *= factor);
        }
    }

    fn codes(&self) -> Option<&dyn CodedMatrix> {
        self.kind.as_ref().map(|_| self as &dyn CodedMatrix)
    }
}

impl CodedMatrix for GroupedMatrix<'_> {
    fn kind(&self) -> CodeKind {
        self.kind.clone().expect("`codes` has said that there is one")
    }

    fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]) {
        let sign = if matches!(self.parts.meaning, Meaning::Signed) { SIGN } else { 0 };
        for (code, column) in out.iter_mut().zip(columns) {
            *code = self.parts.codes.code(row, column) ^ sign;
        }
    }

    fn read_scales(&self, row: usize, out: RowScales<'_>) {
        let Parts { groups, num_columns, scales, zeros, .. } = &self.parts;
        let size = groups.inputs(*num_columns).expect("`codes` has said that there is one");
        for (index, scale) in out.scales.iter_mut().enumerate() {
            let group = groups.run(row, index * size).0;
            *scale = scales.bits(group);
            if let Some(offset) = out.offsets.get_mut(index) {
                *offset = (zeros.of(group) + self.parts.bias()) as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_row_has_the_scales_of_its_groups() {
        let bytes: Vec<u8> = (0..12).collect();
        let matrix = |groups, num_groups: u16| Parts {
            num_columns: 6,
            codes: Codes::Bytes { num_columns: 6, bytes: &bytes },
            meaning: Meaning::Unsigned,
            groups,
            scales: ScaleValues {
                bytes: (1..=num_groups)
                    .flat_map(|scale| f16::from_f32(scale.into()).to_le_bytes())
                    .collect(),
                kind: Scales::Float16,
            },
            zeros: Zeros::Each((0..num_groups as i16).collect()),
            factor: None,
        };
        let read = |parts: Parts<'_>, row, columns: Range<usize>| {
            let mut out = vec![0.0; columns.len()];
            GroupedMatrix::from(parts).read_row(row, columns, &mut out);
            out
        };
        // Blocks of 1 x 4, the last one short: groups 0, 1 and 2, 3.
        let blocks = Groups::blocks((1, 4), 6);
        assert_eq!(read(matrix(blocks, 4), 1, 3..6), [21.0, 28.0, 32.0]);
        let listed = Groups::Listed { of_columns: vec![1, 0, 1, 0, 1, 0], strides: (1, 2) };
        assert_eq!(read(matrix(listed, 4), 1, 0..3), [12.0, 12.0, 20.0]);
        // Runs of 4 values go on in the next row.
        let runs = Groups::Runs { num_columns: 6, len: 4 };
        assert_eq!(read(matrix(runs, 3), 1, 0..6), [10.0, 12.0, 18.0, 21.0, 24.0, 27.0]);
        let doubled = Parts { factor: Some(2.0), ..matrix(Groups::blocks((9, 9), 6), 1) };
        assert_eq!(read(doubled, 0, 4..6), [8.0, 10.0]);
    }
    /// Values as a device makes them of what it keeps.
    fn widened(matrix: &GroupedMatrix<'_>, row: usize) -> Vec<f32> {
        let kind = matrix.kind();
        let k = matrix.parts.num_columns;
        let num_groups = k.div_ceil(kind.group_of(k));
        let mut codes = vec![0; k];
        matrix.read_codes(row, 0..k, &mut codes);
        let (mut scales, mut offsets) = (vec![0; num_groups], vec![0; num_groups]);
        let has_offsets = kind.levels == Levels::Zeros;
        let offsets_len = if has_offsets { num_groups } else { 0 };
        matrix.read_scales(
            row,
            RowScales {
                scales: &mut scales,
                offsets: &mut offsets[..offsets_len],
                supers: &mut [],
                super_minima: &mut [],
            },
        );
        let value = |(column, code): (usize, &u8)| {
            let group = column / kind.group_of(k);
            let level = match &kind.levels {
                Levels::Integers { zero } => f32::from(*code) - f32::from(*zero),
                Levels::Zeros => f32::from(*code) - offsets[group] as f32,
                Levels::Table(Table(table)) => table[usize::from(*code)],
                Levels::Float8 => floats::e4m3(*code),
                Levels::Minima => unreachable!(),
            };
            let scale = ScaleValues {
                bytes: scales[group].to_le_bytes()[..kind.scales.num_bytes()].to_vec().into(),
                kind: kind.scales.clone(),
            };
            scale.value(0) * level
        };
        codes.iter().enumerate().map(value).collect()
    }

    #[test]
    fn what_a_device_keeps_has_the_same_values() {
        let bytes: Vec<u8> =
            (0..128u32).map(|i| (i * 37 % 127) as u8 | (i as u8 & 1) << 7).collect();
        let scales: Vec<u8> = (1..=16).flat_map(|scale| (scale as f32).to_le_bytes()).collect();
        let table = Arc::new(std::array::from_fn(|code| floats::e2m1(code as u8)));
        let exponents: [f32; 256] = std::array::from_fn(|byte| floats::e8m0(byte as u8));
        let f32s = ScaleValues { bytes: (&scales[..]).into(), kind: Scales::Float32 };
        let e8m0 = ScaleValues {
            bytes: [120, 130, 125, 128][..].into(),
            kind: Scales::Table(Table(Arc::new(exponents))),
        };
        let all = Codes::Bytes { num_columns: 64, bytes: &bytes };
        let half = Codes::Rows { bits: 4, row_bytes: 32, bytes: &bytes[..64] };
        let blocks = |rows, columns| Groups::blocks((rows, columns), 64);
        let runs = Groups::Runs { num_columns: 64, len: 32 };
        let each = Zeros::Each((0..16).collect());
        for (codes, meaning, groups, scales, zeros, is_kept) in [
            (all, Meaning::Signed, blocks(1, 64), f32s.clone(), Zeros::Same(0), true),
            (all, Meaning::Signed, blocks(1, 32), f32s.clone(), Zeros::Each(vec![-128; 4]), true),
            (all, Meaning::Unsigned, blocks(1, 32), f32s.clone(), Zeros::Each(vec![256; 4]), false),
            (all, Meaning::Float8, blocks(2, 32), f32s.clone(), Zeros::Same(0), true),
            (half, Meaning::Unsigned, blocks(1, 16), f32s.clone(), each, true),
            (half, Meaning::Table(table), blocks(1, 32), e8m0, Zeros::Same(0), true),
            (half, Meaning::Unsigned, runs, f32s.clone(), Zeros::Same(8), true),
            (
                half,
                Meaning::Unsigned,
                Groups::Listed { of_columns: vec![0; 64], strides: (1, 2) },
                f32s.clone(),
                Zeros::Same(8),
                false,
            ),
        ] {
            let parts =
                Parts { num_columns: 64, codes, meaning, groups, scales, zeros, factor: None };
            let matrix = GroupedMatrix::from(parts);
            assert_eq!(matrix.codes().is_some(), is_kept, "{:?}", matrix.parts.groups);
            for row in 0..2 {
                let mut values = vec![0.0; 64];
                matrix.read_row(row, 0..64, &mut values);
                assert!(values.iter().any(|value| *value != 0.0));
                if is_kept {
                    let bits = |values: Vec<f32>| -> Vec<_> {
                        values.into_iter().map(f32::to_bits).collect()
                    };
                    assert_eq!(bits(widened(&matrix, row)), bits(values), "{:?}", matrix.kind);
                }
            }
        }
    }
}
