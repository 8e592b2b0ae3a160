//! linear: bias, outputs in f32, weights and inputs narrowed to fp8.

use vllm_batch::engine::base::config::{DType, Quantization};
use vllm_batch::engine::base::matrix::{SourceMatrix, SourceValues};
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::{LinearWeight, linear};

use crate::cuda_ops::pair::{Both, Pair, Rows, in_every_dtype, output};

/// Sums of tensor cores, of terms that add up to a few units.
const SUMS: f32 = 3e-5;
/// Sums of fp8 tensor cores, which keep fewer bits of what they add up.
const FP8_SUMS: f32 = 2e-3;

struct Case {
    n: usize,
    k: usize,
    num_rows: usize,
    has_bias: bool,
    output: Precision,
}

const fn case(n: usize, k: usize, num_rows: usize, has_bias: bool, output: Precision) -> Case {
    Case { n, k, num_rows, has_bias, output }
}

const CASES: [Case; 7] = [
    case(48, 16, 1, false, Precision::Activation),
    case(96, 64, 129, true, Precision::Activation),
    case(1000, 96, 33, false, Precision::Full),
    case(64, 576, 17, true, Precision::Activation),
    case(576, 1000, 2, false, Precision::Activation),
    case(64, 4096, 16, false, Precision::Full),
    case(4096, 48, 15, false, Precision::Activation),
];

/// Weights of variance 1 / k, so that outputs are as large as inputs.
fn weights(pair: &Pair, case: &Case, narrows: bool) -> Both<LinearWeight> {
    let scale = (3.0 / case.k as f32).sqrt();
    let split = case.n / 3;
    let parts = [split, case.n - split].map(|n| pair.values(n, case.k, n as u64, scale));
    let bias = case.has_bias.then(|| pair.values(1, case.n, 60, 1.0).values);
    let narrowed = parts.each_ref().map(narrowed);
    pair.on_both(|device| {
        // The CPU has the values that the GPU has after narrowing.
        let is_cpu = matches!(device, Device::Cpu(_));
        let (parts, dtype) = match is_cpu && narrows {
            true => (&narrowed, DType::Float32),
            false => (&parts, pair.dtype),
        };
        let parts = parts.each_ref().map(|rows| {
            let num_rows = rows.values.len() / case.k;
            SourceMatrix::new(num_rows, case.k, SourceValues::Slice(&rows.values))
        });
        let weight = LinearWeight::load(device, dtype, &parts.into(), bias.clone());
        let weight = weight.and_then(|weight| weight.quantize(device)).expect("memory");
        let output = match case.output {
            Precision::Full => DType::Float32,
            _ => device.activation_dtype(),
        };
        // As many rows as the test asks for: a row is computed up to three times.
        weight.prepare(device, output, case.num_rows.max(3)).expect("algorithms");
        weight
    })
}

/// What rows are after E4M3 with a scale per row.
fn narrowed(rows: &Rows) -> Rows {
    let narrow_row = |row: &[f32]| -> Vec<f32> {
        let absmax = row.iter().fold(0.0f32, |max, value| max.max(value.abs()));
        let scale = if absmax == 0.0 { 1.0 } else { absmax / 448.0 };
        row.iter().map(|value| e4m3(value / scale) * scale).collect()
    };
    let values = rows.values.chunks(rows.width).flat_map(narrow_row).collect();
    Rows { values, width: rows.width }
}

/// The nearest E4M3 number, ties to even (Micikevicius et al., 2022).
fn e4m3(value: f32) -> f32 {
    let exponent = value.abs().log2().floor().clamp(-6.0, 8.0);
    let unit = (exponent - 3.0).exp2();
    (value / unit).round_ties_even() * unit
}

fn check(pair: &Pair, case: &Case, narrows: bool) {
    let weights = weights(pair, case, narrows);
    let x = pair.values(case.num_rows, case.k, 61, 1.7);
    let narrow_x = narrowed(&x);
    let what = format!("linear, n {}, k {}, fp8 {narrows}", case.n, case.k);
    let slack = if narrows { FP8_SUMS } else { SUMS };
    pair.check(&what, case.num_rows, slack, &|device, rows| {
        let is_cpu = matches!(device, Device::Cpu(_));
        let x = if is_cpu && narrows { &narrow_x } else { &x };
        let mut out = output(device, rows.len(), case.n, case.output);
        linear(device, &x.activations(device, rows), weights.of(device), &mut out);
        vec![out]
    });
}

#[test]
fn linear_with_and_without_bias_in_both_precisions() {
    in_every_dtype(600, |pair| CASES.iter().for_each(|case| check(pair, case, false)));
}

#[test]
fn quantize_rows_narrows_weights_and_inputs_of_linear() {
    for (dtype, seed) in [(DType::BFloat16, 610), (DType::Float16, 620)] {
        let Some(pair) = Pair::open(dtype, seed, Some(Quantization::Fp8)) else { return };
        // Other widths are refused.
        let fits = |case: &&Case| case.n.is_multiple_of(16) && case.k.is_multiple_of(16);
        for case in CASES.iter().filter(fits) {
            check(&pair, case, true);
        }
    }
}
