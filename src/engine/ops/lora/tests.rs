//! Against a naive loop; a row alone and among others; what has no adapter is not touched.

use super::*;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

fn random(len: usize, seed: u64) -> Vec<f32> {
    SourceMatrix::random(1, len, seed, 1.0).to_vec()
}

/// Two parts of ranks 3 and 8, of outputs 0..n1 and n1 + 5..n.
fn parts(k: usize, n1: usize, n: usize) -> Vec<LoraPart> {
    let part = |seed: u64, rank: usize, first_output: usize, num_outputs: usize| LoraPart {
        a: random(rank * k, seed),
        b: random(num_outputs * rank, seed + 1),
        rank,
        scale: 0.3,
        first_output,
    };
    vec![part(10, 3, 0, n1), part(20, 8, n1 + 5, n - n1 - 5)]
}

/// Sum of the parts for an output, in f64.
fn naive(x: &[f32], parts: &[LoraPart], output: usize) -> f64 {
    let of_part = |part: &LoraPart| {
        let num_outputs = part.b.len() / part.rank;
        let row = output.checked_sub(part.first_output).filter(|row| *row < num_outputs);
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        row.map_or(0.0, |row| {
            let inner = part.a.chunks_exact(x.len()).map(|a| dot(a, x));
            let b = &part.b[row * part.rank..][..part.rank];
            f64::from(part.scale) * inner.zip(b).map(|(t, b)| t * f64::from(*b)).sum::<f64>()
        })
    };
    parts.iter().map(of_part).sum()
}

fn layer(device: &Device, dtype: DType, (k, n): (usize, usize)) -> AdaptedLinear {
    let rows = [SourceMatrix::random(n, k, 1, 1.0)].into();
    let weight = LinearWeight::load(device, dtype, &rows, Some(random(n, 2))).unwrap();
    let mut layer = AdaptedLinear::from(weight);
    let delta = LoraDelta::load(device, dtype, k, &parts(k, 37, n)).unwrap();
    layer.loras.set(device, 1, Some(delta));
    layer
}

/// Rows of a step from `first` on, where rows `adapted` of the step have the adapter.
fn run(
    device: &Device,
    layer: &AdaptedLinear,
    x: &Tensor,
    (first, adapted): (usize, Range<usize>),
) -> Tensor {
    let of_tokens = vec![SlotRows { slot: 0, rows: 0..1 }, SlotRows { slot: 1, rows: adapted }];
    let mut loras = StepLoras { of_tokens, ..StepLoras::default() };
    let mut out = Tensor::zeros(x.num_rows(), layer.weight.shape().0);
    let rows = (&mut loras, first, x.num_rows());
    adapted_linear_rows(device, x.rows_from(0), layer, out.rows_from_mut(0), rows);
    out
}

#[test]
fn adds_what_a_naive_loop_adds_to_its_rows_alone() {
    let (k, n) = (70, 101);
    for isa in Isa::all_available() {
        for (dtype, tolerance) in
            [(DType::Float32, 1e-4), (DType::BFloat16, 0.06), (DType::Float16, 6e-3)]
        {
            let device = Device::cpu_with_isa(2, isa);
            let layer = layer(&device, dtype, (k, n));
            for num_rows in [1, 3, 29, 150] {
                let x = Tensor::from_vec(random(num_rows * k, 4), k);
                let base = run(&device, &layer, &x, (0, 0..0));
                let adapted = num_rows / 3..num_rows;
                let got = run(&device, &layer, &x, (0, adapted.clone()));
                for row in 0..num_rows {
                    if !adapted.contains(&row) {
                        assert_eq!(got.row(row), base.row(row));
                        continue;
                    }
                    for output in 0..n {
                        let added = naive(x.row(row), &parts(k, 37, n), output);
                        let got = f64::from(got.row(row)[output] - base.row(row)[output]);
                        let what = format!("{isa:?} {dtype:?} {num_rows} {row} {output}");
                        assert!((got - added).abs() < tolerance, "{what}: {got}, {added}");
                        let is_part = !(37..42).contains(&output);
                        assert!(is_part || got == 0.0, "{what} has no part");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_anywhere_in_a_step() {
    let (k, n) = (130, 80);
    for isa in Isa::all_available() {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
            let device = Device::cpu_with_isa(2, isa);
            let layer = layer(&device, dtype, (k, n));
            let x = Tensor::from_vec(random(151 * k, 4), k);
            let all = run(&device, &layer, &x, (0, 7..151));
            for row in [7, 8, 30, 149, 150] {
                let alone = Tensor::from_vec(x.row(row).to_vec(), k);
                let got = run(&device, &layer, &alone, (row, 7..151));
                assert_eq!(got.row(0), all.row(row), "{isa:?} {dtype:?} {row}");
            }
        }
    }
}

#[test]
fn rows_of_logits_have_adapters_of_their_own() {
    let device = Device::cpu(Some(1));
    let layer = layer(&device, DType::Float32, (70, 101));
    let x = Tensor::from_vec(random(3 * 70, 4), 70);
    let of_tokens = run(&device, &layer, &x, (0, 2..3));
    let of_logits = vec![SlotRows { slot: 1, rows: 2..3 }];
    let mut loras = StepLoras { of_logits, ..StepLoras::default() };
    let mut out = run(&device, &layer, &x, (0, 0..0));
    loras.add_to_logits(&device, &x, &layer.loras, &mut out);
    assert_eq!(out.values(), of_tokens.values());
}

#[test]
fn rows_of_a_table_get_what_a_naive_loop_adds() {
    let device = Device::cpu(Some(2));
    let (num_rows, width, rank) = (50, 45, 5);
    let a = random(rank * num_rows, 1);
    let part = LoraPart { a, b: random(width * rank, 2), rank, scale: 0.5, first_output: 0 };
    let mut table = TableSlots::default();
    table.set(0, Some(TableDelta::load(&device, &part)));
    let of_tokens = vec![SlotRows { slot: 0, rows: 1..3 }];
    let mut loras = StepLoras { of_tokens, ..StepLoras::default() };
    let ids = [7, 49, 0, 3];
    let mut out = Tensor::from_vec(vec![1.0; 4 * width], width);
    loras.add_of_table(&device, Ids::from(&ids[..]), &table, &mut out);
    for (row, id) in (0..).zip(ids) {
        for (column, got) in out.row(row).iter().enumerate() {
            let inner = (0..rank).map(|r| {
                let a = f64::from(part.a[r * num_rows + id as usize]);
                a * f64::from(part.b[column * rank + r])
            });
            let added = if row == 1 || row == 2 { 0.5 * inner.sum::<f64>() } else { 0.0 };
            assert!((f64::from(*got) - 1.0 - added).abs() < 1e-5, "{row} {column}");
        }
    }
}
