//! Paged attention: a decode step of 64 sequences, and a prompt of 512 tokens.

use std::fmt;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use vllm_batch::engine::batch::Batch;
use vllm_batch::engine::config::DType;
use vllm_batch::engine::device::kv_cache::KvCacheShape;
use vllm_batch::engine::device::{KvCache, Tensor};
use vllm_batch::engine::ops::{
    AttentionScratch, AttentionShape, Step, paged_attention, rotary_and_cache,
};

use super::{DEVICE, HEAD_DIM, QWEN05, SMOL135, Shape, random};

const BLOCK_SIZE: usize = 32;

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
        [decode(128), decode(1024), Case { shape, num_seqs: 1, num_tokens: 512, context: 512 }]
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
    let cache = filled_cache(dtype, case, &batch);
    let qkv = random(num_seqs * num_tokens, shape.qkv(), 3);
    let mut out = Tensor::zeros(num_seqs * num_tokens, shape.num_heads * HEAD_DIM);
    let scale = (HEAD_DIM as f32).powf(-0.5);
    let attention =
        AttentionShape { num_heads: shape.num_heads, scale, soft_cap: None, sliding_window: None };
    let mut scratch = AttentionScratch::default();

    // Each token sees itself and what is before it; q K and p V are a multiply-add per element.
    let first = context - num_tokens + 1;
    let num_scores = num_seqs * num_tokens * (first + context) / 2 * shape.num_heads;
    let kv_elements = 2 * num_seqs * context * shape.num_kv_heads * HEAD_DIM;
    bencher
        .counter(ItemsCount::new(4 * num_scores * HEAD_DIM))
        .counter(BytesCount::new(kv_elements * dtype.size_bytes()))
        .bench_local(|| {
            let (input, layer) = ((&qkv, Step::on_host(&batch)), (&cache, 0));
            paged_attention(&DEVICE, input, layer, attention, &mut scratch, &mut out);
        });
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
fn filled_cache(dtype: DType, case: Case, batch: &Batch) -> KvCache {
    let num_blocks = batch.block_tables.len();
    let mut cache = empty_cache(case.shape, num_blocks, dtype);
    for block in 0..num_blocks {
        let mut qkv = random(BLOCK_SIZE, case.shape.qkv(), block as u64);
        let first = (block * BLOCK_SIZE) as u32;
        let slot_mapping = (first..first + BLOCK_SIZE as u32).collect();
        let batch = Batch { slot_mapping, ..Batch::default() };
        let (qkv, cache) = ((&mut qkv, case.shape.heads()), (&mut cache, 0));
        rotary_and_cache(&DEVICE, qkv, None, Step::on_host(&batch), cache);
    }
    cache
}

/// One layer of `num_blocks` blocks.
pub(super) fn empty_cache(shape: Shape, num_blocks: usize, dtype: DType) -> KvCache {
    let shape = KvCacheShape {
        num_layers: 1,
        num_blocks,
        block_size: BLOCK_SIZE,
        num_kv_heads: shape.num_kv_heads,
        head_dim: HEAD_DIM,
        panel_width: DEVICE.kv_panel_width(),
    };
    KvCache::new(shape, dtype)
}
