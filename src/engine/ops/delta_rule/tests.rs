//! The rule against a literal loop in f64, and its bits against themselves.

use super::*;
use crate::batch::Batch;
use vllm_batch_base::isa::Isa;
use vllm_batch_base::layers::DecayForm;
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_device::simd::InstructionSet;

const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 12;
const NUM_TOKENS: usize = 40;
/// Values of a state before those of the rule.
const BEFORE: usize = 5;

const HEADS: [DeltaHeads; 3] = [
    DeltaHeads { num_k_heads: 2, num_v_heads: 4, k_dim: 6, v_dim: 5 },
    DeltaHeads { num_k_heads: 1, num_v_heads: 3, k_dim: 3, v_dim: 80 },
    DeltaHeads { num_k_heads: 1, num_v_heads: 1, k_dim: 16, v_dim: 128 },
];

/// First column of what gates are made of.
fn first_gate(heads: DeltaHeads) -> usize {
    heads.qkv_width() + 2
}

fn row_width(heads: DeltaHeads) -> usize {
    first_gate(heads) + 2 * heads.num_v_heads
}

/// Logarithms of rates, and what is added to a.
fn gate_values(heads: DeltaHeads) -> [Vec<f32>; 2] {
    [21, 22].map(|seed| SourceMatrix::random(1, heads.num_v_heads, seed, 0.5).to_vec())
}

/// Rows of a sequence.
fn rows(heads: DeltaHeads, seed: u64) -> Vec<Vec<f32>> {
    let values = SourceMatrix::random(NUM_TOKENS, row_width(heads), seed, 1.0).to_vec();
    values.chunks_exact(row_width(heads)).map(<[f32]>::to_vec).collect()
}

/// Decays of a token's rows of states, near 1 and far from it.
fn decays(heads: DeltaHeads, row: &[f32]) -> Vec<f32> {
    let of_row = |index: usize| 0.5 + 0.49 * (row[index % row.len()] + index as f32).sin();
    (0..heads.num_v_heads * heads.k_dim).map(of_row).collect()
}

/// Expected outputs of tokens in order, whose heads decay, or whose rows of states do.
fn expected(heads: DeltaHeads, rows: &[Vec<f32>], is_by_row: bool) -> Vec<Vec<f64>> {
    let DeltaHeads { num_v_heads, k_dim, v_dim, .. } = heads;
    let [a_log, bias] = gate_values(heads);
    let mut states = vec![vec![vec![0.0; v_dim]; k_dim]; num_v_heads];
    let mut outs = Vec::new();
    for row in rows {
        let at = |column: usize| f64::from(row[column]);
        let mut out = Vec::new();
        for (head, state) in states.iter_mut().enumerate() {
            let k_head = head / (num_v_heads / heads.num_k_heads);
            let q = |i: usize| at(k_head * k_dim + i);
            let k = |i: usize| at(heads.k_width() + k_head * k_dim + i);
            let gates = first_gate(heads);
            let (b, a) = (at(gates + head), at(gates + num_v_heads + head));
            let beta = 1.0 / (1.0 + (-b).exp());
            let softplus = (a + f64::from(bias[head])).exp().ln_1p();
            let decay = (-f64::from(a_log[head]).exp() * softplus).exp();
            let of_rows = decays(heads, row)[head * k_dim..(head + 1) * k_dim].to_vec();
            for (values, of_row) in state.iter_mut().zip(of_rows) {
                let decay = if is_by_row { f64::from(of_row) } else { decay };
                values.iter_mut().for_each(|value| *value *= decay);
            }
            let first_v = 2 * heads.k_width() + head * v_dim;
            out.extend((0..v_dim).map(|column| {
                let known: f64 = (0..k_dim).map(|i| state[i][column] * k(i)).sum();
                let delta = (at(first_v + column) - known) * beta;
                (0..k_dim).for_each(|i| state[i][column] += k(i) * delta);
                (0..k_dim).map(|i| state[i][column] * q(i)).sum::<f64>()
            }));
        }
        outs.push(out);
    }
    outs
}

/// Tokens `first..end` of the sequence of a seed, over these blocks.
struct Part<'a> {
    seed: u64,
    tokens: Range<usize>,
    table: &'a [u32],
}

/// One step; outputs of its parts.
fn step(
    device: &Device,
    heads: DeltaHeads,
    is_by_row: bool,
    states: &mut [f32],
    parts: &[Part<'_>],
) -> Vec<Vec<f32>> {
    let mut batch = Batch { query_start_loc: vec![0], max_blocks_per_seq: 4, ..Batch::default() };
    let mut values = Vec::new();
    for Part { seed, tokens, table } in parts {
        batch.positions.extend(tokens.start as u32..tokens.end as u32);
        batch.query_start_loc.push(batch.positions.len() as u32);
        batch.seq_lens.push(tokens.end as u32);
        batch.block_tables.extend(*table);
        values.extend(rows(heads, *seed)[tokens.clone()].concat());
    }
    let mut x = Tensor::from_vec(values, row_width(heads));
    let mut out = Tensor::zeros(x.num_rows(), heads.v_width());
    let states = StateLayerMut::on_host(states, BEFORE + heads.state_width(), BLOCK_SIZE);
    let [a_log, bias] = gate_values(heads);
    let (decay, bias) = match is_by_row {
        false => (Decay::OfHeads, bias),
        // Decays are given.
        true => (Decay::OfRows(DecayForm::Softplus), vec![0.0; heads.num_v_heads * heads.k_dim]),
    };
    let gate_weights = &DeltaGateWeights::new(device, (&a_log, bias), (decay, 1.0)).unwrap();
    let of_rows = x.values().chunks_exact(x.width()).flat_map(|row| decays(heads, row));
    let of_rows = Tensor::from_vec(of_rows.collect(), heads.num_v_heads * heads.k_dim);
    let decays = is_by_row.then_some(&of_rows);
    let rule = DeltaRule { heads, gate_weights, gates: first_gate(heads), decays, state: BEFORE };
    delta_rule(device, (&mut x, Step::on_host(&batch)), rule, states, &mut out);
    let rows = |pair: &[u32]| (pair[0]..pair[1]).flat_map(|row| out.row(row as usize).to_vec());
    batch.query_start_loc.windows(2).map(|pair| rows(pair).collect()).collect()
}

/// States of blocks that hold anything.
fn unwritten(heads: DeltaHeads) -> Vec<f32> {
    vec![f32::NAN; NUM_BLOCKS * (BEFORE + heads.state_width())]
}

#[test]
fn tokens_agree_with_a_literal_loop_and_bits_do_not_depend_on_chunks() {
    let tables = [[3, 9, 1, 0], [4, 2, 11, 0]];
    let of_heads = |h: DeltaHeads| {
        let each = move |isa| [false, true].map(|is_by_row| (h, isa, is_by_row));
        Isa::all_available().into_iter().flat_map(each)
    };
    for (heads, isa, is_by_row) in HEADS.into_iter().flat_map(of_heads) {
        let device = Device::cpu_with_isa(2, isa);
        let part = |seq: usize, tokens: Range<usize>| Part {
            seed: seq as u64,
            tokens,
            table: &tables[seq],
        };
        let parts = [part(0, 0..NUM_TOKENS)];
        let whole = step(&device, heads, is_by_row, &mut unwritten(heads), &parts).remove(0);
        let expected = expected(heads, &rows(heads, 0), is_by_row).concat();
        for (got, expected) in whole.iter().zip(expected) {
            assert!((f64::from(*got) - expected).abs() < 2e-5, "{isa:?} {got}, not {expected}");
        }
        for chunk in [1, 3, 15, 16, 17, 39] {
            let (mut states, mut got) = (unwritten(heads), Vec::new());
            for first in (0..NUM_TOKENS).step_by(chunk) {
                let tokens = first..(first + chunk).min(NUM_TOKENS);
                let both = [part(1, tokens.clone()), part(0, tokens)];
                got.extend(step(&device, heads, is_by_row, &mut states, &both).remove(1));
            }
            assert_eq!(got, whole, "{isa:?} {heads:?}, by row {is_by_row}, chunks of {chunk}");
        }
    }
}

#[test]
fn a_sequence_goes_on_from_a_block_that_another_one_fills_in_the_same_step() {
    let (device, heads) = (Device::cpu(Some(2)), HEADS[0]);
    let (own, shared) = ([7, 8, 9, 0], [7, 8, 10, 0]);
    let alone = Part { seed: 5, tokens: 0..NUM_TOKENS, table: &own };
    let whole = step(&device, heads, false, &mut unwritten(heads), &[alone]).remove(0);
    let first = Part { seed: 5, tokens: 0..33, table: &own };
    let second = Part { seed: 5, tokens: 32..35, table: &shared };
    let outs = step(&device, heads, false, &mut unwritten(heads), &[first, second]);
    assert_eq!(outs[1], whole[32 * heads.v_width()..35 * heads.v_width()]);
}
