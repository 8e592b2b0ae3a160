//! Every path against a naive loop; a row alone and among others.

use super::*;
use vllm_batch_device::Precision;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

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
            let is_rounded = dtype == DType::BFloat16 && isa.bf16_products().take_pairs();
            let input = |i: usize| match is_rounded {
                true => bf16::from_f32(x.row(row)[i]).to_f32(),
                false => x.row(row)[i],
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

/// A tensor of this precision with these rows, and one row in front of them.
fn rows_as(device: &Device, precision: Precision, values: &[f32], k: usize) -> Tensor {
    let num_rows = values.len() / k + 1;
    let mut tensor = device.tensor(num_rows, k, precision).unwrap();
    tensor.set_num_rows(num_rows);
    let rows = SharedRows::of(&mut tensor);
    // SAFETY: there is one thread, and the tensor lives on.
    unsafe { rows.put_block((1, 0), values, k) };
    tensor
}

#[test]
fn inputs_that_are_pairs_give_the_bits_of_those_that_are_rounded() {
    let pairs = |isa: &Isa| isa.bf16_products().take_pairs();
    for isa in Isa::all_available().into_iter().filter(pairs) {
        let device = Device::cpu_with_isa(2, isa);
        for (m, inner, k) in [(1, 32, 40), (150, 64, 33), (9, 48, 1100), (17, 96, 64)] {
            let parts = [SourceMatrix::random(2 * inner, k, 1, 0.3)];
            let up = LinearWeight::load(&device, DType::BFloat16, &parts.into(), None).unwrap();
            let parts = [SourceMatrix::random(21, inner, 2, 0.3)];
            let down = LinearWeight::load(&device, DType::BFloat16, &parts.into(), None).unwrap();
            let x = random(m * k, 4);
            let as_pairs = Precision::LinearInput(DType::BFloat16);
            let [expected, got, of_two] =
                [(Precision::Full, true), (as_pairs, true), (as_pairs, false)].map(
                    |(precision, in_one_pass)| {
                        let x = rows_as(&device, precision, &x, k);
                        let mut gate_up = Tensor::zeros(m, 2 * inner);
                        let mut inputs = device.tensor(m, inner, precision).unwrap();
                        let input = x.rows_from(1);
                        if in_one_pass {
                            let (weight, out) =
                                ((&up, Activation::Silu), (&mut gate_up, &mut inputs));
                            linear_activate_and_mul(&device, input, weight, out, m);
                        } else {
                            linear_rows(&device, input, &up, gate_up.rows_from_mut(0), m);
                            activate_and_mul(&device, Activation::Silu, &gate_up, &mut inputs);
                        }
                        assert_eq!(inputs.pairs().is_some(), precision == as_pairs);
                        let mut out = Tensor::zeros(m, 21);
                        linear(&device, &inputs, &down, &mut out);
                        out.values().to_vec()
                    },
                );
            assert_eq!(got, expected, "{isa:?}, {m} rows of {k} by {inner}");
            assert_eq!(of_two, expected, "{isa:?}, {m} rows of {k} by {inner}");
        }
    }
}
