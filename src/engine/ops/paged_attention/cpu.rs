//! Attention on the CPU: items of a few query tokens and one KV head, over K with tokens in the
//! lanes.

use crate::engine::batch::Batch;
use crate::engine::device::kv_cache::{KV_GROUP_TOKENS, KvCacheShape};
use crate::engine::device::simd::{Element, Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, Tensor};
use crate::engine::ops::soft_cap::capped;

use super::AttentionShape;

/// Query tokens of one work item: they share the K and V of their sequence in the cache of the
/// core.
const ITEM_TOKENS: usize = 8;

/// Query heads of one KV head that share each load of K and V.
const MAX_TILE_HEADS: usize = 8;

/// Buffers that live between steps.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    items: Vec<Item>,
    /// Per thread: (MAX_TILE_HEADS, longest context) scores.
    scores: Vec<Vec<f32>>,
}

/// Tokens `tokens` of the flat axis, which belong to sequence `seq`, for one KV head.
#[derive(Clone, Copy, Debug)]
struct Item {
    seq: u32,
    kv_head: u32,
    token: u32,
    num_tokens: u32,
}

impl AttentionScratch {
    fn prepare(&mut self, cpu: &Cpu, batch: &Batch, kv: KvCacheShape) {
        self.items.clear();
        for seq in 0..batch.num_seqs() {
            let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
            for kv_head in 0..kv.num_kv_heads as u32 {
                for token in (start..end).step_by(ITEM_TOKENS) {
                    let num_tokens = (end - token).min(ITEM_TOKENS as u32);
                    self.items.push(Item { seq: seq as u32, kv_head, token, num_tokens });
                }
            }
        }
        let longest = batch.seq_lens.iter().copied().max().unwrap_or(0) as usize;
        let needed = longest.next_multiple_of(KV_GROUP_TOKENS) * MAX_TILE_HEADS;
        self.scores.resize_with(cpu.pool.num_threads(), Vec::new);
        for scores in &mut self.scores {
            if scores.len() < needed {
                scores.resize(needed.next_power_of_two(), 0.0);
            }
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub cpu: &'a Cpu,
    pub qkv: &'a Tensor,
    pub batch: &'a Batch,
    pub layer: usize,
    pub shape: AttentionShape,
    pub kv: KvCacheShape,
}

impl Task<'_> {
    pub(super) fn run<E: Element>(
        self,
        k: &[E],
        v: &[E],
        scratch: &mut AttentionScratch,
        out: &mut Tensor,
    ) {
        scratch.prepare(self.cpu, self.batch, self.kv);
        let width = out.width();
        assert_eq!(width, self.shape.num_heads * self.kv.head_dim);
        let out = SharedMut::new(out.values_mut());
        let scores = SharedMut::new(&mut scratch.scores);
        let items = &scratch.items;
        self.cpu.pool.run(items.len(), &|thread, index| {
            // SAFETY: no two items with one thread index overlap.
            let scores = unsafe { &mut scores.slice(thread, 1)[0] };
            dispatch(self.cpu.isa, ItemTask { task: self, item: items[index], k, v, scores, out });
        });
    }
}

struct ItemTask<'a, E> {
    task: Task<'a>,
    item: Item,
    k: &'a [E],
    v: &'a [E],
    scores: &'a mut [f32],
    out: SharedMut<f32>,
}

/// The positions one token attends to: `start..=position`; scores are kept from `base`, the
/// multiple of 16 at or below `start`, to `end`, the one above `position`.
#[derive(Clone, Copy)]
struct Span {
    base: usize,
    start: usize,
    position: usize,
    end: usize,
}

impl Span {
    fn new(position: usize, sliding_window: Option<usize>) -> Self {
        let start = sliding_window.map_or(0, |window| (position + 1).saturating_sub(window));
        let base = start - start % KV_GROUP_TOKENS;
        Self { base, start, position, end: (position + 1).next_multiple_of(KV_GROUP_TOKENS) }
    }

    fn len(&self) -> usize {
        self.end - self.base
    }
}

impl<E: Element> Kernel for ItemTask<'_, E> {
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let heads_per_kv = self.task.shape.num_heads / self.task.kv.num_kv_heads;
        let (first, end) = (self.item.token, self.item.token + self.item.num_tokens);
        for token in first as usize..end as usize {
            let position = self.task.batch.positions[token] as usize;
            let span = Span::new(position, self.task.shape.sliding_window);
            let mut head = 0;
            while head < heads_per_kv {
                let query_head = self.item.kv_head as usize * heads_per_kv + head;
                // SAFETY: dispatched for this CPU.
                head += unsafe {
                    match heads_per_kv - head {
                        8.. => self.tile::<V, 8>(token, query_head, span),
                        4.. => self.tile::<V, 4>(token, query_head, span),
                        3 => self.tile::<V, 3>(token, query_head, span),
                        2 => self.tile::<V, 2>(token, query_head, span),
                        _ => self.tile::<V, 1>(token, query_head, span),
                    }
                };
            }
        }
    }
}

impl<E: Element> ItemTask<'_, E> {
    /// Query heads `head..head + R` of one token. Returns R.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn tile<V: Vector, const R: usize>(
        &mut self,
        token: usize,
        head: usize,
        span: Span,
    ) -> usize {
        let head_dim = self.task.kv.head_dim;
        let queries = &self.task.qkv.row(token)[head * head_dim..(head + R) * head_dim];
        // SAFETY: dispatched for this CPU; buffers are as long as the span.
        unsafe {
            self.score::<V, R>(queries, span);
            let mut sums = [0.0; R];
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = softmax::<V>(&mut self.scores[r * span.len()..(r + 1) * span.len()], span);
            }
            self.weigh::<V, R>((token, head), span, &sums);
        }
        R
    }

    /// Start of one block's K or V of this item's KV head, in units of (block, head).
    #[inline(always)]
    fn block_index(&self, position: usize) -> usize {
        let kv = self.task.kv;
        let block = self.task.batch.block_table(self.item.seq as usize)[position / kv.block_size];
        (self.task.layer * kv.num_blocks + block as usize) * kv.num_kv_heads
            + self.item.kv_head as usize
    }

    /// scores (R, span) = scaled, capped q Kᵀ. Few query heads take more positions at a time, so
    /// that there are enough independent sums to hide the latency of an addition.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn score<V: Vector, const R: usize>(&mut self, queries: &[f32], span: Span) {
        let block_size = self.task.kv.block_size;
        let mut position = span.base;
        while position < span.end {
            let room = (block_size - position % block_size).min(span.end - position) / V::LANES;
            // SAFETY: dispatched for this CPU; the vectors stay within one block and the span.
            position += unsafe {
                match room {
                    4.. if R <= 2 => self.score_vectors::<V, R, 4>(queries, span, position),
                    2.. => self.score_vectors::<V, R, 2>(queries, span, position),
                    _ => self.score_vectors::<V, R, 1>(queries, span, position),
                }
            };
        }
    }

    /// Scores of C vectors of positions, all in one block. Returns their number.
    ///
    /// # Safety
    /// As of `score`; the positions are in one block and within the span.
    #[inline(always)]
    unsafe fn score_vectors<V: Vector, const R: usize, const C: usize>(
        &mut self,
        queries: &[f32],
        span: Span,
        position: usize,
    ) -> usize {
        let KvCacheShape { block_size, head_dim, .. } = self.task.kv;
        let shape = self.task.shape;
        let num_positions = C * V::LANES;
        let start = self.block_index(position) * self.task.kv.k_len() + position % block_size;
        let keys = &self.k[start..start + (head_dim - 1) * block_size + num_positions];
        // SAFETY: `keys` reaches the last row's last vector; queries are (R, head_dim); scores are
        // (R, span.len()).
        unsafe {
            let (keys, queries) = (keys.as_ptr(), queries.as_ptr());
            let scale = V::splat(shape.scale);
            let mut sums = [[V::splat(0.0); C]; R];
            for d in 0..head_dim {
                let row = keys.add(d * block_size);
                let key: [V; C] = std::array::from_fn(|c| E::load::<V>(row.add(c * V::LANES)));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let query = V::splat(*queries.add(r * head_dim + d));
                    for (sum, key) in sum.iter_mut().zip(key) {
                        *sum = query.mul_add(key, *sum);
                    }
                }
            }
            for (r, sum) in sums.into_iter().enumerate() {
                let at = r * span.len() + position - span.base;
                let scores = self.scores[at..at + num_positions].as_mut_ptr();
                for (c, sum) in sum.into_iter().enumerate() {
                    let score = sum.mul(scale);
                    let score = shape.soft_cap.map_or(score, |cap| capped(score, cap));
                    score.store(scores.add(c * V::LANES));
                }
            }
        }
        num_positions
    }

    /// out = P V / sum, for R query heads.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn weigh<V: Vector, const R: usize>(
        &self,
        (token, head): (usize, usize),
        span: Span,
        sums: &[f32; R],
    ) {
        let head_dim = self.task.kv.head_dim;
        let width = self.task.shape.num_heads * head_dim;
        for column in (0..head_dim).step_by(2 * V::LANES) {
            let mut buffer = [0.0f32; 32];
            // SAFETY: dispatched for this CPU; a V row is padded to whole groups of 16 columns.
            let weighed = unsafe {
                if column + V::LANES < self.task.kv.v_width() {
                    self.weigh_columns::<V, R, 2>(column, span)
                } else {
                    let one = self.weigh_columns::<V, R, 1>(column, span);
                    one.map(|[sum]| [sum, V::splat(0.0)])
                }
            };
            let num_columns = (2 * V::LANES).min(head_dim - column);
            for (r, [low, high]) in weighed.into_iter().enumerate() {
                // SAFETY: the buffer holds two vectors; this item alone writes these heads of its
                // rows.
                let out = unsafe {
                    low.store(buffer.as_mut_ptr());
                    high.store(buffer.as_mut_ptr().add(V::LANES));
                    self.out.slice(token * width + (head + r) * head_dim + column, num_columns)
                };
                for (out, value) in out.iter_mut().zip(&buffer) {
                    *out = value / sums[r];
                }
            }
        }
    }

    /// C vectors of columns of P V.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn weigh_columns<V: Vector, const R: usize, const C: usize>(
        &self,
        column: usize,
        span: Span,
    ) -> [[V; C]; R] {
        let kv = self.task.kv;
        // SAFETY: `values` reaches the whole padded row of the last position of the run; scores are
        // (R, span.len()).
        unsafe {
            let mut sums = [[V::splat(0.0); C]; R];
            let mut position = span.start;
            while position <= span.position {
                let offset = position % kv.block_size;
                let run = (kv.block_size - offset).min(span.position + 1 - position);
                let start = self.block_index(position) * kv.v_len() + offset * kv.v_width();
                let values = self.v[start..start + run * kv.v_width()].as_ptr().add(column);
                let scores = self.scores[..R * span.len()].as_ptr().add(position - span.base);
                for i in 0..run {
                    let row = values.add(i * kv.v_width());
                    let value: [V; C] =
                        std::array::from_fn(|c| E::load::<V>(row.add(c * V::LANES)));
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let weight = V::splat(*scores.add(r * span.len() + i));
                        for (sum, value) in sum.iter_mut().zip(value) {
                            *sum = weight.mul_add(value, *sum);
                        }
                    }
                }
                position += run;
            }
            sums
        }
    }
}

/// scores = e^(score - max), 0 outside the span's positions; returns their sum.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn softmax<V: Vector>(scores: &mut [f32], span: Span) -> f32 {
    scores[..span.start - span.base].fill(f32::NEG_INFINITY);
    scores[span.position + 1 - span.base..].fill(f32::NEG_INFINITY);
    // SAFETY: the length is a multiple of 16, so of LANES.
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        for chunk in scores.chunks_exact(V::LANES) {
            max = max.max(V::load(chunk.as_ptr()));
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        max.store(lanes.as_mut_ptr());
        let max = V::splat(lanes.into_iter().fold(f32::NEG_INFINITY, f32::max));
        let mut sum = V::splat(0.0);
        for chunk in scores.chunks_exact_mut(V::LANES) {
            let weight = V::load(chunk.as_ptr()).sub(max).exp();
            weight.store(chunk.as_mut_ptr());
            sum = sum.add(weight);
        }
        sum.sum()
    }
}
