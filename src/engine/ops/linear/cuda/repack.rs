//! Codes in the order of a GPU's matrix units: what each lane of a warp multiplies lies together.
//!
//! A strip is 8 outputs by all inputs, these filled up to a multiple of 128 with codes and scales
//! of 0. Its codes lie in units of 256 bytes, 8 bytes for each of 32 lanes: 64 inputs where codes
//! have 4 bits, 32 where they have 8. Lane l has output l / 4 and, of each 16 inputs, those from
//! 2 (l % 4) and from 8 + 2 (l % 4) on, two each, as operand b of mma.m16n8k16 wants them.
//! Scales and offsets of a strip are (groups, 8).

use half::{bf16, f16};

use super::code_defines::CodeDefines;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales};
use vllm_batch_base::matrix::{SourceMatrix, SourceRows};

/// Outputs of a strip.
pub(super) const STRIP: usize = 8;
/// Bytes of a unit of codes.
pub(super) const UNIT_BYTES: usize = 256;
/// Inputs are filled up to a multiple of this.
pub(super) const BLOCK_INPUTS: usize = 128;
/// Inputs of a step of the matrix units.
const STEP: usize = 16;
/// Runs of rows of one kind that a layer may have: each is a launch.
const MAX_RUNS: usize = 8;

/// Rows of a layer that follow each other and have codes of one kind.
#[derive(Clone, Debug)]
pub(super) struct CodedRows<'a> {
    rows: &'a SourceRows<'a>,
    kind: CodeKind,
    /// The first of them.
    pub first: usize,
    /// Number of outputs.
    pub n: usize,
}

impl<'a> CodedRows<'a> {
    /// The rows by kind; None: some have no codes that kernels take, or kinds change too often.
    pub(super) fn runs(rows: &'a SourceRows<'a>) -> Option<Vec<Self>> {
        if rows.num_rows() == 0 || !rows.num_columns().is_multiple_of(STRIP) {
            return None;
        }
        let mut runs: Vec<Self> = Vec::new();
        let mut last: Option<*const SourceMatrix<'_>> = None;
        for row in 0..rows.num_rows() {
            let (matrix, row_of_matrix) = rows.locate(row);
            if last.is_none_or(|last| !std::ptr::eq(last, matrix)) {
                let kind = matrix.coded(row_of_matrix)?.0.kind();
                let is_far = matches!(kind.levels, Levels::Integers { zero } if zero >= 128);
                if !kind.is_supported() || is_far && kind.bits <= 4 || runs.len() > MAX_RUNS {
                    return None;
                }
                last = Some(matrix);
                if runs.last().is_none_or(|run| run.kind != kind) {
                    runs.push(Self { rows, kind, first: row, n: 0 });
                }
            }
            runs.last_mut()?.n += 1;
        }
        (runs.len() <= MAX_RUNS).then_some(runs)
    }

    /// Constants that kernels are compiled with.
    pub(super) fn defines(&self) -> CodeDefines {
        let CodeKind { bits, levels, scales, .. } = &self.kind;
        let levels = match levels {
            Levels::Integers { .. } => "INTEGERS",
            Levels::Zeros => "ZEROS",
            Levels::Minima => "MINIMA",
            Levels::Table(_) => "TABLE",
            Levels::Float8 => "FLOAT8",
        };
        let scale = match scales {
            Scales::Float16 => DType::Float16,
            Scales::BFloat16 => DType::BFloat16,
            Scales::Table(table) if table.0.iter().all(|&scale| is_bfloat16(scale)) => {
                DType::BFloat16
            }
            Scales::Float32 | Scales::Table(_) | Scales::Super { .. } => DType::Float32,
        };
        let bits = if *bits <= 4 { 4 } else { 8 };
        CodeDefines { levels, bits, scale, group: self.group() as u32 }
    }

    /// The code of 0, where all have one.
    pub(super) fn zero(&self) -> u8 {
        match self.kind.levels {
            Levels::Integers { zero } => zero,
            _ => 0,
        }
    }

    /// Values of codes, if they are a table.
    pub(super) fn table(&self) -> Option<[f32; 16]> {
        match &self.kind.levels {
            Levels::Table(table) => Some(*table.0),
            _ => None,
        }
    }

    /// Whether groups have a zero or a minimum.
    pub(super) fn has_offsets(&self) -> bool {
        matches!(self.kind.levels, Levels::Zeros | Levels::Minima)
    }

    fn k(&self) -> usize {
        self.rows.num_columns()
    }

    fn num_inputs(&self) -> usize {
        self.k().next_multiple_of(BLOCK_INPUTS)
    }

    /// Inputs that share a scale in the order of kernels: a part of those that do in the source.
    fn group(&self) -> usize {
        let group = self.kind.group_of(self.k());
        let is_one = group >= self.k();
        let sizes = [BLOCK_INPUTS, 64, 32];
        let found = sizes.into_iter().find(|&size| is_one || group.is_multiple_of(size));
        found.unwrap_or(16)
    }

    /// Inputs of a unit of codes.
    fn unit(&self) -> usize {
        UNIT_BYTES / self.defines().bits as usize
    }

    /// Bytes of all codes.
    pub(super) fn code_bytes(&self) -> usize {
        self.n.div_ceil(STRIP) * (self.num_inputs() / self.unit()) * UNIT_BYTES
    }

    /// Scales of all strips; as many offsets.
    pub(super) fn num_scales(&self) -> usize {
        self.n.div_ceil(STRIP) * (self.num_inputs() / self.group()) * STRIP
    }

    /// Bytes of all.
    pub(super) fn num_bytes(&self) -> usize {
        let kinds_of_scales = 1 + usize::from(self.has_offsets());
        self.code_bytes() + kinds_of_scales * self.num_scales() * self.defines().scale.size_bytes()
    }

    /// The codes of a row, and which stored row it is.
    fn coded(&self, row: usize) -> (&dyn CodedMatrix, usize) {
        let (matrix, row) = self.rows.locate(self.first + row);
        matrix.coded(row).expect("all rows of a run have codes")
    }

    /// Codes from byte `offset` on.
    ///
    /// # Panics
    /// It is not of whole units.
    pub(super) fn write_codes(&self, offset: usize, out: &mut [u8]) {
        assert!(offset.is_multiple_of(UNIT_BYTES) && out.len().is_multiple_of(UNIT_BYTES));
        let (k, unit) = (self.k(), self.unit());
        let units_of_strip = self.num_inputs() / unit;
        let (mut at, end) = (offset / UNIT_BYTES, (offset + out.len()) / UNIT_BYTES);
        let mut codes = vec![0; STRIP * self.num_inputs()];
        while at < end {
            let (strip, first) = (at / units_of_strip, at % units_of_strip);
            let units = first..units_of_strip.min(first + end - at);
            let columns = (units.start * unit).min(k)..(units.end * unit).min(k);
            let width = units.len() * unit;
            let codes = &mut codes[..STRIP * width];
            codes.fill(0);
            for (index, codes) in codes.chunks_exact_mut(width).enumerate() {
                if strip * STRIP + index < self.n {
                    let (coded, row) = self.coded(strip * STRIP + index);
                    coded.read_codes(row, columns.clone(), &mut codes[..columns.len()]);
                }
            }
            let start = at * UNIT_BYTES - offset;
            let out = &mut out[start..start + units.len() * UNIT_BYTES];
            for (index, out) in out.chunks_exact_mut(UNIT_BYTES).enumerate() {
                let code =
                    |output: usize, input: usize| codes[output * width + index * unit + input];
                match unit {
                    64 => write_unit(out, &code, word_of_4_bits),
                    _ => write_unit(out, &code, word_of_8_bits),
                }
            }
            at += units.len();
        }
    }

    /// Scales, or offsets, from element `first` on, as little-endian elements of `defines().scale`.
    pub(super) fn write_scales(&self, of_offsets: bool, first: usize, out: &mut [u8]) {
        let (dtype, group) = (self.defines().scale, self.group());
        let size = dtype.size_bytes();
        let of_strip = self.num_inputs() / group * STRIP;
        let (mut at, end) = (first, first + out.len() / size);
        while at < end {
            let strip = at / of_strip;
            let rows: Vec<_> = (strip * STRIP..(strip + 1) * STRIP)
                .map(|row| if row < self.n { self.row_values(row, of_offsets) } else { Vec::new() })
                .collect();
            let until = end.min((strip + 1) * of_strip);
            for index in at..until {
                let (input, lane) = (index % of_strip / STRIP * group, index % STRIP);
                let group = input / self.kind.group_of(self.k());
                let value = rows[lane].get(group).copied().unwrap_or(0.0);
                let bytes = &mut out[(index - first) * size..][..size];
                match dtype {
                    DType::Float32 => bytes.copy_from_slice(&value.to_le_bytes()),
                    DType::BFloat16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                    DType::Float16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
                }
            }
            at = until;
        }
    }

    /// The scales of a row's groups, or their offsets: exact.
    fn row_values(&self, row: usize, of_offsets: bool) -> Vec<f32> {
        let num_groups = self.k().div_ceil(self.kind.group_of(self.k()));
        let has_supers = matches!(self.kind.scales, Scales::Super { .. });
        let num_supers = if has_supers { self.k().div_ceil(SUPER_GROUP) } else { 0 };
        let has_minima = self.kind.levels == Levels::Minima;
        let mut scales = vec![0; num_groups];
        let mut offsets = vec![0; if self.has_offsets() { num_groups } else { 0 }];
        let mut supers = vec![0; num_supers];
        let mut super_minima = vec![0; if has_minima { num_supers } else { 0 }];
        let (coded, row) = self.coded(row);
        coded.read_scales(
            row,
            RowScales {
                scales: &mut scales,
                offsets: &mut offsets,
                supers: &mut supers,
                super_minima: &mut super_minima,
            },
        );
        if of_offsets && !has_minima {
            // The kernel makes pairs of weights of 4 bits with integers below 2^7.
            assert!(self.kind.bits > 4 || offsets.iter().all(|&zero| zero < 128), "a zero");
            return offsets.into_iter().map(|zero| zero as f32).collect();
        }
        let (values, supers) = if of_offsets { (offsets, super_minima) } else { (scales, supers) };
        let widen = |(group, bits): (usize, u32)| match &self.kind.scales {
            Scales::Float32 => f32::from_bits(bits),
            Scales::Float16 => f16::from_bits(bits as u16).to_f32(),
            Scales::BFloat16 => bf16::from_bits(bits as u16).to_f32(),
            Scales::Table(table) => table.0[bits as usize],
            Scales::Super { signed } => {
                let is_signed = *signed && !of_offsets;
                let byte = bits as u8;
                let inner = if is_signed { f32::from(byte as i8) } else { f32::from(byte) };
                let outer = supers[group * self.kind.group_of(self.k()) / SUPER_GROUP];
                f16::from_bits(outer).to_f32() * inner
            }
        };
        values.into_iter().enumerate().map(widen).collect()
    }
}

fn is_bfloat16(value: f32) -> bool {
    value.is_nan() || bf16::from_f32(value).to_f32().to_bits() == value.to_bits()
}

/// A unit of codes, `code(output, input)` each, by the words of its lanes.
fn write_unit(
    out: &mut [u8],
    code: &impl Fn(usize, usize) -> u8,
    word_of: impl Fn(usize, &dyn Fn(usize) -> u32) -> u32,
) {
    for (lane, out) in out.chunks_exact_mut(8).enumerate() {
        // Inputs of a lane by step, pair and place: two of each pair follow each other.
        let input = |index: usize| -> u32 {
            let (step, pair, place) = (index / 4, index / 2 % 2, index % 2);
            code(lane / 4, step * STEP + pair * 8 + lane % 4 * 2 + place).into()
        };
        for (word, out) in out.chunks_exact_mut(4).enumerate() {
            out.copy_from_slice(&word_of(word, &input).to_le_bytes());
        }
    }
}

/// Two steps: the first input of a pair in the low half, the second in the high one.
fn word_of_4_bits(word: usize, input: &dyn Fn(usize) -> u32) -> u32 {
    (0..8).fold(0, |bits, index| bits | input(8 * word + index) << (index / 2 * 4 + index % 2 * 16))
}

/// One step.
fn word_of_8_bits(word: usize, input: &dyn Fn(usize) -> u32) -> u32 {
    (0..4).fold(0, |bits, index| bits | input(4 * word + index) << (index * 8))
}
