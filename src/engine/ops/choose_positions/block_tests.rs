//! Choices of blocks, and attention to them, against loops; and alone, in chunks and together.

use std::ops::Range;

use super::tests::{batch_of, limits, mix};
use super::*;
use crate::batch::Batch;
use crate::{
    AttentionScratch, AttentionShape, QkvHeads, attention_of_chosen, paged_attention,
    rotary_and_cache,
};
use vllm_batch_base::config::DType;
use vllm_batch_base::isa::Isa;
use vllm_batch_device::KvCache;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::simd::InstructionSet;

const LENS: [usize; 2] = [50, 203];
const MAX_BLOCKS: usize = 13;
/// Six heads of two K and V heads, of which the cache has room for three.
const HEADS: QkvHeads = QkvHeads { num_heads: 6, num_kv_heads: 2, head_dim: 10 };
const INDEX: QkvHeads = QkvHeads { num_heads: 2, num_kv_heads: 1, head_dim: 14 };
const SCALE: f32 = 0.3;

/// A block of the cache each, or three of them; one block, or three.
const SIZES: [ChoiceSize; 3] = [
    ChoiceSize { num_chosen: 48, unit: 16, num_heads: 2 },
    ChoiceSize { num_chosen: 144, unit: 48, num_heads: 2 },
    ChoiceSize { num_chosen: 32, unit: 32, num_heads: 2 },
];

/// The values of a token of a sequence: integers, whose products are exact and often equal, or what
/// bfloat16 holds.
fn row(is_index: bool, (seq, position): (usize, usize), width: usize) -> Vec<f32> {
    let seed = usize::from(is_index) * 1_000_003 + seq * 1009 + position;
    let value = |index| match is_index {
        true => (mix(seed, index) % 3) as f32 - 1.0,
        false => (mix(seed, index) % 64) as f32 / 32.0 - 1.0,
    };
    (0..width).map(value).collect()
}

fn rows(is_index: bool, tokens: &[Range<usize>; 2], width: usize) -> Tensor {
    let each = tokens
        .iter()
        .enumerate()
        .flat_map(|(seq, range)| range.clone().map(move |position| (seq, position)));
    Tensor::from_vec(each.flat_map(|token| row(is_index, token, width)).collect(), width)
}

fn qkv(tokens: &[Range<usize>; 2]) -> Tensor {
    rows(false, tokens, HEADS.qkv_width())
}

fn qk(tokens: &[Range<usize>; 2]) -> Tensor {
    rows(true, tokens, INDEX.qk_width())
}

/// Blocks are not in order.
fn batch(tokens: &[Range<usize>; 2]) -> Batch {
    batch_of(tokens, MAX_BLOCKS, |seq, index| (MAX_BLOCKS - 1 - index) * 2 + seq)
}

const SHAPE: AttentionShape<'_> = AttentionShape {
    num_heads: HEADS.num_heads,
    num_kv_heads: HEADS.num_kv_heads,
    scale: SCALE,
    ..tests::SHAPE
};

/// A cache with all tokens.
struct Case {
    device: Device,
    cache: KvCache,
    size: ChoiceSize,
}

impl Case {
    fn new((isa, num_threads): (Isa, usize), dtype: DType, size: ChoiceSize) -> Self {
        let device = Device::cpu_with_isa(num_threads, isa);
        let shape = KvCacheShape {
            layers: vec![
                KvHeads { num: 3, head_dim: HEADS.head_dim, v_dim: HEADS.head_dim },
                KvHeads { num: 1, head_dim: INDEX.head_dim, v_dim: 0 },
            ],
            num_blocks: 2 * MAX_BLOCKS,
            block_size: 16,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let mut case = Self { device, cache: KvCache::new(shape, dtype), size };
        let all = LENS.map(|len| 0..len);
        let batch = batch(&all);
        let step = Step::on_host(&batch);
        let (mut qkv, mut qk) = (qkv(&all), qk(&all));
        let layer = case.cache.layer_mut(0);
        rotary_and_cache(&case.device, (&mut qkv, HEADS), None, step, layer);
        let layer = case.cache.layer_mut(1);
        rotary_and_cache(&case.device, (&mut qk, INDEX), None, step, layer);
        case
    }

    /// What attention gives these tokens.
    fn run(&self, tokens: &[Range<usize>; 2]) -> Tensor {
        let batch = batch(tokens);
        let step = Step::on_host(&batch);
        let mut choice = Choice::new(&self.device, self.size, limits(3, HEADS)).unwrap();
        let queries = qk(tokens);
        let scores = IndexScores { queries: &queries, num_heads: INDEX.num_heads, factors: None };
        choose_positions(&self.device, (scores, step), self.cache.layer(1), &mut choice);
        let qkv = qkv(tokens);
        let mut out = Tensor::zeros(batch.num_tokens(), HEADS.q_width());
        let layer = (self.cache.layer(0), &choice);
        let mut scratch = AttentionScratch::default();
        attention_of_chosen(&self.device, (&qkv, step), layer, SHAPE, &mut scratch, &mut out);
        out
    }
}

/// The positions that a K and V head of a token attends to.
fn expected_positions(
    size: ChoiceSize,
    (seq, position): (usize, usize),
    head: usize,
) -> Vec<usize> {
    if position < size.num_chosen {
        return (0..=position).collect();
    }
    let own = position / size.unit;
    let query = row(true, (seq, position), INDEX.qk_width());
    let query = &query[head * INDEX.head_dim..][..INDEX.head_dim];
    let score = |position: usize| {
        let key = row(true, (seq, position), INDEX.qk_width());
        let products = query.iter().zip(&key[INDEX.q_width()..]).map(|(q, k)| q * k);
        products.sum::<f32>()
    };
    let best = |block: usize| {
        let scores = (block * size.unit..(block + 1) * size.unit).map(score);
        scores.fold(f32::NEG_INFINITY, f32::max)
    };
    let mut order: Vec<usize> = (0..own).collect();
    order.sort_by(|a, b| best(*b).partial_cmp(&best(*a)).unwrap());
    order.truncate(size.num_chosen / size.unit - 1);
    order.sort_unstable();
    let before = order.into_iter().flat_map(|block| block * size.unit..(block + 1) * size.unit);
    before.chain(own * size.unit..position + 1).collect()
}

/// Attention of a token.
fn expected(size: ChoiceSize, token: (usize, usize)) -> Vec<f64> {
    let of = |position: usize| row(false, (token.0, position), HEADS.qkv_width());
    let (queries, head_dim) = (of(token.1), HEADS.head_dim);
    let mut out = Vec::new();
    for (head, q) in queries[..HEADS.q_width()].chunks(head_dim).enumerate() {
        let kv_head = head / (HEADS.num_heads / HEADS.num_kv_heads);
        let seen: Vec<Vec<f32>> =
            expected_positions(size, token, kv_head).into_iter().map(of).collect();
        let of_k = HEADS.q_width() + kv_head * head_dim;
        let weight = |row: &Vec<f32>| {
            let product: f64 = q.iter().zip(&row[of_k..]).map(|(q, k)| f64::from(q * k)).sum();
            (f64::from(SCALE) * product).exp()
        };
        let weights: Vec<f64> = seen.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let of_v = of_k + HEADS.kv_width();
        out.extend((0..head_dim).map(|column| {
            let values =
                seen.iter().zip(&weights).map(|(row, w)| f64::from(row[of_v + column]) * w);
            values.sum::<f64>() / total
        }));
    }
    out
}

#[test]
fn attention_to_chosen_blocks_is_that_of_loops() {
    for size in SIZES {
        let tokens =
            LENS.iter().enumerate().flat_map(|(seq, len)| (0..*len).map(move |p| (seq, p)));
        let all: Vec<_> = tokens.map(|token| (token, expected(size, token))).collect();
        for isa in Isa::all_available() {
            for (dtype, slack) in [(DType::Float32, 1e-5), (DType::BFloat16, 2e-2)] {
                let out = Case::new((isa, 2), dtype, size).run(&LENS.map(|len| 0..len));
                for (index, (token, expected)) in all.iter().enumerate() {
                    for (got, expected) in out.row(index).iter().zip(expected) {
                        let far = (f64::from(*got) - expected).abs();
                        assert!(
                            far < slack,
                            "{isa:?} {dtype:?} {size:?} {token:?}: {got} {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_with_chosen_blocks_are_the_same_alone_in_chunks_and_on_other_threads() {
    for (isa, size) in
        Isa::all_available().into_iter().flat_map(|isa| SIZES.map(|size| (isa, size)))
    {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
            let all = Case::new((isa, 3), dtype, size).run(&LENS.map(|len| 0..len));
            let case = Case::new((isa, 1), dtype, size);
            for (seq, len) in LENS.into_iter().enumerate() {
                let first: usize = LENS[..seq].iter().sum();
                for chunk in [1, 37] {
                    for start in (0..len).step_by(chunk) {
                        let mut tokens = [0..0, 0..0];
                        tokens[seq] = start..(start + chunk).min(len);
                        let out = case.run(&tokens);
                        for (index, position) in tokens[seq].clone().enumerate() {
                            let what = format!("{isa:?} {dtype:?} {size:?} {seq} {position}");
                            assert_eq!(out.row(index), all.row(first + position), "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_that_see_all_blocks_have_the_bits_of_attention_to_all() {
    for isa in Isa::all_available() {
        let size = SIZES[1];
        let case = Case::new((isa, 2), DType::BFloat16, size);
        let tokens = LENS.map(|len| 0..len.min(size.num_chosen));
        let batch = batch(&tokens);
        let (qkv, step) = (qkv(&tokens), Step::on_host(&batch));
        let mut to_all = Tensor::zeros(batch.num_tokens(), HEADS.q_width());
        let (layer, mut scratch) = (case.cache.layer(0), AttentionScratch::default());
        paged_attention(&case.device, (&qkv, step), layer, SHAPE, &mut scratch, &mut to_all);
        assert_eq!(case.run(&tokens).values(), to_all.values(), "{isa:?}");
    }
}
