//! Choices of blocks of positions for each K and V head, and attention to them: against the CPU,
//! alone and together. Values of the indexer are small integers, so scores are exact in every
//! dtype, and many are equal.

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

#[derive(Clone, Copy)]
struct Case {
    heads: QkvHeads,
    /// Width of heads of the indexer.
    index_dim: usize,
    num_chosen: usize,
    unit: usize,
}

const fn heads(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> QkvHeads {
    QkvHeads { num_heads, num_kv_heads, head_dim }
}

impl Case {
    fn index(self) -> QkvHeads {
        heads(self.heads.num_kv_heads, 1, self.index_dim)
    }
}

const CASES: [Case; 3] = [
    Case { heads: heads(4, 2, 16), index_dim: 12, num_chosen: 48, unit: 16 },
    // More query heads than a tile's rows; blocks of several of the cache, which end with no tile.
    Case { heads: heads(20, 1, 64), index_dim: 32, num_chosen: 96, unit: 48 },
    // The token's own block alone.
    Case { heads: heads(3, 3, 128), index_dim: 40, num_chosen: 128, unit: 128 },
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
        let QkvHeads { num_kv_heads, head_dim, .. } = case.heads;
        let shape = KvCacheShape {
            layers: vec![
                // One more than the layer has.
                KvHeads { num: num_kv_heads + 1, head_dim, v_dim: head_dim },
                KvHeads { num: 1, head_dim: case.index_dim, v_dim: 0 },
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
        let (qkv, keys) = (self.qkv(ranges), self.index_rows(ranges));
        let Self { device, case, cache, inputs, .. } = self;
        let batch = batch(ranges);
        let step = inputs.step(device, &batch);
        for (layer, heads, mut qkv) in [(0, case.heads, qkv), (1, case.index(), keys)] {
            qkv.resize_rows(step.num_rows());
            rotary_and_cache(device, (&mut qkv, heads), None, step, cache.layer_mut(layer));
        }
        device.check().expect("the op ran");
    }

    /// What attention gives these tokens.
    fn attend(&mut self, ranges: &[(usize, usize)]) -> Vec<f32> {
        let (mut qkv, mut queries) = (self.qkv(ranges), self.index_rows(ranges));
        let Self { device, case, cache, inputs, .. } = self;
        let Case { heads, num_chosen, unit, .. } = *case;
        let batch = batch(ranges);
        let step = inputs.step(device, &batch);
        let num_rows = step.num_rows();
        for tensor in [&mut qkv, &mut queries] {
            tensor.resize_rows(num_rows);
        }
        let size = ChoiceSize { num_chosen, unit, num_heads: heads.num_kv_heads };
        let mut choice = Choice::new(device, size, limits(*case)).expect("memory");
        let num_heads = heads.num_kv_heads;
        let scores = IndexScores { queries: &queries, num_heads, factors: None };
        choose_positions(device, (scores, step), cache.layer(1), &mut choice);
        let shape = AttentionShape {
            num_heads: heads.num_heads,
            num_kv_heads: heads.num_kv_heads,
            scale: 0.3,
            soft_cap: None,
            reach: Reach::All,
            is_causal: false,
            alibi: None,
            sinks: None,
        };
        let mut out = output(device, num_rows, heads.q_width(), Precision::Activation);
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

    fn qkv(&self, ranges: &[(usize, usize)]) -> Tensor {
        self.rows(ranges, self.case.heads.qkv_width(), |seed, width| {
            self.pair.values(1, width, 7 + seed, 1.5).values
        })
    }

    fn index_rows(&self, ranges: &[(usize, usize)]) -> Tensor {
        self.rows(ranges, self.case.index().qk_width(), |seed, width| {
            self.integers(width, 100_000 + seed)
        })
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
        num_q_per_kv: case.heads.num_heads / case.heads.num_kv_heads,
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
fn index_maxima_and_choose_blocks_take_the_best_and_the_lowest() {
    in_every_dtype(341, |pair| {
        for case in CASES {
            let what = format!("blocks of {} of {:?}", case.unit, pair.dtype);
            let all = LENS.map(|len| (0, len));
            let expected = Run::new(pair, &pair.cpu, case).attend(&all);
            let mut run = Run::new(pair, &pair.gpu, case);
            let together = run.attend(&all);
            let width = case.heads.q_width();
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
