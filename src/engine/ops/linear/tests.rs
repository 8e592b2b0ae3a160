//! Every path against a naive loop; a row alone and among others.

use super::*;
use crate::engine::device::simd::Isa;

const DTYPES: [DType; 3] = [DType::Float32, DType::BFloat16, DType::Float16];

fn random(len: usize, seed: u64) -> Vec<f32> {
    let source = SourceMatrix::random(1, len, seed, 1.0);
    source.to_vec()
}

fn check(isa: Isa, dtype: DType, m: usize, n: usize, k: usize) {
    let device = Device::cpu_with_isa(2, isa);
    let split = n / 3;
    let parts =
        [SourceMatrix::random(split, k, 1, 1.0), SourceMatrix::random(n - split, k, 2, 1.0)];
    let parts = if split == 0 { parts[1..].to_vec() } else { parts.to_vec() };
    let bias = random(n, 3);
    let weight = LinearWeight::load(&device, dtype, &parts.into(), Some(bias.clone())).unwrap();
    let x = Tensor::from_vec(random(m * k, 4), k);
    let mut out = Tensor::zeros(m + 1, n);
    linear(&device, &x, &weight, &mut out);
    let mut w_row = vec![0.0; k];
    for (column, bias) in bias.iter().enumerate() {
        weight.copy_row(column, &mut w_row);
        for row in 0..m {
            let input = |i: usize| match (isa, dtype) {
                (Isa::Avx512Bf16, DType::BFloat16) => bf16::from_f32(x.row(row)[i]).to_f32(),
                _ => x.row(row)[i],
            };
            let exact: f64 = (0..k).map(|i| f64::from(input(i)) * f64::from(w_row[i])).sum();
            let got = f64::from(out.row(row)[column]);
            let expected = exact + f64::from(*bias);
            assert!((got - expected).abs() < 1e-4, "{isa:?} {dtype:?} {m}x{n}x{k}");
        }
    }
}

#[test]
fn agrees_with_a_naive_loop_over_tile_edges_on_every_path() {
    for isa in Isa::all_available() {
        for dtype in DTYPES {
            for (m, n, k) in
                [(1, 1, 1), (3, 5, 7), (13, 33, 16), (27, 70, 40), (100, 31, 64), (150, 33, 9)]
            {
                check(isa, dtype, m, n, k);
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        // The second one's inputs are cut for many rows, and not for one.
        for (dtype, (m, n, k)) in
            DTYPES.into_iter().flat_map(|dtype| [(dtype, (131, 75, 96)), (dtype, (20, 75, 2101))])
        {
            let parts = [SourceMatrix::random(n, k, 5, 1.0)];
            let weight = LinearWeight::load(&device, dtype, &parts.into(), None).unwrap();
            let x = Tensor::from_vec(random(m * k, 6), k);
            let mut all = Tensor::zeros(m, n);
            linear(&device, &x, &weight, &mut all);
            for row in 0..m {
                let one = Tensor::from_vec(x.row(row).to_vec(), k);
                let mut out = Tensor::zeros(1, n);
                linear(&device, &one, &weight, &mut out);
                assert_eq!(out.row(0), all.row(row), "{isa:?} {dtype:?} row {row}");
            }
        }
    }
}

#[test]
fn packing_keeps_values_of_the_same_dtype_exactly() {
    let device = Device::cpu(Some(2));
    let values: Vec<bf16> = (0..40 * 9).map(|i| bf16::from_f32(i as f32 * 0.37)).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let source = SourceMatrix::from_bytes(40, 9, DType::BFloat16, &bytes);
    let weight = LinearWeight::load(&device, DType::BFloat16, &[source].into(), None).unwrap();
    let mut row = vec![0.0; 9];
    for n in 0..40 {
        weight.copy_row(n, &mut row);
        let expected: Vec<f32> = values[n * 9..(n + 1) * 9].iter().map(|v| v.to_f32()).collect();
        assert_eq!(row, expected);
    }
}

/// Rows in int8 with their scales, by the definition.
fn int8_rows(values: &[f32], k: usize) -> Vec<(Vec<i64>, f32)> {
    let rows = values.chunks_exact(k);
    rows.map(|row| {
        let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let ints = row.iter().map(|x| (x * factor).round_ties_even() as i64).collect();
        (ints, largest / 127.0)
    })
    .collect()
}

/// Outputs of int8 layers on every instruction set, one by one.
fn int8_outputs(m: usize, n: usize, k: usize) -> Vec<Vec<f32>> {
    let source = [SourceMatrix::random(n, k, 7, 0.3)].into();
    let x = Tensor::from_vec(random(m * k, 8), k);
    let run = |isa| {
        let device = Device::cpu_with_isa(2, isa).with_int8();
        let weight = LinearWeight::load(&device, DType::Float32, &source, Some(random(n, 9)));
        let weight = weight.unwrap().quantize(&device).unwrap();
        let mut out = Tensor::zeros(m, n);
        linear(&device, &x, &weight, &mut out);
        for row in 0..m {
            let one = Tensor::from_vec(x.row(row).to_vec(), k);
            let mut alone = Tensor::zeros(1, n);
            linear(&device, &one, &weight, &mut alone);
            assert_eq!(alone.row(0), out.row(row), "{isa:?} row {row}");
        }
        out.values().to_vec()
    };
    Isa::all_available().into_iter().map(run).collect()
}

#[test]
fn int8_layers_are_what_their_integers_say_on_every_path_and_for_every_row_alone() {
    for (m, n, k) in [(1, 1, 1), (3, 5, 7), (13, 33, 16), (150, 70, 41)] {
        let outputs = int8_outputs(m, n, k);
        let weights = int8_rows(&SourceMatrix::random(n, k, 7, 0.3).to_vec(), k);
        let inputs = int8_rows(&random(m * k, 8), k);
        let bias = random(n, 9);
        for (index, got) in outputs[0].iter().enumerate() {
            let ((x, x_scale), (w, w_scale)) = (&inputs[index / n], &weights[index % n]);
            let sum: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            let expected = sum as f32 * (x_scale * w_scale) + bias[index % n];
            assert_eq!(*got, expected, "{m}x{n}x{k} at {index}");
        }
        assert!(outputs.iter().all(|other| *other == outputs[0]), "{m}x{n}x{k}");
    }
}

#[test]
fn int8_takes_rows_of_zeros_and_of_the_largest_values() {
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(1, isa).with_int8();
        let k = 64;
        let weights = vec![-1.0; 2 * k];
        let source = SourceMatrix::new(2, k, SourceValues::Slice(&weights));
        let weight = LinearWeight::load(&device, DType::Float32, &[source].into(), None).unwrap();
        let weight = weight.quantize(&device).unwrap();
        let x = Tensor::from_vec([vec![0.0; k], vec![-3.0; k]].concat(), k);
        let mut out = Tensor::zeros(2, 2);
        linear(&device, &x, &weight, &mut out);
        assert_eq!(out.row(0), [0.0; 2], "{isa:?}");
        out.row(1).iter().for_each(|y| assert!((y - 192.0).abs() < 1e-3, "{isa:?} {y}"));
    }
}

#[test]
fn int8_passes_on_what_is_no_number() {
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(1, isa).with_int8();
        let (m, n, k) = (5, 40, 37);
        // The third output has a weight that is no number, the last inputs of rows 1 to 3 are none.
        let mut weights = random(n * k, 11);
        weights[2 * k + 30] = f32::NAN;
        let source = SourceMatrix::new(n, k, SourceValues::Slice(&weights));
        let weight = LinearWeight::load(&device, DType::Float32, &[source].into(), None).unwrap();
        let weight = weight.quantize(&device).unwrap();
        let mut x = random(m * k, 12);
        for (row, value) in [(1, f32::NAN), (2, f32::INFINITY), (3, f32::NEG_INFINITY)] {
            x[row * k + k - row] = value;
        }
        let mut out = Tensor::zeros(m, n);
        linear(&device, &Tensor::from_vec(x, k), &weight, &mut out);
        for (row, column) in (0..m).flat_map(|row| (0..n).map(move |column| (row, column))) {
            let is_finite = (row == 0 || row == 4) && column != 2;
            let y = out.row(row)[column];
            assert_eq!(y.is_finite(), is_finite, "{isa:?} row {row} column {column}: {y}");
        }
    }
}

/// Gate and up in one pass, and as two ops after one another.
fn gated(device: &Device, dtype: DType, (m, inner, k): (usize, usize, usize)) -> [Vec<f32>; 2] {
    let parts = [1, 2].map(|seed| SourceMatrix::random(inner, k, seed, 0.3));
    let bias = Some(random(2 * inner, 3));
    let weight =
        LinearWeight::load(device, dtype, &parts.into(), bias).unwrap().quantize(device).unwrap();
    let x = Tensor::from_vec(random((m + 1) * k, 4), k);
    let (mut gate_up, mut out) = (Tensor::zeros(m, 2 * inner), Tensor::zeros(m, inner));
    linear_rows(device, x.rows_from(1), &weight, gate_up.rows_from_mut(0), m);
    activate_and_mul(device, Activation::Silu, &gate_up, &mut out);
    let expected = out.values().to_vec();
    let weight = (&weight, Activation::Silu);
    linear_activate_and_mul(device, x.rows_from(1), weight, (&mut gate_up, &mut out), m);
    [out.values().to_vec(), expected]
}

#[test]
fn gate_and_up_in_one_pass_give_the_bits_of_two() {
    for isa in Isa::all_available() {
        let width = 2 * isa.num_lanes();
        for int8 in [false, true] {
            let device = Device::cpu_with_isa(2, isa);
            let device = if int8 { device.with_int8() } else { device };
            // Whole panels; a half one between gate and up; inputs that are cut.
            for shape in [(1, 3 * width, 40), (150, width, 33), (3, width + 8, 20), (9, 64, 1100)] {
                for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
                    let [got, expected] = gated(&device, dtype, shape);
                    assert_eq!(got, expected, "{isa:?} {dtype:?} {shape:?} int8: {int8}");
                }
            }
        }
    }
}
