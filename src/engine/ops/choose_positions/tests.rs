//! Choices, and attention to them, against loops; and alone, in chunks and together.

use std::ops::Range;

use super::*;
use crate::batch::Batch;
use crate::{
    AttentionScratch, AttentionShape, QkvHeads, attention_of_chosen, paged_attention,
    rotary_and_cache,
};
use vllm_batch_base::config::DType;
use vllm_batch_base::isa::Isa;
use vllm_batch_base::layers::Reach;
use vllm_batch_device::KvCache;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::simd::InstructionSet;

const NUM_CHOSEN: usize = 12;
const LENS: [usize; 3] = [40, 9, 77];
/// Of attention: latents of 20 values, behind 6 that turn.
const HEADS: QkvHeads = QkvHeads { num_heads: 3, num_kv_heads: 1, head_dim: 26 };
const V_DIM: usize = 20;
/// Of the indexer. Its scales are powers of 2, and its values small integers: scores are exact, and
/// many are equal.
const INDEX: QkvHeads = QkvHeads { num_heads: 4, num_kv_heads: 1, head_dim: 16 };

pub(super) fn mix(seed: usize, index: usize) -> u32 {
    let x = (seed as u32).wrapping_mul(0x9E37_79B9).wrapping_add(index as u32);
    let x = (x ^ (x >> 16)).wrapping_mul(0x85EB_CA6B);
    let x = (x ^ (x >> 13)).wrapping_mul(0xC2B2_AE35);
    x ^ (x >> 16)
}

/// The values of a token of a sequence.
fn row(kind: usize, (seq, position): (usize, usize), width: usize) -> Vec<f32> {
    let seed = kind * 1_000_003 + seq * 1009 + position;
    let value = |index| match kind {
        // Mostly zeros, so that scores are often equal.
        0 => ((mix(seed, index) % 7) as f32 - 3.0).clamp(-1.0, 1.0).trunc(),
        1 => (mix(seed, index) % 3) as f32 - 1.0,
        // What bfloat16 holds.
        _ => (mix(seed, index) % 64) as f32 / 32.0 - 1.0,
    };
    (0..width).map(value).collect()
}

/// A cache with all tokens, and blocks of 16 for each sequence.
struct Case {
    device: Device,
    dtype: DType,
    cache: KvCache,
}

impl Case {
    fn new(isa: Isa, num_threads: usize, dtype: DType) -> Self {
        let device = Device::cpu_with_isa(num_threads, isa);
        let shape = KvCacheShape {
            layers: vec![
                KvHeads { num: 1, head_dim: HEADS.head_dim, v_dim: V_DIM },
                KvHeads { num: 1, head_dim: INDEX.head_dim, v_dim: 0 },
            ],
            num_blocks: 3 * 5,
            block_size: 16,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let mut case = Self { device, dtype, cache: KvCache::new(shape, dtype) };
        let all = LENS.map(|len| 0..len);
        let batch = batch(&all);
        let step = Step::on_host(&batch);
        let (mut latents, mut keys) = (latents(&all), index_rows(&all));
        let layer = case.cache.layer_mut(0);
        rotary_and_cache(&case.device, (&mut latents, HEADS), None, step, layer);
        let layer = case.cache.layer_mut(1);
        rotary_and_cache(&case.device, (&mut keys, INDEX), None, step, layer);
        case
    }

    /// What these tokens choose, and what attention gives them.
    fn run(&self, tokens: &[Range<usize>; 3]) -> (Choice, Tensor) {
        let batch = batch(tokens);
        let step = Step::on_host(&batch);
        let size = ChoiceSize::of_positions(NUM_CHOSEN);
        let mut choice = Choice::new(&self.device, size, limits(HEADS.num_heads, HEADS)).unwrap();
        let (queries, factors) = (index_rows(tokens), factors(tokens));
        let factors = Some((&factors, 2));
        let scores = IndexScores { queries: &queries, num_heads: INDEX.num_heads, factors };
        choose_positions(&self.device, (scores, step), self.cache.layer(1), &mut choice);
        let qkv = latents(tokens);
        let mut out = Tensor::zeros(batch.num_tokens(), HEADS.num_heads * V_DIM);
        let layer = (self.cache.layer(0), &choice);
        let mut scratch = AttentionScratch::default();
        attention_of_chosen(&self.device, (&qkv, step), layer, SHAPE, &mut scratch, &mut out);
        (choice, out)
    }
}

/// The CPU's choices have no limits.
pub(super) fn limits(num_q_per_kv: usize, heads: QkvHeads) -> StepLimits {
    StepLimits {
        max_num_tokens: 0,
        max_num_seqs: 0,
        max_num_logits: 0,
        max_model_len: 0,
        block_size: 16,
        num_q_per_kv,
        heads,
        attends_to_all: false,
        has_states: false,
        has_axes: false,
        has_whole_images: false,
        has_choices: true,
    }
}

pub(super) const SHAPE: AttentionShape<'_> = AttentionShape {
    num_heads: HEADS.num_heads,
    num_kv_heads: 1,
    scale: 0.3,
    soft_cap: None,
    reach: Reach::All,
    is_causal: false,
    alibi: None,
    sinks: None,
};

fn batch(tokens: &[Range<usize>; 3]) -> Batch {
    batch_of(tokens, 5, |seq, index| seq * 5 + index)
}

/// These tokens of each sequence; those without any are not in it. `block` says which block of the
/// cache a sequence has at an index.
pub(super) fn batch_of(
    tokens: &[Range<usize>],
    max_blocks_per_seq: usize,
    block: impl Fn(usize, usize) -> usize,
) -> Batch {
    let mut batch = Batch { max_blocks_per_seq, query_start_loc: vec![0], ..Batch::default() };
    for (seq, range) in tokens.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        let block = |index: usize| block(seq, index) as u32;
        let slot = |position: usize| block(position / 16) * 16 + (position % 16) as u32;
        batch.positions.extend(range.clone().map(|position| position as u32));
        batch.slot_mapping.extend(range.clone().map(slot));
        batch.input_ids.resize(batch.positions.len(), 0);
        batch.query_start_loc.push(batch.positions.len() as u32);
        batch.seq_lens.push(range.end as u32);
        batch.block_tables.extend((0..max_blocks_per_seq).map(block));
    }
    batch
}

fn rows(
    tokens: &[Range<usize>; 3],
    width: usize,
    of: impl Fn((usize, usize)) -> Vec<f32>,
) -> Tensor {
    let each = tokens
        .iter()
        .enumerate()
        .flat_map(|(seq, range)| range.clone().map(move |position| (seq, position)));
    Tensor::from_vec(each.flat_map(of).collect(), width)
}

/// q, K and V, which is the last values of K.
fn latents(tokens: &[Range<usize>; 3]) -> Tensor {
    let width = HEADS.q_width() + HEADS.head_dim + V_DIM;
    rows(tokens, width, |token| {
        let mut values = row(2, token, HEADS.q_width() + HEADS.head_dim);
        values.extend_from_within(HEADS.q_width() + HEADS.head_dim - V_DIM..);
        values
    })
}

fn index_rows(tokens: &[Range<usize>; 3]) -> Tensor {
    rows(tokens, INDEX.q_width() + INDEX.head_dim, |token| {
        row(0, token, INDEX.q_width() + INDEX.head_dim)
    })
}

/// From column 2 on.
fn factors(tokens: &[Range<usize>; 3]) -> Tensor {
    rows(tokens, 2 + INDEX.num_heads, |token| row(1, token, 2 + INDEX.num_heads))
}

/// The positions of the best scores, by a stable sort.
fn expected_choice(token: (usize, usize)) -> Vec<u32> {
    let (width, head_dim) = (INDEX.q_width(), INDEX.head_dim);
    let of_token = row(0, token, width + head_dim);
    let factors = row(1, token, 2 + INDEX.num_heads);
    let score = |position: usize| {
        let key = &row(0, (token.0, position), width + head_dim)[width..];
        let heads = of_token[..width].chunks(head_dim).zip(&factors[2..]);
        let of_head = |(q, factor): (&[f32], &f32)| {
            let product: f32 = q.iter().zip(key).map(|(q, k)| q * k).sum();
            product.max(0.0) * factor
        };
        heads.map(of_head).sum::<f32>()
    };
    let scores: Vec<f32> = (0..=token.1).map(score).collect();
    let mut order: Vec<u32> = (0..scores.len() as u32).collect();
    order.sort_by(|a, b| scores[*b as usize].partial_cmp(&scores[*a as usize]).unwrap());
    order.truncate(NUM_CHOSEN);
    order.sort_unstable();
    order
}

/// Attention of a token to some positions.
fn expected(token: (usize, usize), positions: &[u32]) -> Vec<f64> {
    let (width, head_dim) = (HEADS.q_width(), HEADS.head_dim);
    let query = row(2, token, width + head_dim);
    let key =
        |position: &u32| row(2, (token.0, *position as usize), width + head_dim)[width..].to_vec();
    let keys: Vec<Vec<f32>> = positions.iter().map(key).collect();
    let mut out = Vec::new();
    for q in query[..width].chunks(head_dim) {
        let score = |key: &Vec<f32>| {
            let product: f64 = q.iter().zip(key).map(|(q, k)| f64::from(q * k)).sum();
            (0.3 * product).exp()
        };
        let weights: Vec<f64> = keys.iter().map(score).collect();
        let total: f64 = weights.iter().sum();
        for column in head_dim - V_DIM..head_dim {
            let values = keys.iter().zip(&weights).map(|(key, w)| f64::from(key[column]) * w);
            out.push(values.sum::<f64>() / total);
        }
    }
    out
}

#[test]
fn choices_and_attention_to_them_are_those_of_loops() {
    for isa in Isa::all_available() {
        for (dtype, slack) in [(DType::Float32, 1e-5), (DType::BFloat16, 2e-2)] {
            let case = Case::new(isa, 2, dtype);
            let all = LENS.map(|len| 0..len);
            let (choice, out) = case.run(&all);
            let tokens =
                LENS.iter().enumerate().flat_map(|(seq, len)| (0..*len).map(move |p| (seq, p)));
            for (index, token) in tokens.enumerate() {
                let seen: Vec<u32> = match token.1 < NUM_CHOSEN {
                    true => (0..=token.1 as u32).collect(),
                    false => {
                        let chosen = expected_choice(token);
                        let got = choice.of_token(index).next();
                        assert_eq!(got, Some(&chosen[..]), "{isa:?} {dtype:?} {token:?}");
                        chosen
                    }
                };
                for (got, expected) in out.row(index).iter().zip(expected(token, &seen)) {
                    let far = (f64::from(*got) - expected).abs();
                    assert!(far < slack, "{isa:?} {dtype:?} {token:?}: {got} {expected}");
                }
            }
        }
    }
}

#[test]
fn rows_are_the_same_alone_in_chunks_and_on_other_threads() {
    for isa in Isa::all_available() {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
            let all = Case::new(isa, 3, dtype).run(&LENS.map(|len| 0..len));
            let case = Case::new(isa, 1, dtype);
            for (seq, len) in LENS.into_iter().enumerate() {
                let first: usize = LENS[..seq].iter().sum();
                for chunk in [1, 7, 33] {
                    for start in (0..len).step_by(chunk) {
                        let mut tokens = [0..0, 0..0, 0..0];
                        tokens[seq] = start..(start + chunk).min(len);
                        let (choice, out) = case.run(&tokens);
                        for (index, position) in tokens[seq].clone().enumerate() {
                            let together = first + position;
                            let what = format!("{isa:?} {dtype:?} {seq} {position}");
                            assert_eq!(out.row(index), all.1.row(together), "{what}");
                            if position >= NUM_CHOSEN {
                                let of_all = all.0.of_token(together);
                                assert!(choice.of_token(index).eq(of_all), "{what}");
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tokens_that_see_all_have_the_bits_of_attention_to_all() {
    for isa in Isa::all_available() {
        let case = Case::new(isa, 2, DType::BFloat16);
        let tokens = LENS.map(|len| 0..len.min(NUM_CHOSEN));
        let (_, out) = case.run(&tokens);
        let batch = batch(&tokens);
        let (qkv, step) = (latents(&tokens), Step::on_host(&batch));
        let mut to_all = Tensor::zeros(batch.num_tokens(), HEADS.num_heads * V_DIM);
        let (layer, mut scratch) = (case.cache.layer(0), AttentionScratch::default());
        paged_attention(&case.device, (&qkv, step), layer, SHAPE, &mut scratch, &mut to_all);
        assert_eq!(out.values(), to_all.values(), "{isa:?} {:?}", case.dtype);
    }
}
