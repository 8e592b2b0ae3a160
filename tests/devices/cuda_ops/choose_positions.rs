//! Choices of positions, and attention to them: against the CPU, alone and together. Values of the
//! indexer are small integers and its scales powers of 2, so scores are exact in every dtype, and
//! many are equal.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::{QkvHeads, Reach};
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch::engine::device::{Device, KvCache, Precision, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    AttentionScratch, AttentionShape, Choice, ChoiceSize, IndexScores, StepInputs, StepLimits,
    attention_of_chosen, choose_positions, rotary_and_cache,
};

use super::pair::{Bound, Pair, in_every_dtype, output, to_bits};

const LENS: [usize; 3] = [5, 70, 347];
const MAX_BLOCKS: usize = 22;
const BLOCK_SIZE: usize = 16;
/// Column of the factors.
const COLUMN: usize = 3;

#[derive(Clone, Copy)]
struct Case {
    heads: QkvHeads,
    rank: usize,
    index: QkvHeads,
    num_chosen: usize,
}

const fn heads(num_heads: usize, head_dim: usize) -> QkvHeads {
    QkvHeads { num_heads, num_kv_heads: 1, head_dim }
}

const CASES: [Case; 3] = [
    Case { heads: heads(3, 40), rank: 32, index: heads(4, 16), num_chosen: 12 },
    // More heads than a tile's rows; a number of positions that ends with one.
    Case { heads: heads(20, 80), rank: 64, index: heads(64, 64), num_chosen: 64 },
    // One head, whose scale is rounded alike in all positions.
    Case { heads: heads(2, 24), rank: 16, index: heads(1, 12), num_chosen: 1 },
];

/// A device with the cache of all sequences.
struct Run<'a> {
    pair: &'a Pair,
    device: &'a Device,
    case: Case,
    cache: KvCache,
    inputs: StepInputs,
}

impl<'a> Run<'a> {
    fn new(pair: &'a Pair, device: &'a Device, case: Case) -> Self {
        let Case { heads, rank, index, .. } = case;
        let v_dim = device.latent_v_dim(rank);
        let shape = KvCacheShape {
            layers: vec![
                KvHeads { num: 1, head_dim: heads.head_dim, v_dim },
                KvHeads { num: 1, head_dim: index.head_dim, v_dim: 0 },
            ],
            num_blocks: LENS.len() * MAX_BLOCKS,
            block_size: BLOCK_SIZE,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let limits = limits(case);
        let cache = KvCache::on_device(device, shape, pair.dtype).expect("memory");
        let inputs = StepInputs::new(device, limits).expect("memory");
        let mut run = Self { pair, device, case, cache, inputs };
        let all = LENS.map(|len| (0, len));
        run.write(&all);
        run
    }

    fn write(&mut self, ranges: &[(usize, usize)]) {
        let (latents, keys) = (self.latents(ranges), self.index_rows(ranges));
        let Self { device, case, cache, inputs, .. } = self;
        let batch = batch(ranges);
        let step = inputs.step(device, &batch);
        for (layer, heads, mut qkv) in [(0, case.heads, latents), (1, case.index, keys)] {
            qkv.resize_rows(step.num_rows());
            rotary_and_cache(device, (&mut qkv, heads), None, step, cache.layer_mut(layer));
        }
        device.check().expect("the op ran");
    }

    /// What attention gives these tokens.
    fn attend(&mut self, ranges: &[(usize, usize)]) -> Vec<f32> {
        let (mut qkv, mut queries) = (self.latents(ranges), self.index_rows(ranges));
        let mut factors = self.factors(ranges);
        let Self { device, case, cache, inputs, .. } = self;
        let Case { heads, rank, index, num_chosen } = *case;
        let batch = batch(ranges);
        let step = inputs.step(device, &batch);
        let num_rows = step.num_rows();
        for tensor in [&mut qkv, &mut queries, &mut factors] {
            tensor.resize_rows(num_rows);
        }
        let size = ChoiceSize::of_positions(num_chosen);
        let mut choice = Choice::new(device, size, limits(*case)).expect("memory");
        let factors = Some((&factors, COLUMN));
        let scores = IndexScores { queries: &queries, num_heads: index.num_heads, factors };
        choose_positions(device, (scores, step), cache.layer(1), &mut choice);
        let shape = AttentionShape {
            num_heads: heads.num_heads,
            num_kv_heads: 1,
            scale: 0.3,
            soft_cap: None,
            reach: Reach::All,
            is_causal: false,
            alibi: None,
            sinks: None,
        };
        let mut out = output(device, num_rows, heads.num_heads * rank, Precision::Activation);
        let (layer, mut scratch) = ((cache.layer(0), &choice), AttentionScratch::default());
        attention_of_chosen(device, (&qkv, step), layer, shape, &mut scratch, &mut out);
        out.set_num_rows(batch.num_tokens());
        device.read(&out).expect("the op ran")
    }

    fn rows(
        &self,
        ranges: &[(usize, usize)],
        width: usize,
        of: impl Fn(u64, usize) -> Vec<f32>,
    ) -> Tensor {
        let mut values = Vec::new();
        for (seq, (start, end)) in ranges.iter().enumerate() {
            for position in *start..*end {
                values.extend(of(seq as u64 * 1000 + position as u64, width));
            }
        }
        self.device.upload_as(&values, width, Precision::Activation).expect("memory")
    }

    /// q and K, and on the CPU V, which is the last values of K.
    fn latents(&self, ranges: &[(usize, usize)]) -> Tensor {
        let Case { heads, rank, .. } = self.case;
        let stored = heads.q_width() + heads.head_dim;
        let v_dim = self.device.latent_v_dim(rank);
        self.rows(ranges, stored + v_dim, |seed, _| {
            let mut row = self.pair.values(1, stored, 7 + seed, 1.5).values;
            row.extend_from_within(stored - v_dim..);
            row
        })
    }

    fn index_rows(&self, ranges: &[(usize, usize)]) -> Tensor {
        let QkvHeads { head_dim, .. } = self.case.index;
        self.rows(ranges, self.case.index.q_width() + head_dim, |seed, width| {
            self.integers(width, 100_000 + seed)
        })
    }

    fn factors(&self, ranges: &[(usize, usize)]) -> Tensor {
        let width = COLUMN + self.case.index.num_heads + 1;
        self.rows(ranges, width, |seed, width| self.integers(width, 200_000 + seed))
    }

    /// -1, 0 and 1.
    fn integers(&self, width: usize, seed: u64) -> Vec<f32> {
        let values = self.pair.values(1, width, seed, 1.6).values;
        values.into_iter().map(|value| value.clamp(-1.0, 1.0).round()).collect()
    }
}

fn limits(case: Case) -> StepLimits {
    StepLimits {
        max_num_tokens: LENS.iter().sum(),
        max_num_seqs: LENS.len(),
        max_num_logits: 1,
        max_model_len: MAX_BLOCKS * BLOCK_SIZE,
        block_size: BLOCK_SIZE,
        num_q_per_kv: case.heads.num_heads,
        heads: case.heads,
        attends_to_all: false,
        has_states: false,
        has_axes: false,
        has_whole_images: false,
        has_choices: true,
    }
}

/// These positions of the sequences, where there are any; their blocks are interleaved.
fn batch(ranges: &[(usize, usize)]) -> Batch {
    let mut batch =
        Batch { query_start_loc: vec![0], max_blocks_per_seq: MAX_BLOCKS, ..Batch::default() };
    for (seq, &(start, end)) in ranges.iter().enumerate().filter(|(_, (start, end))| start < end) {
        let block = |index: usize| ((MAX_BLOCKS - 1 - index) * LENS.len() + seq) as u32;
        let slot = |position: usize| {
            block(position / BLOCK_SIZE) * BLOCK_SIZE as u32 + (position % BLOCK_SIZE) as u32
        };
        batch.positions.extend(start as u32..end as u32);
        batch.slot_mapping.extend((start..end).map(slot));
        batch.input_ids.resize(batch.positions.len(), 0);
        batch.query_start_loc.push(batch.positions.len() as u32);
        batch.seq_lens.push(end as u32);
        batch.block_tables.extend((0..MAX_BLOCKS).map(block));
    }
    batch
}

#[test]
fn index_scores_and_choose_positions_take_the_best_and_the_lowest() {
    in_every_dtype(340, |pair| {
        for case in CASES {
            let what = format!("{} of {:?}", case.num_chosen, pair.dtype);
            let all = LENS.map(|len| (0, len));
            let expected = Run::new(pair, &pair.cpu, case).attend(&all);
            let mut run = Run::new(pair, &pair.gpu, case);
            let together = run.attend(&all);
            let width = case.heads.num_heads * case.rank;
            let slack = if pair.dtype == DType::Float32 { 1e-4 } else { 2e-2 };
            let bound = Bound { dtype: pair.dtype, slack };
            bound.assert_close(&what, &together, &expected, width);
            // The last tokens of each, and some of one alone.
            for ranges in [
                LENS.map(|len| (len - 1, len)),
                [(0, 0), (0, 0), (40, 73)],
                [(2, 5), (11, 13), (346, 347)],
                [(0, 0), (63, 66), (0, 0)],
            ] {
                let mut first = 0;
                let mut of_all = Vec::new();
                for (len, (start, end)) in LENS.iter().zip(ranges) {
                    of_all.extend_from_slice(
                        &together[(first + start) * width..(first + end) * width],
                    );
                    first += len;
                }
                assert_eq!(to_bits(&run.attend(&ranges)), to_bits(&of_all), "{what}: {ranges:?}");
            }
        }
    });
}
