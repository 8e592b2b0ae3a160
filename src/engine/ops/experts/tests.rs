//! Against plain code; and a row's bits, whatever rows are beside it.

use super::*;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::{ExpertWeight, Score, TopK};
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

const HIDDEN: usize = 40;
const INNER: usize = 24;
const NUM_EXPERTS: usize = 6;
const NUM_CHOSEN: usize = 3;
/// The last of all, which give what they read.
const NUM_IDENTITIES: usize = 1;
const FACTORS: [f32; NUM_EXPERTS] = [1.0, 0.5, 2.0, 0.25, 1.5, 3.0];

fn matrix(rows: usize, columns: usize, seed: u64) -> SourceMatrix<'static> {
    SourceMatrix::random(rows, columns, seed, 0.4)
}

fn weight(device: &Device, dtype: DType, form: MlpForm) -> ExpertsWeight {
    let load_as = |dtype, rows, columns, seed| {
        let rows = [matrix(rows, columns, seed)].into();
        LinearWeight::load(device, dtype, &rows, None).unwrap()
    };
    let load = |rows, columns, seed| load_as(dtype, rows, columns, seed);
    let routing = TopK {
        num: NUM_CHOSEN,
        score: Score::Softmax,
        groups: None,
        weight: ExpertWeight::SHARE,
        scale: 1.5,
    };
    ExpertsWeight {
        router: load_as(DType::Float32, NUM_EXPERTS, HIDDEN, 1),
        choice_bias: None,
        routing: Routing::TopK(routing),
        weight_factors: Some(FACTORS.into()),
        weighted: Weighted::Outputs,
        form,
        activation: Activation::Silu,
        experts: Experts::Apart(
            (0..(NUM_EXPERTS - NUM_IDENTITIES) as u64)
                .map(|seed| ExpertWeights {
                    up: load(up_rows(form), HIDDEN, 10 + seed),
                    down: load(HIDDEN, INNER, 20 + seed),
                })
                .collect(),
        ),
        num_identities: NUM_IDENTITIES,
        on_gpu: None,
    }
}

fn up_rows(form: MlpForm) -> usize {
    match form {
        MlpForm::Gated => 2 * INNER,
        MlpForm::Plain => INNER,
    }
}

fn times(matrix: &SourceMatrix<'_>, x: &[f64]) -> Vec<f64> {
    let values = matrix.to_vec();
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    values.chunks(matrix.num_columns).map(dot).collect()
}

/// In plain code: all experts, of which those count that are among the best.
fn expected(form: MlpForm, x: &[f32], out: &[f32]) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let scores: Vec<f64> =
        times(&matrix(NUM_EXPERTS, HIDDEN, 1), &x).into_iter().map(f64::exp).collect();
    let mut best: Vec<usize> = (0..NUM_EXPERTS).collect();
    best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    let best = &best[..NUM_CHOSEN];
    let sum: f64 = best.iter().map(|expert| scores[*expert]).sum();
    let mut out: Vec<f64> = out.iter().map(|out| f64::from(*out)).collect();
    for &expert in best {
        let gate_up = times(&matrix(up_rows(form), HIDDEN, 10 + expert as u64), &x);
        let (gate, up) = gate_up.split_at(INNER);
        let silu = gate.iter().map(|gate| gate / (1.0 + (-gate).exp()));
        let inner: Vec<f64> = match form {
            MlpForm::Gated => silu.zip(up).map(|(silu, up)| silu * up).collect(),
            MlpForm::Plain => silu.collect(),
        };
        let added = match expert < NUM_EXPERTS - NUM_IDENTITIES {
            true => times(&matrix(HIDDEN, INNER, 20 + expert as u64), &inner),
            false => x.clone(),
        };
        let weight = 1.5 * scores[expert] / sum * f64::from(FACTORS[expert]);
        out.iter_mut().zip(added).for_each(|(out, added)| *out += weight * added);
    }
    out
}

/// out after experts of rows are chosen and added to what `out` was.
fn run((device, dtype): (&Device, DType), form: MlpForm, x: &[f32], out: &[f32]) -> Vec<f32> {
    let shape = ExpertsShape { num_experts: NUM_EXPERTS, num_chosen: NUM_CHOSEN, inner: INNER };
    let (x, mut out) =
        (Tensor::from_vec(x.to_vec(), HIDDEN), Tensor::from_vec(out.to_vec(), HIDDEN));
    let mut scratch = ExpertsScratch::new((device, dtype), (x.num_rows(), HIDDEN), shape).unwrap();
    let weight = weight(device, dtype, form);
    choose_experts(device, (&x, RowSlots::default()), &weight, &mut scratch);
    add_experts(device, &x, &weight, &mut scratch, &mut out);
    out.values().to_vec()
}

fn values(num_rows: usize, step: f32) -> Vec<f32> {
    (0..num_rows * HIDDEN).map(|i| (i as f32 * step).sin()).collect()
}

#[test]
fn agrees_with_plain_code_and_a_row_does_not_depend_on_others() {
    const NUM_ROWS: usize = 50;
    let (x, before) = (values(NUM_ROWS, 0.37), values(NUM_ROWS, 0.11));
    // bf16 has 8 bits, of weights and of what is between.
    let dtypes = [(DType::Float32, 2e-5), (DType::BFloat16, 0.1)];
    let all = Isa::all_available().into_iter().flat_map(|isa| dtypes.map(|of| (isa, of)));
    let forms = [MlpForm::Gated, MlpForm::Plain];
    for (form, (isa, (dtype, error))) in all.flat_map(|of| forms.map(|form| (form, of))) {
        let device = Device::cpu_with_isa(2, isa);
        let out = run((&device, dtype), form, &x, &before);
        for row in 0..NUM_ROWS {
            let of_row = row * HIDDEN..(row + 1) * HIDDEN;
            let (x, before) = (&x[of_row.clone()], &before[of_row.clone()]);
            let expected = expected(form, x, before);
            for (got, expected) in out[of_row.clone()].iter().zip(&expected) {
                let off = (f64::from(*got) - expected).abs();
                assert!(off < error, "{form:?} {isa:?} {dtype:?}, row {row}: {off}");
            }
            if row % 7 == 0 {
                let alone = run((&Device::cpu_with_isa(1, isa), dtype), form, x, before);
                assert_eq!(alone, out[of_row], "{isa:?}, row {row} alone");
            }
        }
    }
}

#[test]
fn rows_are_gated_by_a_sigmoid() {
    let device = Device::cpu(Some(2));
    let gate = matrix(1, HIDDEN, 5);
    let loaded = LinearWeight::load(&device, DType::Float32, &[gate.clone()].into(), None).unwrap();
    let shape = ExpertsShape { num_experts: 1, num_chosen: 1, inner: 1 };
    let mut scratch = ExpertsScratch::new((&device, DType::Float32), (9, HIDDEN), shape).unwrap();
    let x = Tensor::from_vec(values(9, 0.37), HIDDEN);
    let mut out = Tensor::from_vec(vec![2.0; 9 * 3], 3);
    gate_rows(&device, &x, &loaded, &mut scratch, &mut out);
    for row in 0..9 {
        let x: Vec<f64> = x.row(row).iter().map(|x| f64::from(*x)).collect();
        let expected = 2.0 / (1.0 + (-times(&gate, &x)[0]).exp());
        assert!(out.row(row).iter().all(|out| (f64::from(*out) - expected).abs() < 1e-5));
    }
}

#[test]
fn inputs_of_one_expert_are_weighted_in_the_place_of_outputs() {
    const NUM_ROWS: usize = 20;
    let (x, before) = (values(NUM_ROWS, 0.37), values(NUM_ROWS, 0.11));
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        let best = TopK {
            num: 1,
            score: Score::Logits,
            groups: None,
            weight: ExpertWeight::Sigmoid,
            scale: 1.0,
        };
        let weight = ExpertsWeight {
            routing: Routing::TopK(best),
            weight_factors: None,
            weighted: Weighted::Inputs,
            ..weight(&device, DType::Float32, MlpForm::Gated)
        };
        let shape = ExpertsShape { num_experts: NUM_EXPERTS, num_chosen: 1, inner: INNER };
        let of = (&device, DType::Float32);
        let mut scratch = ExpertsScratch::new(of, (NUM_ROWS, HIDDEN), shape).unwrap();
        let mut out = Tensor::from_vec(before.clone(), HIDDEN);
        let mut inputs = Tensor::from_vec(x.clone(), HIDDEN);
        choose_experts(&device, (&inputs, RowSlots::default()), &weight, &mut scratch);
        weigh_inputs(&device, &mut inputs, &mut scratch);
        add_experts(&device, &inputs, &weight, &mut scratch, &mut out);
        for row in 0..NUM_ROWS {
            let x: Vec<f64> = x[row * HIDDEN..][..HIDDEN].iter().map(|x| f64::from(*x)).collect();
            let logits = times(&matrix(NUM_EXPERTS, HIDDEN, 1), &x);
            let best = (0..NUM_EXPERTS).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
            let score = 1.0 / (1.0 + (-logits[best]).exp());
            let x: Vec<f64> = x.iter().map(|x| x * score).collect();
            let gate_up = times(&matrix(2 * INNER, HIDDEN, 10 + best as u64), &x);
            let (gate, up) = gate_up.split_at(INNER);
            let inner = gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up);
            let inner: Vec<f64> = inner.collect();
            let added = match best < NUM_EXPERTS - NUM_IDENTITIES {
                true => times(&matrix(HIDDEN, INNER, 20 + best as u64), &inner),
                false => x,
            };
            let before = &before[row * HIDDEN..][..HIDDEN];
            for ((got, added), before) in out.row(row).iter().zip(added).zip(before) {
                let off = (f64::from(*got) - f64::from(*before) - added).abs();
                assert!(off < 2e-5, "{isa:?}, row {row}: {off}");
            }
        }
    }
}
