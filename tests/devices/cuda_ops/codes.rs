//! linear over codes: each tile against the same layer with its weights widened.

use std::sync::Arc;

use vllm_batch::engine::base::config::{DType, Quantization};
use vllm_batch::engine::base::matrix::{
    CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales, Table,
};
use vllm_batch::engine::base::matrix::{QuantizedMatrix, SourceMatrix, SourceRows, SourceValues};
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::{LinearWeight, linear};

use crate::cuda_ops::pair::{Pair, Rows, output, rounded, to_bits};
use crate::gpu;
use made_up::MadeUp;

#[path = "../../../src/engine/ops/linear/codes/tests/made_up.rs"]
mod made_up;

/// Sums of matrix units, of terms that add up to a few units.
const SUMS: f32 = 3e-5;

/// Kinds by what kernels are compiled for: as GPTQ, AWQ, MXFP4, Q8_0, fp8 by blocks, Q4_K, Q6_K.
pub fn kinds() -> [(CodeKind, DType); 8] {
    let doubled = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];
    let fp4 = std::array::from_fn(|i| doubled[i % 8] * if i < 8 { 0.5 } else { -0.5 });
    let powers = std::array::from_fn(|i| (i as f32 / 32.0 - 13.0).floor().exp2());
    let (fp4, powers) = (Table(Arc::new(fp4)), Table(Arc::new(powers)));
    let (bf16, f16) = (DType::BFloat16, DType::Float16);
    let (minima, integers) = (Levels::Minima, |zero| Levels::Integers { zero });
    [
        (4, integers(8), 128, Scales::Float16, f16),
        (4, Levels::Zeros, 64, Scales::BFloat16, bf16),
        (4, Levels::Table(fp4), 32, Scales::Table(powers), bf16),
        (8, integers(128), 32, Scales::Float16, bf16),
        (8, Levels::Float8, 128, Scales::Float32, bf16),
        (4, minima, 32, Scales::Super { signed: false }, bf16),
        (6, integers(32), 16, Scales::Super { signed: true }, f16),
        // A scale for all inputs, and a kind of fewer bits than kernels have.
        (3, Levels::Zeros, usize::MAX / 64 * 32, Scales::Float32, f16),
    ]
    .map(|(bits, levels, group, scales, dtype)| (CodeKind { bits, levels, group, scales }, dtype))
}

pub fn coded(kind: &CodeKind, shape: (usize, usize)) -> SourceMatrix<'static> {
    MadeUp::matrix(kind, shape, true)
}

/// The values of a layer, each rounded to the type that it computes in.
fn widened(parts: &[SourceMatrix<'_>], dtype: DType) -> Vec<f32> {
    parts.iter().flat_map(|part| part.to_vec()).map(|value| rounded(value, dtype)).collect()
}

pub fn load(
    device: &Device,
    dtype: DType,
    rows: &SourceRows<'_>,
    bias: Option<&Vec<f32>>,
) -> LinearWeight {
    let weight = LinearWeight::load(device, dtype, rows, bias.cloned());
    let weight = weight.and_then(|weight| weight.quantize(device)).expect("memory");
    weight.prepare(device, device.activation_dtype(), 8).expect("algorithms");
    device.finish_loading().expect("weights arrive");
    weight
}

/// The layer of `parts` over `num_rows` rows, which go to `precision`: close to the CPU's with the
/// same values, and the same bits for a row alone, which other tiles compute. On the shim, the
/// bits of the layer of widened weights too: there both sum upward.
fn check(
    pair: &Pair,
    what: &str,
    parts: &[SourceMatrix<'static>],
    num_rows: usize,
    precision: Precision,
) {
    let (n, k) = (parts.iter().map(|part| part.num_rows).sum(), parts[0].num_columns);
    let bias = (num_rows % 2 == 1).then(|| pair.values(1, n, 60, 1.0).values);
    let values = widened(parts, pair.dtype);
    let wide = [SourceMatrix::new(n, k, SourceValues::Slice(&values))].into();
    let narrow = load(&pair.gpu, pair.dtype, &parts.to_vec().into(), bias.as_ref());
    assert!(narrow.num_bytes() < 2 * n * k, "{what}: {} bytes", narrow.num_bytes());
    let reference = load(&pair.cpu, DType::Float32, &wide, bias.as_ref());
    let x = pair.values(num_rows, k, 61, 1.7);
    let apply = |device: &Device, weight: &LinearWeight, rows: &[usize]| {
        let mut out = output(device, rows.len(), n, precision);
        linear(device, &x.activations(device, rows), weight, &mut out);
        out
    };
    pair.check(what, num_rows, SUMS, &|device, rows| match device {
        Device::Cpu(_) => vec![apply(device, &reference, rows)],
        Device::Cuda(_) => vec![apply(device, &narrow, rows)],
    });
    let twin = load(&pair.gpu, pair.dtype, &wide, bias.as_ref());
    let output_dtype = match precision {
        Precision::Full => DType::Float32,
        _ => pair.dtype,
    };
    twin.prepare(&pair.gpu, output_dtype, num_rows).expect("algorithms");
    let all: Vec<usize> = (0..num_rows).collect();
    let [got, expected] = [&narrow, &twin].map(|weight| {
        to_bits(&pair.gpu.read(&apply(&pair.gpu, weight, &all)).expect("the device works"))
    });
    if gpu::is_real() {
        // cuBLASLt's order of sums is its own.
        let different = got.iter().zip(&expected).filter(|(got, expected)| got != expected).count();
        let all = got.len();
        return println!("{what}, {k} inputs: {different} of {all} are not of the widened weights");
    }
    assert!(got == expected, "{what}, {num_rows} rows: not the bits of the widened weights");
}

/// Runs every kind over layers of this size.
fn check_kinds(seed: u64, shape: (usize, usize), num_rows: usize, precision: Precision) {
    for (index, (kind, dtype)) in kinds().into_iter().enumerate() {
        let Some(pair) = Pair::open(dtype, seed + index as u64, None) else { return };
        // 256 inputs share an outer scale.
        let k = match kind.scales {
            Scales::Super { .. } => shape.1.next_multiple_of(256),
            _ => shape.1,
        };
        check(&pair, &format!("{kind:?}"), &[coded(&kind, (shape.0, k))], num_rows, precision);
    }
}

#[test]
fn linear_codes_16x32_is_linear_over_widened_weights() {
    check_kinds(800, (43, 168), 1, Precision::Activation);
    check_kinds(810, (40, 160), 16, Precision::Full);
}

#[test]
fn linear_codes_16x128_is_linear_over_widened_weights() {
    check_kinds(820, (516, 160), 3, Precision::Activation);
}

#[test]
fn linear_codes_64x32_is_linear_over_widened_weights() {
    check_kinds(830, (43, 168), 33, Precision::Activation);
}

#[test]
fn linear_codes_64x128_is_linear_over_widened_weights() {
    check_kinds(840, (516, 160), 18, Precision::Full);
}

#[test]
fn linear_codes_128x128_is_linear_over_widened_weights() {
    check_kinds(850, (516, 160), 129, Precision::Activation);
}

#[test]
fn parts_of_several_kinds_stay_narrow_side_by_side() {
    let Some(pair) = Pair::open(DType::BFloat16, 860, None) else { return };
    let [(four, _), .., (minima, _), (six, _), _] = kinds();
    let parts =
        [(&four, 40), (&minima, 9), (&six, 24), (&six, 7)].map(|(kind, n)| coded(kind, (n, 256)));
    check(&pair, "kinds", &parts, 17, Precision::Activation);
}

#[test]
fn an_order_of_rows_is_that_of_their_codes() {
    let Some(pair) = Pair::open(DType::BFloat16, 870, None) else { return };
    let (kind, _) = &kinds()[3];
    let source = coded(kind, (24, 64));
    let order: Arc<[u32]> = (0..24).map(|row| (row * 7 + 3) % 24).collect();
    let rows = SourceRows::from([source.clone()]).in_order(Some(order.clone()));
    let narrow = load(&pair.gpu, pair.dtype, &rows, None);
    let x: Rows = pair.values(5, 64, 62, 1.0);
    let apply = |weight: &LinearWeight| -> Vec<u32> {
        let mut out = output(&pair.gpu, 5, 24, Precision::Full);
        linear(&pair.gpu, &x.activations(&pair.gpu, &[0, 1, 2, 3, 4]), weight, &mut out);
        to_bits(&pair.gpu.read(&out).expect("the device works"))
    };
    let got = apply(&narrow);
    let straight = apply(&load(&pair.gpu, pair.dtype, &[source].into(), None));
    for (got, straight) in got.chunks(24).zip(straight.chunks(24)) {
        let expected: Vec<u32> = order.iter().map(|&row| straight[row as usize]).collect();
        assert_eq!(got, expected);
    }
}

#[test]
fn float32_fp8_and_tables_hold_values_in_place_of_codes() {
    let (kind, _) = &kinds()[3];
    let rows = SourceRows::from([coded(kind, (16, 64))]);
    let num_values = 16 * 64;
    let held = |dtype, quantization| {
        let pair = Pair::open(dtype, 880, quantization)?;
        let weight = load(&pair.gpu, dtype, &rows, None);
        Some((weight.num_bytes(), pair.gpu.kernel_set().contains("-codes")))
    };
    let Some(of_float32) = held(DType::Float32, None) else { return };
    assert_eq!(of_float32, (4 * num_values, false));
    // E4M3, with a scale for each of 16 outputs.
    let of_fp8 = held(DType::BFloat16, Some(Quantization::Fp8));
    assert_eq!(of_fp8, Some((num_values + 64, false)));
    // Bytes, inputs filled up to 128, with scales of 2 bytes for each 32.
    let of_codes = held(DType::BFloat16, None);
    assert_eq!(of_codes, Some((2 * num_values + 2 * 16 * 4, true)));

    let Some(pair) = Pair::open(DType::BFloat16, 881, None) else { return };
    let table = LinearWeight::load_values(&pair.gpu, DType::BFloat16, &rows, None).expect("memory");
    assert_eq!(table.num_bytes(), 2 * num_values);
}
