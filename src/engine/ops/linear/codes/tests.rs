//! Panels of codes against panels of the floats that the codes stand for, bit by bit.

use std::ops::Range;
use std::sync::Arc;
use vllm_batch_device::simd::InstructionSet;

use super::num_bytes;
use crate::linear::{LinearWeight, linear, linear_activate_and_mul};
use made_up::MadeUp;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::Activation;
use vllm_batch_base::matrix::{
    CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales, Table,
};
use vllm_batch_base::matrix::{QuantizedMatrix, SourceMatrix, SourceRows, SourceValues};
use vllm_batch_device::simd::Isa;
use vllm_batch_device::{Device, Tensor};

mod made_up;

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
fn both(kind: &CodeKind, shape: (usize, usize)) -> [SourceMatrix<'static>; 2] {
    [true, false].map(|tells| MadeUp::matrix(kind, shape, tells))
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
            // Whole units, which few rows are multiplied by as they are widened.
            check_kind(&device, &kind, (40, k.next_multiple_of(32)), &[1, 2, 4, 5]);
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
        let [foreseen, none] = sources.each_ref().map(num_bytes);
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
            for num_rows in [1, 3, 9] {
                assert_same(&device, &weights, num_rows, &format!("{isa:?} {dtype:?}"));
            }
        }
    }
}

#[test]
fn gate_and_up_of_codes_give_the_bits_of_their_floats() {
    let kind = &kinds()[6];
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        let cases = [(DType::Float32, 256), (DType::BFloat16, 256), (DType::BFloat16, 1280)];
        for ((dtype, k), num_rows) in cases.into_iter().flat_map(|case| [(case, 20), (case, 3)]) {
            let [got, expected] = both(kind, (128, k)).map(|source| {
                let weight = LinearWeight::load(&device, dtype, &[source].into(), None).unwrap();
                let (mut gate_up, mut out) =
                    (Tensor::zeros(num_rows, 128), Tensor::zeros(num_rows, 64));
                let x = inputs(num_rows, k);
                let tensors = (&mut gate_up, &mut out);
                let weight = (&weight, Activation::Silu);
                linear_activate_and_mul(&device, x.rows_from(0), weight, tensors, num_rows);
                bits(out.values())
            });
            assert!(got == expected, "{isa:?} {dtype:?} {k} {num_rows}");
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
    let values = SourceValues::Quantized(Arc::new(Nan(MadeUp::new(&kind, 64, true))));
    let source = SourceMatrix::new(80, 64, values);
    let weight = LinearWeight::load(&device, DType::Float32, &[source].into(), None).unwrap();
    let mut out = Tensor::zeros(1, 80);
    linear(&device, &inputs(1, 64), &weight, &mut out);
    let nan: Vec<usize> = (0..80).filter(|&n| out.row(0)[n].is_nan()).collect();
    assert_eq!(nan, [3]);
}
