//! Panels of codes against panels of the floats that the codes stand for, bit by bit.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};

use super::{CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales, Table};
use crate::engine::config::DType;
use crate::engine::device::simd::Isa;
use crate::engine::device::split_mix::mix;
use crate::engine::device::{Device, Tensor};
use crate::engine::ops::activation::Activation;
use crate::engine::ops::linear::{
    LinearWeight, QuantizedMatrix, SourceMatrix, SourceRows, SourceValues, linear,
    linear_activate_and_mul,
};

/// Codes and scales that are functions of their place.
#[derive(Clone, Debug)]
struct MadeUp {
    kind: CodeKind,
    k: usize,
    /// Whether a device hears of the codes.
    tells: bool,
}

impl MadeUp {
    fn random(&self, row: usize, column: usize, salt: u64) -> u32 {
        (mix(salt << 40 | (row as u64) << 20 | column as u64) >> 20) as u32
    }

    fn code(&self, row: usize, column: usize) -> u8 {
        let code = (self.random(row, column, 1) & ((1 << self.kind.bits) - 1)) as u8;
        match self.kind.levels {
            // No NaN.
            Levels::Float8 if code & 0x7f == 0x7f => 0x01,
            _ => code,
        }
    }

    /// Bits of the scale of a group, and the f32 that they stand for.
    fn scale(&self, row: usize, group: usize, salt: u64) -> (u32, f32) {
        let random = self.random(row, group, salt);
        let value = (random & 0xffff) as f32 / 65_536.0 - 0.5;
        match &self.kind.scales {
            Scales::Float32 => (value.to_bits(), value),
            Scales::Float16 => {
                let value = f16::from_f32(value);
                (value.to_bits().into(), value.to_f32())
            }
            Scales::BFloat16 => {
                let value = bf16::from_f32(value);
                (value.to_bits().into(), value.to_f32())
            }
            Scales::Table(table) => (random & 0xff, table.0[random as usize & 0xff]),
            Scales::Super { signed } => {
                let byte = (random & 0xff) as u8;
                let inner = match *signed && salt == SCALE {
                    true => f32::from(byte as i8),
                    false => f32::from(byte & 0x3f),
                };
                let column = group * self.kind.group_of(self.k);
                let outer = self.outer(row, column / SUPER_GROUP, salt).to_f32();
                let bits = if *signed && salt == SCALE { byte } else { byte & 0x3f };
                (bits.into(), outer * inner)
            }
        }
    }

    fn outer(&self, row: usize, index: usize, salt: u64) -> f16 {
        f16::from_f32((self.random(row, index, salt + 10) & 0xff) as f32 / 4096.0)
    }

    fn zero(&self, row: usize, group: usize) -> u8 {
        (self.random(row, group, 4) & ((1 << self.kind.bits) - 1)) as u8
    }
}

const SCALE: u64 = 2;
const MINIMUM: u64 = 3;

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

/// Every number of bits, way to a level, and way to hold a scale.
fn kinds() -> Vec<CodeKind> {
    let integers = |zero| Levels::Integers { zero };
    let doubled = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
    let fp4 =
        Table(Arc::new(std::array::from_fn(|i| doubled[i % 8] * if i < 8 { 1.0 } else { -1.0 })));
    let powers = Table(Arc::new(std::array::from_fn(|i| (i as f32 / 16.0 - 8.0).exp2())));
    let all = [
        (2, integers(2), 64, Scales::Float16),
        (3, integers(4), 16, Scales::Super { signed: true }),
        (3, Levels::Zeros, 128, Scales::Float16),
        (4, integers(8), 32, Scales::Float16),
        (4, Levels::Zeros, 128, Scales::BFloat16),
        (4, Levels::Minima, 32, Scales::Float16),
        (4, Levels::Minima, 32, Scales::Super { signed: false }),
        (4, Levels::Table(fp4.clone()), 32, Scales::Table(powers.clone())),
        (4, Levels::Table(fp4), 16, Scales::Table(powers)),
        (5, integers(16), 32, Scales::Float16),
        (5, Levels::Minima, 32, Scales::Super { signed: false }),
        (2, Levels::Minima, 16, Scales::Super { signed: false }),
        (6, integers(32), 16, Scales::Super { signed: true }),
        (8, integers(128), 32, Scales::Float16),
        (8, integers(128), usize::MAX / 64 * 32, Scales::Float32),
        (8, Levels::Zeros, 96, Scales::Float32),
        (8, Levels::Float8, 128, Scales::Float32),
    ];
    let kind = |(bits, levels, group, scales)| CodeKind { bits, levels, group, scales };
    all.map(kind).into()
}

/// The same matrix as codes, and as floats only.
fn both(kind: &CodeKind, (n, k): (usize, usize)) -> [SourceMatrix<'static>; 2] {
    [true, false].map(|tells| {
        let made_up = MadeUp { kind: kind.clone(), k, tells };
        SourceMatrix::new(n, k, SourceValues::Quantized(Arc::new(made_up)))
    })
}

fn inputs(num_rows: usize, k: usize) -> Tensor {
    Tensor::from_vec(SourceMatrix::random(num_rows, k, 8, 1.0).to_vec(), k)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Rows by two weights that have the same values: the bits of all outputs and of the weights.
fn assert_same(device: &Device, weights: &[LinearWeight; 2], num_rows: usize, what: &str) {
    let [narrow, dense] = weights;
    let (n, k) = (narrow.n, narrow.k);
    let x = inputs(num_rows, k);
    let [got, expected] = [narrow, dense].map(|weight| {
        let mut out = Tensor::zeros(num_rows, n);
        linear(device, &x, weight, &mut out);
        bits(out.values())
    });
    assert!(got == expected, "{what}: {num_rows} rows");
    let mut rows = [vec![0.0; k], vec![0.0; k]];
    for row in [0, n / 2, n - 1] {
        narrow.copy_row(row, &mut rows[0]);
        dense.copy_row(row, &mut rows[1]);
        assert!(bits(&rows[0]) == bits(&rows[1]), "{what}: row {row}");
    }
}

#[test]
fn codes_of_every_kind_give_the_bits_of_their_floats() {
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        for kind in kinds() {
            // Edges of lanes, units, groups and pairs.
            let k = if matches!(kind.scales, Scales::Super { .. }) { 296 } else { 135 };
            check_kind(&device, &kind, (40, k), &[1, 3, 14]);
        }
        // Inputs that are cut.
        check_kind(&device, &kinds()[5], (33, 1056), &[1, 31]);
    }
}

/// Products of an (n, k) matrix of codes, with such numbers of rows.
fn check_kind(device: &Device, kind: &CodeKind, shape: (usize, usize), num_rows: &[usize]) {
    let bias = Some(SourceMatrix::random(1, shape.0, 3, 1.0).to_vec());
    for dtype in [DType::Float32, DType::BFloat16] {
        let sources = both(kind, shape);
        let [foreseen, none] = sources.each_ref().map(SourceMatrix::code_bytes);
        assert!(none.is_none() && sources.iter().all(SourceMatrix::is_quantized));
        let weights = sources.map(|source| {
            LinearWeight::load(device, dtype, &[source].into(), bias.clone()).unwrap()
        });
        for &num_rows in num_rows {
            let what = format!("{} {dtype:?} {kind:?}", device.kernel_set());
            assert_same(device, &weights, num_rows, &what);
        }
        let [narrow, dense] = weights.map(|weight| weight.num_bytes());
        assert!(narrow < dense, "{kind:?}: {narrow} of {dense} bytes");
        // Panels of half the width have fewer lanes to spare.
        assert!(foreseen.is_some_and(|bytes| bytes >= narrow), "{kind:?}: {foreseen:?} bytes");
    }
}

#[test]
fn float16_computes_with_the_floats_themselves() {
    let device = Device::cpu(Some(1));
    let [narrow, dense] = both(&kinds()[3], (40, 96));
    let load = |dtype, source| LinearWeight::load(&device, dtype, &[source].into(), None).unwrap();
    let weights = [load(DType::Float16, narrow), load(DType::Float32, dense)];
    assert_same(&device, &weights, 5, "float16");
}

#[test]
fn rows_of_several_kinds_share_a_layer() {
    let kinds = kinds();
    let (k, plain) = (128, SourceMatrix::random(50, 128, 4, 1.0));
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        for dtype in [DType::Float32, DType::BFloat16] {
            let first = both(&kinds[3], (100, k));
            let second = both(&kinds[9], (64, k));
            let parts = |index: usize| {
                let matrices = [first[index].clone(), second[index].clone(), plain.clone()];
                let reversed: Vec<u32> = (0..214).rev().collect();
                SourceRows::from(matrices).in_order(Some(reversed.into()))
            };
            let weights =
                [0, 1].map(|i| LinearWeight::load(&device, dtype, &parts(i), None).unwrap());
            assert_same(&device, &weights, 9, &format!("{isa:?} {dtype:?}"));
        }
    }
}

#[test]
fn gate_and_up_of_codes_give_the_bits_of_their_floats() {
    let kind = &kinds()[6];
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        for (dtype, k) in [(DType::Float32, 256), (DType::BFloat16, 256), (DType::BFloat16, 1280)] {
            let [got, expected] = both(kind, (128, k)).map(|source| {
                let weight = LinearWeight::load(&device, dtype, &[source].into(), None).unwrap();
                let (mut gate_up, mut out) = (Tensor::zeros(20, 128), Tensor::zeros(20, 64));
                let x = inputs(20, k);
                let tensors = (&mut gate_up, &mut out);
                let weight = (&weight, Activation::Silu);
                linear_activate_and_mul(&device, x.rows_from(0), weight, tensors, 20);
                bits(out.values())
            });
            assert!(got == expected, "{isa:?} {dtype:?} {k}");
        }
    }
}

#[test]
fn floats_of_8_bits_that_are_no_number_stay_none() {
    #[derive(Debug)]
    struct Nan(MadeUp);
    impl QuantizedMatrix for Nan {
        fn read_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
            self.0.read_row(row, columns.clone(), out);
            if row == 3 && columns.contains(&5) {
                out[5 - columns.start] = f32::NAN;
            }
        }
        fn codes(&self) -> Option<&dyn CodedMatrix> {
            Some(self)
        }
    }
    impl CodedMatrix for Nan {
        fn kind(&self) -> CodeKind {
            self.0.kind()
        }
        fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]) {
            self.0.read_codes(row, columns, out);
            if row == 3 {
                out[5] = 0xff;
            }
        }
        fn read_scales(&self, row: usize, out: RowScales<'_>) {
            self.0.read_scales(row, out);
        }
    }
    let device = Device::cpu(Some(1));
    let kind = kinds().pop().expect("the last one is of floats");
    let values = SourceValues::Quantized(Arc::new(Nan(MadeUp { kind, k: 64, tells: true })));
    let source = SourceMatrix::new(80, 64, values);
    let weight = LinearWeight::load(&device, DType::Float32, &[source].into(), None).unwrap();
    let mut out = Tensor::zeros(1, 80);
    linear(&device, &inputs(1, 64), &weight, &mut out);
    let nan: Vec<usize> = (0..80).filter(|&n| out.row(0)[n].is_nan()).collect();
    assert_eq!(nan, [3]);
}
