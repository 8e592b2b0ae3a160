//! Sequences that begin with the same blocks: computed together, each has the bits that it has
//! alone.

use super::super::{WeightValues, paged_attention};
use super::plan::{Group, Plan};
use super::*;
use crate::{Step, rotary_and_cache};
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::alibi_slopes;
use vllm_batch_base::layers::{QkvHeads, Reach};
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_base::split_mix::mix;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;
use vllm_batch_device::{Device, KvCache};

/// Sequences of at most so many blocks.
const MAX_BLOCKS: usize = 9;

#[derive(Clone, Copy)]
struct Case<'a> {
    isa: Isa,
    dtype: DType,
    heads: QkvHeads,
    v_dim: usize,
    block_size: usize,
    num_seqs: usize,
    /// Tokens of a sequence in the step, at most.
    max_tokens: usize,
    reach: Reach,
    soft_cap: Option<f32>,
    alibi: Option<&'a WeightValues>,
    sinks: Option<&'a WeightValues>,
}

/// Cache and batch of a step.
struct Filled {
    batch: Batch,
    cache: KvCache,
    qkv: Tensor,
}

impl Case<'_> {
    fn new(isa: Isa, dtype: DType) -> Self {
        Self {
            isa,
            dtype,
            heads: QkvHeads { num_heads: 6, num_kv_heads: 2, head_dim: 24 },
            v_dim: 24,
            block_size: 16,
            num_seqs: 12,
            max_tokens: 1,
            reach: Reach::All,
            soft_cap: None,
            alibi: None,
            sinks: None,
        }
    }

    fn attention(&self) -> AttentionShape<'_> {
        AttentionShape {
            num_heads: self.heads.num_heads,
            num_kv_heads: self.heads.num_kv_heads,
            scale: 0.3,
            soft_cap: self.soft_cap,
            reach: self.reach,
            is_causal: false,
            alibi: self.alibi,
            sinks: self.sinks,
        }
    }

    /// Every sequence takes some first blocks of an earlier one, and then its own. Most have long
    /// beginnings in common.
    fn batch(&self, seed: u64) -> Batch {
        let mut state = seed;
        let mut random = |below: usize| {
            state += 1;
            (mix(state) % below as u64) as usize
        };
        let mut batch =
            Batch { max_blocks_per_seq: MAX_BLOCKS, query_start_loc: vec![0], ..Batch::default() };
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for seq in 0..self.num_seqs {
            let num_blocks = 1 + random(MAX_BLOCKS);
            let num_shared = match random(4) {
                0 => 0,
                1 => random(num_blocks + 1),
                _ => num_blocks - 1,
            };
            let mut table: Vec<u32> = match tables.len() {
                0 => Vec::new(),
                len => tables[random(len.min(3))].iter().copied().take(num_shared).collect(),
            };
            let own = table.len()..num_blocks;
            table.extend(own.map(|block| (seq * MAX_BLOCKS + block) as u32));
            let end = (num_blocks - 1) * self.block_size + 1 + random(self.block_size);
            let num_tokens = (1 + random(self.max_tokens)).min(end);
            batch.positions.extend((end - num_tokens) as u32..end as u32);
            batch.input_ids.resize(batch.positions.len(), 0);
            batch.query_start_loc.push(batch.positions.len() as u32);
            batch.seq_lens.push(end as u32);
            batch.block_tables.extend(&table);
            batch.block_tables.resize((seq + 1) * MAX_BLOCKS, 0);
            tables.push(table);
        }
        batch
    }

    fn kv_shape(&self) -> KvCacheShape {
        let QkvHeads { num_kv_heads, head_dim, .. } = self.heads;
        KvCacheShape {
            layers: vec![KvHeads { num: num_kv_heads, head_dim, v_dim: self.v_dim }],
            num_blocks: self.num_seqs * MAX_BLOCKS,
            block_size: self.block_size,
            states: StateShape::default(),
            panel_width: Device::cpu_with_isa(1, self.isa).kv_panel_width(),
        }
    }

    /// `poison` is put into V of the last position of the sequence at that place.
    fn filled(&self, seed: u64, poison: Option<(usize, f32)>) -> Filled {
        let device = Device::cpu_with_isa(1, self.isa);
        let QkvHeads { num_heads, num_kv_heads, head_dim } = self.heads;
        let first_v = (num_heads + num_kv_heads) * head_dim;
        let width = first_v + num_kv_heads * self.v_dim;
        let batch = self.batch(seed);
        let mut cache = KvCache::new(self.kv_shape(), self.dtype);
        let num_slots = self.num_seqs * MAX_BLOCKS * self.block_size;
        let mut kv = SourceMatrix::random(num_slots, width, seed, 1.5).to_vec();
        if let Some((seq, value)) = poison {
            let position = batch.seq_lens[seq] as usize - 1;
            let block = batch.block_table(seq)[position / self.block_size] as usize;
            let slot = block * self.block_size + position % self.block_size;
            kv[slot * width + first_v..(slot + 1) * width].fill(value);
        }
        let mut kv = Tensor::from_vec(kv, width);
        let slots = Batch { slot_mapping: (0..num_slots as u32).collect(), ..Batch::default() };
        let input = (&mut kv, self.heads);
        rotary_and_cache(&device, input, None, Step::on_host(&slots), cache.layer_mut(0));
        let qkv = SourceMatrix::random(batch.num_tokens(), width, seed + 1, 1.5).to_vec();
        Filled { batch, cache, qkv: Tensor::from_vec(qkv, width) }
    }

    /// The outputs' bits, one sequence after the other.
    fn run(&self, num_threads: usize, filled: &Filled) -> Vec<u32> {
        let device = Device::cpu_with_isa(num_threads, self.isa);
        let Filled { batch, cache, qkv } = filled;
        let mut out = Tensor::zeros(qkv.num_rows(), self.heads.num_heads * self.v_dim);
        let (input, layer) = ((qkv, Step::on_host(batch)), cache.layer(0));
        let mut scratch = AttentionScratch::default();
        paged_attention(&device, input, layer, self.attention(), &mut scratch, &mut out);
        (0..out.num_rows()).flat_map(|row| out.row(row)).map(|value| value.to_bits()).collect()
    }

    /// The same, each sequence in a step of its own.
    fn run_alone(&self, filled: &Filled) -> Vec<u32> {
        let Filled { batch, cache, qkv } = filled;
        let mut bits = Vec::new();
        for seq in 0..batch.num_seqs() {
            let [start, end] = [seq, seq + 1].map(|i| batch.query_start_loc[i]);
            let tokens = start as usize..end as usize;
            let alone = Batch {
                positions: batch.positions[tokens.clone()].to_vec(),
                input_ids: vec![0; tokens.len()],
                query_start_loc: vec![0, end - start],
                seq_lens: vec![batch.seq_lens[seq]],
                block_tables: batch.block_table(seq).to_vec(),
                max_blocks_per_seq: MAX_BLOCKS,
                ..Batch::default()
            };
            let rows = tokens.flat_map(|token| qkv.row(token)).copied().collect();
            let qkv = Tensor::from_vec(rows, qkv.width());
            let device = Device::cpu_with_isa(1, self.isa);
            let mut out = Tensor::zeros(qkv.num_rows(), self.heads.num_heads * self.v_dim);
            let (input, layer) = ((&qkv, Step::on_host(&alone)), cache.layer(0));
            let mut scratch = AttentionScratch::default();
            paged_attention(&device, input, layer, self.attention(), &mut scratch, &mut out);
            let values = (0..out.num_rows()).flat_map(|row| out.row(row));
            bits.extend(values.map(|value| value.to_bits()));
        }
        bits
    }

    fn check(&self, seed: u64) {
        let filled = self.filled(seed, None);
        let alone = self.run_alone(&filled);
        for num_threads in [1, 2, 8] {
            assert!(
                self.run(num_threads, &filled) == alone,
                "{:?} {:?} seed {seed}, {num_threads} threads",
                self.isa,
                self.dtype
            );
        }
    }

    fn with_plan<R>(&self, num_threads: usize, batch: &Batch, check: impl Fn(&Plan) -> R) -> R {
        let device = Device::cpu_with_isa(num_threads, self.isa);
        let Device::Cpu(cpu) = &device else { unreachable!("a CPU was asked for") };
        let (qkv, kv) = (Tensor::zeros(0, 1), self.kv_shape().layer(0));
        let task = Task { cpu, qkv: &qkv, batch, shape: self.attention(), kv, end: u32::MAX };
        let mut scratch = AttentionScratch::default();
        scratch.sharing.find(batch, self.block_size);
        scratch.prepare(&task);
        check(&scratch.plan)
    }
}

fn of_heads(values: Vec<f32>) -> WeightValues {
    WeightValues::on_device(&Device::cpu(Some(1)), values).unwrap()
}

fn for_each_kind(mut check: impl FnMut(Isa, DType)) {
    for isa in Isa::all_available() {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
            check(isa, dtype);
        }
    }
}

/// Positions that a group's rows read, and those that they would read alone.
fn positions_read(plan: &Plan, group: Group) -> (usize, usize) {
    let read = plan.spans(group).iter().map(|span| (span.end - span.start) as usize).sum();
    let pieces = plan.pieces(group).iter();
    (read, pieces.map(|piece| (piece.last_end - piece.start) as usize).sum())
}

#[test]
fn every_row_meets_its_positions_once_and_upward() {
    let case = Case { num_seqs: 40, max_tokens: 3, ..Case::new(Isa::Portable, DType::Float32) };
    let case = Case { heads: QkvHeads { num_kv_heads: 6, ..case.heads }, ..case };
    for seed in 0..50 {
        let batch = case.batch(seed * 1000);
        for num_threads in [1, 2, 64] {
            case.with_plan(num_threads, &batch, |plan| check_plan(plan, &batch, case));
        }
    }
}

fn check_plan(plan: &Plan, batch: &Batch, case: Case<'_>) {
    let mut seen = vec![0; batch.num_tokens()];
    let (mut num_read, mut num_alone) = (0, 0);
    for &item in plan.items.iter().filter(|item| item.kv_head == 0) {
        let group = plan.group(item);
        let (read, alone) = positions_read(plan, group);
        (num_read, num_alone) = (num_read + read, num_alone + alone);
        for piece in plan.pieces(group) {
            for (index, token) in piece.tokens().enumerate() {
                seen[token] += 1;
                let at = piece.at + index as u32;
                let mut next = 0;
                for span in plan.spans(group) {
                    if !(span.tokens.0..span.tokens.1).contains(&at) {
                        continue;
                    }
                    assert_eq!(span.start, next);
                    next = span.end;
                    for block in span.start as usize / case.block_size
                        ..(span.end as usize).div_ceil(case.block_size)
                    {
                        let tables =
                            [span.seq, piece.seq].map(|seq| batch.block_table(seq as usize));
                        assert_eq!(tables[0][block], tables[1][block]);
                    }
                }
                assert_eq!(next, piece.last_end);
            }
        }
    }
    assert_eq!(seen, vec![1; batch.num_tokens()]);
    assert!(num_read < num_alone, "{num_read} {num_alone}");
}

#[test]
fn bits_are_those_of_each_sequence_alone() {
    for_each_kind(|isa, dtype| {
        let case = Case::new(isa, dtype);
        for seed in 0..6 {
            case.check(seed * 100);
            Case { block_size: 48, v_dim: 20, max_tokens: 4, ..case }.check(seed * 100 + 50);
        }
        // Rows enough for panels that are widened once.
        let one_head = QkvHeads { num_kv_heads: 1, ..case.heads };
        Case { heads: one_head, num_seqs: 60, max_tokens: 2, block_size: 32, ..case }.check(7);
    });
}

#[test]
fn bits_are_the_same_with_everything_that_bends_scores() {
    let slopes = of_heads(alibi_slopes(6, 8.0).into_iter().map(|slope| 20.0 * slope).collect());
    let sinks = of_heads(vec![-100.0, -1.5, 0.0, 2.5, 9.0, 200.0]);
    for_each_kind(|isa, dtype| {
        for (seed, reach) in [
            (1, Reach::All),
            (2, Reach::Window(1000)),
            (3, Reach::Window(61)),
            (4, Reach::Window(16)),
            (5, Reach::Chunk(1000)),
            (6, Reach::Chunk(61)),
            (7, Reach::Chunk(16)),
        ] {
            let case = Case { reach, max_tokens: 2, num_seqs: 24, ..Case::new(isa, dtype) };
            Case { soft_cap: Some(1.5), alibi: Some(&slopes), ..case }.check(seed);
            Case { sinks: Some(&sinks), ..case }.check(seed + 10);
        }
    });
}

#[test]
fn bits_are_the_same_for_heads_of_any_width_and_number() {
    for_each_kind(|isa, dtype| {
        let case = Case { num_seqs: 10, ..Case::new(isa, dtype) };
        // More inputs than a product takes; and one latent for many heads.
        let wide = QkvHeads { num_heads: 2, num_kv_heads: 1, head_dim: 1050 };
        Case { heads: wide, v_dim: 40, ..case }.check(1);
        let latent = QkvHeads { num_heads: 40, num_kv_heads: 1, head_dim: 36 };
        Case { heads: latent, v_dim: 32, max_tokens: 2, ..case }.check(2);
        // More positions than a product takes.
        Case { block_size: 240, ..case }.check(3);
    });
}

#[test]
fn values_that_are_not_finite_stay_in_their_sequence() {
    for_each_kind(|isa, dtype| {
        let case = Case { num_seqs: 30, max_tokens: 3, ..Case::new(isa, dtype) };
        for (seq, value) in [(3, f32::NAN), (9, f32::INFINITY)] {
            let filled = case.filled(5, Some((seq, value)));
            assert!(case.run(2, &filled) == case.run_alone(&filled), "{isa:?} {dtype:?}");
        }
    });
}
