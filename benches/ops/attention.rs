//! Paged attention: a decode step of 64 sequences, and a prompt of 512 tokens.

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::Reach;
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch::engine::device::{KvCache, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    AttentionScratch, AttentionShape, Step, paged_attention, rotary_and_cache,
};

use super::{DEVICE, HEAD_DIM, QWEN05, SMOL135, Shape, random};

const BLOCK_SIZE: usize = 32;

/// K and V of a decode step's layers, one after the other: more than any cache holds, so that they
/// come from memory, as in a model.
const STREAMED_BYTES: usize = 512 << 20;

/// `num_seqs` sequences of `context` tokens each, the last `num_tokens` of which are the step's.
#[derive(Clone, Copy)]
struct Case {
    shape: Shape,
    num_seqs: usize,
    num_tokens: usize,
    context: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { shape, num_seqs, num_tokens, context } = *self;
        match num_tokens {
            1 => write!(f, "{} decode batch={num_seqs} context={context}", shape.name),
            _ => write!(f, "{} prefill tokens={num_tokens}", shape.name),
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    [SMOL135, QWEN05].into_iter().flat_map(|shape| {
        let decode = |context| Case { shape, num_seqs: 64, num_tokens: 1, context };
        [
            decode(80),
            decode(256),
            decode(1024),
            Case { shape, num_seqs: 1, num_tokens: 512, context: 512 },
        ]
    })
}

#[divan::bench(args = cases())]
fn bf16(bencher: Bencher, case: Case) {
    run(bencher, DType::BFloat16, case);
}

#[divan::bench(args = cases())]
fn f32(bencher: Bencher, case: Case) {
    run(bencher, DType::Float32, case);
}

fn run(bencher: Bencher, dtype: DType, case: Case) {
    let Case { shape, num_seqs, num_tokens, context } = case;
    let batch = batch(case);
    let num_layers = match num_tokens {
        1 => STREAMED_BYTES.div_ceil(kv_bytes(dtype, case)),
        _ => 1,
    };
    let cache = filled_cache(dtype, case, num_layers, &batch);
    let qkv = random(num_seqs * num_tokens, shape.qkv(), 3);
    let mut out = Tensor::zeros(num_seqs * num_tokens, shape.num_heads * HEAD_DIM);
    let scale = (HEAD_DIM as f32).powf(-0.5);
    let attention = AttentionShape {
        num_heads: shape.num_heads,
        num_kv_heads: shape.num_kv_heads,
        scale,
        soft_cap: None,
        reach: Reach::All,
        is_causal: false,
        alibi: None,
        sinks: None,
    };
    let mut scratch = AttentionScratch::default();

    // Each token sees itself and what is before it; q K and p V are a multiply-add per element.
    let first = context - num_tokens + 1;
    let num_scores = num_seqs * num_tokens * (first + context) / 2 * shape.num_heads;
    let mut layers = (0..num_layers).cycle();
    bencher
        .counter(ItemsCount::new(4 * num_scores * HEAD_DIM))
        .counter(BytesCount::new(kv_bytes(dtype, case)))
        .bench_local(|| {
            let layer = cache.layer(layers.next().unwrap_or(0));
            let input = (&qkv, Step::on_host(&batch));
            paged_attention(&DEVICE, input, layer, attention, &mut scratch, &mut out);
        });
}

/// Bytes of K and V of one layer.
fn kv_bytes(dtype: DType, Case { shape, num_seqs, context, .. }: Case) -> usize {
    2 * num_seqs * context * shape.num_kv_heads * HEAD_DIM * dtype.size_bytes()
}

/// Blocks of the sequences alternate, as they do when sequences grow side by side.
fn batch(case: Case) -> Batch {
    let Case { num_seqs, num_tokens, context, .. } = case;
    let max_blocks_per_seq = context.div_ceil(BLOCK_SIZE);
    let block = |seq: usize, index: usize| (index * num_seqs + seq) as u32;
    let mut batch = Batch { max_blocks_per_seq, ..Batch::default() };
    batch.query_start_loc.push(0);
    for seq in 0..num_seqs {
        batch.positions.extend((context - num_tokens) as u32..context as u32);
        batch.query_start_loc.push(batch.positions.len() as u32);
        batch.seq_lens.push(context as u32);
        batch.block_tables.extend((0..max_blocks_per_seq).map(|index| block(seq, index)));
    }
    batch
}

/// Every slot is written: pages that were never touched are all one page of zeros, and in the
/// cache.
fn filled_cache(dtype: DType, case: Case, num_layers: usize, batch: &Batch) -> KvCache {
    let num_blocks = batch.block_tables.len();
    let mut cache = empty_cache(case.shape, (num_layers, num_blocks), dtype);
    for block in 0..num_blocks {
        let mut qkv = random(BLOCK_SIZE, case.shape.qkv(), block as u64);
        let first = (block * BLOCK_SIZE) as u32;
        let slot_mapping = (first..first + BLOCK_SIZE as u32).collect();
        let batch = Batch { slot_mapping, ..Batch::default() };
        for layer in 0..num_layers {
            let (qkv, layer) = ((&mut qkv, case.shape.heads()), cache.layer_mut(layer));
            rotary_and_cache(&DEVICE, qkv, None, Step::on_host(&batch), layer);
        }
    }
    cache
}

/// Layers of `num_blocks` blocks each.
pub(super) fn empty_cache(
    shape: Shape,
    (num_layers, num_blocks): (usize, usize),
    dtype: DType,
) -> KvCache {
    let heads = KvHeads { num: shape.num_kv_heads, head_dim: HEAD_DIM, v_dim: HEAD_DIM };
    let shape = KvCacheShape {
        layers: vec![heads; num_layers],
        num_blocks,
        block_size: BLOCK_SIZE,
        states: StateShape::default(),
        panel_width: DEVICE.kv_panel_width(),
    };
    KvCache::new(shape, dtype)
}
