//! Units of attention of a step.

use crate::batch::Batch;
use vllm_batch_device::CacheLayer;
use vllm_batch_device::op_times::Work;

use super::AttentionShape;
use super::sharing::Sharing;

/// Operations of scores and values over all positions attended to; bytes of q and out, and of the K
/// and V that some token sees: once for the query heads that share them, and once for all sequences
/// that have them in the same blocks, whoever reads them together.
pub(super) fn work(
    batch: &Batch,
    sharing: &Sharing,
    shape: AttentionShape<'_>,
    layer: CacheLayer<'_>,
) -> Work {
    let kv = layer.shape();
    let (mut num_scores, mut num_positions) = (0.0, 0);
    // Where the sequence before begins to attend.
    let mut before = 0;
    for place in 0..sharing.len() {
        let seq = sharing.seq(place);
        let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
        let (end, num_tokens) = (u64::from(batch.seq_lens[seq]), u64::from(end - start));
        let start = end - num_tokens;
        let seen = |end: u64| shape.reach.num_seen_before(end as usize);
        num_scores += seen(end) - seen(start) + num_after(batch, shape, seq) as f64;
        let first = shape.reach.first(start as usize) as u64;
        let shared_end = (sharing.depth(place) * kv.block_size) as u64;
        num_positions += end - first - shared_end.saturating_sub(first.max(before));
        before = first;
    }
    let of_heads = |num_heads| num_heads * (kv.head_dim + kv.v_dim);
    let kv_bytes = of_heads(shape.num_kv_heads) * layer.cache.element_bytes();
    let row_bytes = of_heads(shape.num_heads) * size_of::<f32>();
    Work {
        flops: 2.0 * of_heads(shape.num_heads) as f64 * num_scores,
        bytes: (num_positions as usize * kv_bytes + batch.num_tokens() * row_bytes) as f64,
    }
}

/// Positions after a sequence's tokens that these attend to.
fn num_after(batch: &Batch, shape: AttentionShape<'_>, seq: usize) -> u64 {
    if batch.attended_ends.is_empty() {
        return 0;
    }
    let tokens = batch.query_start_loc[seq] as usize..batch.query_start_loc[seq + 1] as usize;
    let after = |token: usize| shape.attended_end(batch, token) - batch.positions[token] - 1;
    tokens.map(|token| u64::from(after(token))).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use vllm_batch_base::config::DType;
    use vllm_batch_base::layers::Reach;
    use vllm_batch_device::KvCache;
    use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};

    #[test]
    fn positions_are_counted_as_a_loop_would() {
        let shape = KvCacheShape {
            layers: vec![KvHeads { num: 2, head_dim: 8, v_dim: 8 }],
            num_blocks: 2,
            block_size: 16,
            states: StateShape::default(),
            panel_width: 16,
        };
        let cache = KvCache::new(shape, DType::BFloat16);
        // A prompt of 7, the rest of one of 9, a token after 11 others; then two that share two
        // blocks, and the second of these with a third one block more.
        let tables = [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [3, 4, 5, 0], [3, 4, 6, 7]];
        let batch = Batch {
            input_ids: vec![0; 17],
            query_start_loc: vec![0, 7, 12, 13, 14, 16, 17],
            seq_lens: vec![7, 9, 12, 40, 50, 64],
            block_tables: [tables.concat(), vec![3, 4, 6, 8]].concat(),
            max_blocks_per_seq: 4,
            ..Batch::default()
        };
        let mut sharing = Sharing::default();
        sharing.find(&batch, 16);
        let ranges = [(0, 7), (4, 9), (11, 12), (39, 40), (48, 50), (63, 64)];
        let windows = [1, 3, 5, 100].map(Reach::Window);
        let chunks = [1, 6, 32, 100].map(Reach::Chunk);
        for reach in [Reach::All].into_iter().chain(windows).chain(chunks) {
            let (mut num_scores, mut slots) = (0, HashSet::new());
            for (seq, (start, end)) in ranges.into_iter().enumerate() {
                let first = |token: usize| reach.first(token);
                num_scores += (start..end).map(|token| token + 1 - first(token)).sum::<usize>();
                let table = batch.block_table(seq);
                slots.extend((first(start)..end).map(|position| (table[position / 16], position)));
            }
            let num_positions = slots.len();
            for num_kv_heads in [2, 1] {
                let attention = AttentionShape {
                    num_heads: 6,
                    num_kv_heads,
                    scale: 1.0,
                    soft_cap: None,
                    reach,
                    is_causal: false,
                    alibi: None,
                    sinks: None,
                };
                // Scores and values of 6 heads of 8; K and V of heads of 8 in 2 bytes; q and out.
                let flops = (num_scores * 6 * 8 * 2 * 2) as f64;
                let kv_bytes = num_positions * 2 * num_kv_heads * 8 * 2;
                let bytes = (kv_bytes + 17 * 6 * 8 * 2 * 4) as f64;
                assert_eq!(
                    work(&batch, &sharing, attention, cache.layer(0)),
                    Work { flops, bytes },
                    "{reach:?}"
                );
            }
        }
    }
}
