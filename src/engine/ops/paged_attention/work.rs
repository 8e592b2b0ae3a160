//! What a step's attention has to do.

use crate::engine::batch::Batch;
use crate::engine::device::CacheLayer;
use crate::engine::device::op_times::Work;

use super::AttentionShape;

/// Operations of scores and values over all positions attended to; bytes of q and out, and of the K
/// and V that some token of a sequence sees, once for the query heads that share them.
pub(super) fn work(batch: &Batch, shape: AttentionShape<'_>, layer: CacheLayer<'_>) -> Work {
    let (mut num_scores, mut num_positions) = (0, 0);
    for (seq, &seq_len) in batch.seq_lens.iter().enumerate() {
        let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
        let (end, num_tokens) = (u64::from(seq_len), u64::from(end - start));
        let start = end - num_tokens;
        let window = shape.sliding_window.map_or(u64::MAX, |window| window as u64);
        num_scores += sum_of_attended(end, window) - sum_of_attended(start, window);
        num_positions += end.min(num_tokens.saturating_add(window) - 1);
    }
    let kv = layer.shape();
    let of_heads = |num_heads| num_heads * (kv.head_dim + kv.v_dim);
    let kv_bytes = of_heads(shape.num_kv_heads) * layer.cache.element_bytes();
    let row_bytes = of_heads(shape.num_heads) * size_of::<f32>();
    Work {
        flops: 2.0 * of_heads(shape.num_heads) as f64 * num_scores as f64,
        bytes: (num_positions as usize * kv_bytes + batch.num_tokens() * row_bytes) as f64,
    }
}

/// Positions that the first `num_tokens` of a sequence attend to, one after the other.
fn sum_of_attended(num_tokens: u64, window: u64) -> u64 {
    let growing = num_tokens.min(window);
    growing * (growing + 1) / 2 + (num_tokens - growing) * window.min(num_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::DType;
    use crate::engine::device::KvCache;
    use crate::engine::device::kv_cache::{KvCacheShape, KvHeads, StateShape};

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
        // A prompt of 7, the rest of one of 9, a token after 11 others.
        let batch = Batch {
            input_ids: vec![0; 13],
            query_start_loc: vec![0, 7, 12, 13],
            seq_lens: vec![7, 9, 12],
            ..Batch::default()
        };
        let ranges = [(0, 7), (4, 9), (11, 12)];
        for window in [None, Some(1), Some(3), Some(5), Some(100)] {
            let (mut num_scores, mut num_positions) = (0, 0);
            for (start, end) in ranges {
                let first = |token: usize| (token + 1).saturating_sub(window.unwrap_or(token + 1));
                num_scores += (start..end).map(|token| token + 1 - first(token)).sum::<usize>();
                num_positions += end - first(start);
            }
            for num_kv_heads in [2, 1] {
                let attention = AttentionShape {
                    num_heads: 6,
                    num_kv_heads,
                    scale: 1.0,
                    soft_cap: None,
                    sliding_window: window,
                    alibi: None,
                    sinks: None,
                };
                // Scores and values of 6 heads of 8; K and V of heads of 8 in 2 bytes; q and out.
                let flops = (num_scores * 6 * 8 * 2 * 2) as f64;
                let kv_bytes = num_positions * 2 * num_kv_heads * 8 * 2;
                let bytes = (kv_bytes + 13 * 6 * 8 * 2 * 4) as f64;
                assert_eq!(
                    work(&batch, attention, cache.layer(0)),
                    Work { flops, bytes },
                    "{window:?}"
                );
            }
        }
    }
}
