//! Every instruction set against the definition; a row alone and among others.

use super::GROUP;
use super::rotation::{block_len, rotate_lanes};
use crate::linear::{LinearWeight, linear};
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceValues};
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;
use vllm_batch_device::{Device, Tensor};

fn random(len: usize, seed: u64) -> Vec<f32> {
    SourceMatrix::random(1, len, seed, 1.0).to_vec()
}

/// A layer in int8, with weights (n, k).
fn layer(device: &Device, weights: &[f32], k: usize, bias: Option<Vec<f32>>) -> LinearWeight {
    let source = SourceMatrix::new(weights.len() / k, k, SourceValues::Slice(weights));
    let weight = LinearWeight::load(device, DType::Float32, &[source].into(), bias);
    weight.unwrap().quantize(device).unwrap()
}

/// Rows by group: integers and their scale, and the length of a block of the rotation.
fn groups(values: &[f32], k: usize) -> Vec<Vec<(Vec<i64>, f32, f32)>> {
    let group = |group: &[f32]| {
        let mut values = group.to_vec();
        rotate_lanes(&mut values, 1);
        let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let factor = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let ints = values.iter().map(|x| (x * factor).round_ties_even() as i64).collect();
        (ints, largest / 127.0, block_len(group.len()) as f32)
    };
    values.chunks_exact(k).map(|row| row.chunks(GROUP).map(group).collect()).collect()
}

/// Outputs of a layer on an instruction set, which each row has alone as well.
fn outputs(isa: Isa, (m, n, k): (usize, usize, usize)) -> Vec<f32> {
    let device = Device::cpu_with_isa(2, isa).with_int8();
    let weight = layer(&device, &random(n * k, 7), k, Some(random(n, 9)));
    let x = Tensor::from_vec(random(m * k, 8), k);
    let mut out = Tensor::zeros(m, n);
    linear(&device, &x, &weight, &mut out);
    for row in 0..m {
        let one = Tensor::from_vec(x.row(row).to_vec(), k);
        let mut alone = Tensor::zeros(1, n);
        linear(&device, &one, &weight, &mut alone);
        assert_eq!(alone.row(0), out.row(row), "{isa:?} row {row}");
    }
    out.values().to_vec()
}

#[test]
fn layers_are_what_their_integers_say_on_every_path_and_for_every_row_alone() {
    let small = [(1, 1, 1), (3, 5, 7), (13, 33, 128), (150, 70, 41), (29, 40, 352)];
    // Whole groups and last ones of 64, 192 and 80 inputs; more groups than are rotated at a time.
    let long = [(2, 33, 576), (2, 33, 192), (2, 33, 592), (3, 33, 9 * GROUP + 64)];
    for (m, n, k) in small.into_iter().chain(long) {
        let weights = groups(&random(n * k, 7), k);
        let inputs = groups(&random(m * k, 8), k);
        let bias = random(n, 9);
        let expected: Vec<f32> = (0..m * n)
            .map(|index| {
                let groups = inputs[index / n].iter().zip(&weights[index % n]);
                let by_group = groups.map(|((x, x_scale, _), (w, w_scale, block))| {
                    let sum: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
                    sum as f32 * (x_scale * (w_scale / block))
                });
                by_group.reduce(|total, group| total + group).unwrap() + bias[index % n]
            })
            .collect();
        for isa in Isa::all_available() {
            assert_eq!(outputs(isa, (m, n, k)), expected, "{isa:?} {m}x{n}x{k}");
        }
    }
}

#[test]
fn one_large_input_leaves_the_others_their_places() {
    // By one scale for all values as they are, a large one makes steps of 0.8 of the others.
    let (device, k) = (Device::cpu(Some(1)).with_int8(), 2 * GROUP);
    let weights = random(40 * k, 1);
    let weight = layer(&device, &weights, k, None);
    let mut x = random(k, 2);
    x[5] = 100.0;
    let mut out = Tensor::zeros(1, 40);
    linear(&device, &Tensor::from_vec(x.clone(), k), &weight, &mut out);
    let exact =
        weights.chunks_exact(k).map(|w| -> f32 { w.iter().zip(&x).map(|(w, x)| w * x).sum() });
    let without_large = |w: f32, y: f32| y - w * 100.0;
    let (mut error, mut size) = (0.0, 0.0);
    for ((y, exact), w) in out.row(0).iter().zip(exact).zip(weights.chunks_exact(k)) {
        let (y, exact) = (without_large(w[5], *y), without_large(w[5], exact));
        error += (y - exact).powi(2);
        size += exact.powi(2);
    }
    assert!(error < 0.03 * size, "{error} of {size}");
}

#[test]
fn rows_of_zeros_and_of_the_largest_values_are_taken() {
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(1, isa).with_int8();
        for k in [63, 64] {
            let weight = layer(&device, &vec![-1.0; 2 * k], k, None);
            let x = Tensor::from_vec([vec![0.0; k], vec![-3.0; k]].concat(), k);
            let mut out = Tensor::zeros(2, 2);
            linear(&device, &x, &weight, &mut out);
            assert_eq!(out.row(0), [0.0; 2], "{isa:?}");
            let expected = 3.0 * k as f32;
            out.row(1).iter().for_each(|y| assert!((y - expected).abs() < 1e-3, "{isa:?} {y}"));
        }
    }
}

#[test]
fn all_paths_agree_on_what_integers_cannot_say() {
    let (n, k) = (3, 320);
    let mut x = random(4 * k, 5);
    x[k - 1] = f32::INFINITY;
    x[k + 3] = f32::from_bits(0x7fc0_1234);
    x[2 * k..3 * k].iter_mut().for_each(|x| *x *= 1e-38);
    x[3 * k..].iter_mut().for_each(|x| *x *= 1e36);
    let outputs = Isa::all_available().into_iter().map(|isa| {
        let device = Device::cpu_with_isa(1, isa).with_int8();
        let weight = layer(&device, &random(n * k, 7), k, None);
        let mut out = Tensor::zeros(4, n);
        linear(&device, &Tensor::from_vec(x.clone(), k), &weight, &mut out);
        out.values().iter().map(|y| (!y.is_nan()).then_some(y.to_bits())).collect::<Vec<_>>()
    });
    let outputs: Vec<_> = outputs.collect();
    assert!(outputs[0][..2 * n].iter().all(Option::is_none), "{outputs:?}");
    assert!(outputs[0][2 * n..].iter().all(Option::is_some), "{outputs:?}");
    outputs.iter().for_each(|other| assert_eq!(other, &outputs[0]));
}

#[test]
fn what_is_no_number_is_passed_on() {
    let (m, n) = (5, 40);
    for (isa, k) in Isa::all_available().into_iter().flat_map(|isa| [(isa, 37), (isa, 320)]) {
        let device = Device::cpu_with_isa(1, isa).with_int8();
        // The third output has a weight that is no number, the last inputs of rows 1 to 3 are none.
        let mut weights = random(n * k, 11);
        weights[2 * k + 30] = f32::NAN;
        let weight = layer(&device, &weights, k, None);
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
