//! causal_conv, mamba_scan, selective_scan and delta_rule: a sequence against the CPU, and its
//! bits however it is cut, whatever is beside it, and where it goes on from blocks that another one
//! fills in the same step. Blocks that nobody wrote hold NaN.

use vllm_batch::engine::base::layers::{
    Activation, Decay, DecayForm, DeltaHeads, QkvHeads, ScanShape, SelectiveShape,
};
use vllm_batch::engine::device::kv_cache::{KvCacheShape, StateData, StateShape};
use vllm_batch::engine::device::{Device, KvCache, Precision, StateLayerMut, Tensor, bytes_of};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    Columns, ConvColumns, ConvTaps, DeltaGateWeights, DeltaRule, ScanWeights, SelectiveInputs,
    SelectiveWeights, Step, StepInputs, StepLimits, WeightValues, causal_conv, copy_columns,
    delta_decays, delta_rule, mamba_scan, selective_scan,
};

use crate::cuda_ops::pair::{Bound, Pair, in_every_dtype, output, to_bits};

const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 24;
const BLOCKS_PER_SEQ: usize = 4;
const NUM_TOKENS: usize = 50;
/// Of the two layers with states, the one that is used.
const LAYER: usize = 1;
/// Values of a state before those of the op.
const BEFORE: usize = 3;

/// Arithmetic in f32 in another order, over all tokens of a sequence.
const SLACK: f32 = 2e-5;

/// Tokens `first..end` of the sequence of a seed, over these blocks.
#[derive(Clone, Copy)]
struct Part<'a> {
    seed: u64,
    first: usize,
    end: usize,
    table: &'a [u32],
}

/// An op that goes over rows (num_tokens, `width`) with states.
struct Recurrence<'a> {
    what: String,
    width: usize,
    /// Size of its values.
    scale: f32,
    state_width: usize,
    run: &'a dyn Fn(&Device, Tensor, Step<'_>, StateLayerMut<'_>) -> Tensor,
}

/// A device with its states.
struct Place<'a> {
    device: &'a Device,
    cache: KvCache,
    inputs: StepInputs,
}

impl<'a> Place<'a> {
    fn new(pair: &Pair, device: &'a Device, state_width: usize) -> Self {
        let states = StateShape { num_layers: 2, width: BEFORE + state_width };
        let shape = KvCacheShape {
            layers: Vec::new(),
            num_blocks: NUM_BLOCKS,
            block_size: BLOCK_SIZE,
            states,
            panel_width: device.kv_panel_width(),
        };
        let mut cache = KvCache::on_device(device, shape, pair.dtype).expect("memory");
        match (&mut cache.states, device) {
            (StateData::Host(values), _) => values.fill(f32::NAN),
            (StateData::Cuda(buffer), Device::Cuda(gpu)) => {
                gpu.upload(buffer, bytes_of(&vec![f32::NAN; buffer.bytes() / 4]));
            }
            (StateData::Cuda(_), Device::Cpu(_)) => panic!("a cache of the GPU"),
        }
        let limits = StepLimits {
            max_num_tokens: 4 * NUM_TOKENS,
            max_num_seqs: 4,
            max_num_logits: 4,
            max_model_len: BLOCKS_PER_SEQ * BLOCK_SIZE,
            block_size: BLOCK_SIZE,
            num_q_per_kv: 0,
            heads: QkvHeads { num_heads: 0, num_kv_heads: 0, head_dim: 0 },
            attends_to_all: false,
            has_states: true,
            has_axes: false,
            has_whole_images: false,
            has_choices: false,
        };
        let inputs = StepInputs::new(device, limits).expect("memory");
        Self { device, cache, inputs }
    }
}

fn batch(parts: &[Part<'_>]) -> Batch {
    let mut batch =
        Batch { query_start_loc: vec![0], max_blocks_per_seq: BLOCKS_PER_SEQ, ..Batch::default() };
    for part in parts {
        batch.positions.extend(part.first as u32..part.end as u32);
        batch.query_start_loc.push(batch.positions.len() as u32);
        batch.seq_lens.push(part.end as u32);
        batch.block_tables.extend(part.table);
        batch.block_tables.resize(batch.seq_lens.len() * BLOCKS_PER_SEQ, 0);
    }
    batch.input_ids.resize(batch.positions.len(), 0);
    batch.slot_mapping.resize(batch.positions.len(), 0);
    batch
}

impl Recurrence<'_> {
    /// One step; outputs of its parts.
    fn step(&self, pair: &Pair, place: &mut Place<'_>, parts: &[Part<'_>]) -> Vec<Vec<f32>> {
        let rows = parts.iter().flat_map(|part| {
            let rows = pair.values(part.end, self.width, part.seed, self.scale).values;
            rows[part.first * self.width..].to_vec()
        });
        let rows: Vec<f32> = rows.collect();
        let (device, batch) = (place.device, batch(parts));
        let x = device.upload_as(&rows, self.width, Precision::Activation).expect("memory");
        let step = place.inputs.step(device, &batch);
        let out = (self.run)(device, x, step, place.cache.state_layer_mut(LAYER));
        let values = device.read(&out).expect("the op ran");
        let of_part = |rows: &[u32]| {
            values[rows[0] as usize * out.width()..rows[1] as usize * out.width()].to_vec()
        };
        batch.query_start_loc.windows(2).map(of_part).collect()
    }

    fn check(&self, pair: &Pair) {
        let what = format!("{}, {}", self.what, pair.dtype.name());
        let place = |device| Place::new(pair, device, self.state_width);
        let tables: [&[u32]; 2] = [&[3, 9, 1, 20], &[4, 2, 13, 21]];
        let part =
            |seq: usize, first, end| Part { seed: 40 + seq as u64, first, end, table: tables[seq] };
        let all = [part(0, 0, NUM_TOKENS)];
        let on_cpu = self.step(pair, &mut place(&pair.cpu), &all).remove(0);
        let whole = self.step(pair, &mut place(&pair.gpu), &all).remove(0);
        let bound = Bound { dtype: pair.dtype, slack: SLACK };
        bound.assert_close(&what, &whole, &on_cpu, whole.len() / NUM_TOKENS);
        for chunk in [1, 7, 16, 33] {
            let (mut place, mut got) = (place(&pair.gpu), Vec::new());
            for first in (0..NUM_TOKENS).step_by(chunk) {
                let end = (first + chunk).min(NUM_TOKENS);
                let both = [part(1, first, end), part(0, first, end)];
                got.extend(self.step(pair, &mut place, &both).remove(1));
            }
            assert!(to_bits(&got) == to_bits(&whole), "{what}: chunks of {chunk}");
        }
        self.check_shared(pair, (&what, &whole), &mut place(&pair.gpu));
    }

    /// Sequences that are the same up to position 48: two go on from blocks of the first, a third
    /// from a block of the second.
    fn check_shared(&self, pair: &Pair, (what, whole): (&str, &[f32]), place: &mut Place<'_>) {
        let part = |first, end, table| Part { seed: 40, first, end, table };
        let parts = [
            part(0, 33, &[3, 9, 1, 20]),
            part(32, 49, &[3, 9, 10, 11]),
            part(16, 19, &[3, 12]),
            part(48, NUM_TOKENS, &[3, 9, 10, 13]),
        ];
        let row = whole.len() / NUM_TOKENS;
        for (got, part) in self.step(pair, place, &parts).iter().zip(&parts) {
            let expected = &whole[part.first * row..part.end * row];
            assert!(to_bits(got) == to_bits(expected), "{what}: {}..{}", part.first, part.end);
        }
        // Each goes on in its own blocks.
        let next = [part(33, 40, parts[0].table), part(19, 30, parts[2].table)];
        for (got, part) in self.step(pair, place, &next).iter().zip(&next) {
            let expected = &whole[part.first * row..part.end * row];
            assert!(to_bits(got) == to_bits(expected), "{what}: {}..{}", part.first, part.end);
        }
    }
}

#[test]
fn causal_conv_has_the_cpus_sums_however_sequences_are_cut() {
    in_every_dtype(900, |pair| {
        // More than a tile, and no multiple of one.
        let width = 131;
        for (num_taps, has_gates) in [(1, true), (3, true), (4, false)] {
            let stored = pair.values(width, num_taps, 50, 1.0).values;
            let bias = Some(pair.values(1, width, 51, 0.5).values);
            let taps = pair.on_both(|device| {
                ConvTaps::new(device, width, &stored, bias.clone()).expect("memory")
            });
            let columns = match has_gates {
                true => ConvColumns { first: 262, gates: Some([0, 131]), activation: None },
                false => ConvColumns { first: 7, gates: None, activation: Some(Activation::Silu) },
            };
            let run =
                |device: &Device, mut x: Tensor, step: Step<'_>, states: StateLayerMut<'_>| {
                    causal_conv(device, (&mut x, step), taps.of(device), states, columns);
                    x
                };
            let state_width = (num_taps - 1) * width;
            let what = format!("causal_conv of {num_taps}");
            Recurrence { what, width: 3 * width, scale: 1.0, state_width, run: &run }.check(pair);
        }
    });
}

#[test]
fn mamba_scan_has_the_cpus_sums_however_sequences_are_cut() {
    // A row of whole chunks; rows and columns that are none; more rows than four lanes take.
    let shapes = [(4, 40, 2, 32), (3, 5, 3, 12), (2, 17, 1, 136)];
    in_every_dtype(910, |pair| {
        for (num_heads, head_dim, num_groups, state_size) in shapes {
            let shape = ScanShape { num_heads, head_dim, num_groups, state_size };
            let of_heads = |seed| pair.values(1, num_heads, seed, 1.0).values;
            let weights = pair.on_both(|device| {
                let held = |values| WeightValues::on_device(device, values).expect("memory");
                ScanWeights {
                    shape,
                    decay: held(of_heads(52).iter().map(|a| -0.1 - a.abs()).collect()),
                    skip: held(of_heads(53)),
                    dt_bias: held(of_heads(54)),
                    dt_bounds: [0.2, 1.2],
                }
            });
            let run = |device: &Device, x: Tensor, step: Step<'_>, states: StateLayerMut<'_>| {
                let rows = x.num_rows();
                let mut out = output(device, rows, shape.inner_width(), Precision::Activation);
                let states = (states, BEFORE);
                mamba_scan(device, (&x, step), weights.of(device), states, &mut out);
                out
            };
            let (width, state_width) = (shape.row_width(), shape.state_len());
            let what = format!("mamba_scan {shape:?}");
            Recurrence { what, width, scale: 1.0, state_width, run: &run }.check(pair);
        }
    });
}

#[test]
fn selective_scan_has_the_cpus_sums_however_sequences_are_cut() {
    // More than a tile in each group; whole chunks of B and C; more rows than four lanes take.
    let shapes = [(202, 2, 3, 6), (40, 1, 8, 16), (9, 1, 2, 136)];
    in_every_dtype(915, |pair| {
        for (num_channels, num_groups, rank, state_size) in shapes {
            let shape = SelectiveShape { num_channels, num_groups, rank, state_size };
            let of = |num, seed| pair.values(1, num, seed, 1.0).values;
            let weights = pair.on_both(|device| {
                let held = |values| WeightValues::on_device(device, values).expect("memory");
                let decay = of(shape.state_len(), 57);
                SelectiveWeights {
                    shape,
                    decay: held(decay.iter().map(|a| -0.1 - a.abs()).collect()),
                    skip: held(of(num_channels, 58)),
                    dt_bias: held(of(num_channels, 59)),
                }
            });
            // x and a value that is not read, what chooses, dt.
            let widths = [num_channels + 1, num_groups * shape.chosen_width(), num_channels];
            let run = |device: &Device, rows: Tensor, step: Step<'_>, states: StateLayerMut<'_>| {
                let num_rows = rows.num_rows();
                let mut first = 0;
                let [x, chosen, dt] = widths.map(|width| {
                    let mut part = output(device, num_rows, width, Precision::Activation);
                    let (from, to) = (Columns::run(first, width), Columns::run(0, width));
                    copy_columns(device, (&rows, from), (&mut part, to));
                    first += width;
                    part
                });
                let mut out = output(device, num_rows, num_channels, Precision::Activation);
                let inputs = SelectiveInputs { x: &x, chosen: &chosen, dt: &dt };
                let states = (states, BEFORE);
                selective_scan(device, (inputs, step), weights.of(device), states, &mut out);
                out
            };
            let (width, state_width) = (widths.iter().sum(), shape.state_len());
            let what = format!("selective_scan {shape:?}");
            Recurrence { what, width, scale: 1.0, state_width, run: &run }.check(pair);
        }
    });
}

#[test]
fn delta_rule_has_the_cpus_sums_however_sequences_are_cut() {
    check_delta_rule(920, [(Decay::OfHeads, 1.0), (Decay::OfHeads, 2.0)]);
}

#[test]
fn delta_rule_by_row_and_delta_decays_have_the_cpus_sums_however_sequences_are_cut() {
    let of_rows = |form| (Decay::OfRows(form), 1.0);
    check_delta_rule(925, [DecayForm::Softplus, DecayForm::Bounded(-5.0)].map(of_rows));
}

fn check_delta_rule(seed: u64, forms: [(Decay, f32); 2]) {
    let shapes = [(2, 4, 6, 5), (1, 2, 32, 80), (1, 1, 136, 20)];
    in_every_dtype(seed, |pair| {
        for ((num_k_heads, num_v_heads, k_dim, v_dim), form) in
            shapes.into_iter().flat_map(|shape| forms.map(|form| (shape, form)))
        {
            let heads = DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim };
            let num_decays = form.0.width(heads);
            let of = |num, seed| pair.values(1, num, seed, 0.5).values;
            let gate_weights = pair.on_both(|device| {
                let values = (&of(num_v_heads, 55)[..], of(num_decays, 56));
                DeltaGateWeights::new(device, values, form).expect("memory")
            });
            let gates = heads.qkv_width() + heads.v_width();
            let run =
                |device: &Device, mut x: Tensor, step: Step<'_>, states: StateLayerMut<'_>| {
                    let rows = x.num_rows();
                    let mut out = output(device, rows, heads.v_width(), Precision::Activation);
                    let gate_weights = gate_weights.of(device);
                    let mut decays = output(device, rows, num_decays, Precision::Full);
                    let is_by_row = form.0 != Decay::OfHeads;
                    if is_by_row {
                        let a = (&x, gates + num_v_heads);
                        delta_decays(device, a, gate_weights, &mut decays);
                    }
                    let decays = is_by_row.then_some(&decays);
                    let rule = DeltaRule { heads, gate_weights, gates, decays, state: BEFORE };
                    delta_rule(device, (&mut x, step), rule, states, &mut out);
                    out
                };
            let width = (gates + num_v_heads + num_decays).next_multiple_of(8);
            let what = format!("delta_rule {heads:?}, {form:?}");
            // Keys about as long as the model's, which are normalized.
            let (scale, state_width) = ((3.0 / k_dim as f32).sqrt(), heads.state_width());
            Recurrence { what, width, scale, state_width, run: &run }.check(pair);
        }
    });
}
