//! Attention on the CPU: items of a few query tokens and one KV head. The rows of an item are its
//! tokens' query heads of that KV head, or some of them, which share every load of K and V; Q·K and
//! P·V are the products of `gemm` over the panels of the cache.

mod item;
mod softmax;

use crate::engine::batch::Batch;
use crate::engine::device::kv_cache::KvLayerShape;
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, Tensor};
use crate::engine::ops::gemm::even_tile;
use crate::engine::ops::gemm::panel::PanelElement;

use super::AttentionShape;
use item::{ItemTask, Workspace, score_stride};

/// Rows of an item of a prefill: enough to share the widening of K and V.
const ITEM_ROWS: usize = 96;

/// Scores of an item at most, if it has several tokens: 4 MB for each thread.
const MAX_ITEM_SCORES: usize = 1 << 20;

/// Query tokens of an item at most: all of them take the positions of the last one.
const MAX_ITEM_TOKENS: usize = 32;

/// Query heads of an item of one token at most: where many share a KV head, a token that is decoded
/// alone takes several threads.
const ITEM_HEADS: usize = 16;

/// Buffers that live between steps.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    items: Vec<Item>,
    /// One per thread.
    workspaces: Vec<Workspace>,
}

/// Tokens `token..token + num_tokens` of the flat axis, which belong to sequence `seq`, for
/// `num_heads` query heads from `first_head` on, which share one KV head.
#[derive(Clone, Copy, Debug)]
struct Item {
    seq: u32,
    kv_head: u32,
    first_head: u32,
    num_heads: u32,
    token: u32,
    num_tokens: u32,
}

impl AttentionScratch {
    fn prepare(&mut self, task: &Task<'_>) {
        let Task { cpu, batch, kv, shape, .. } = *task;
        let heads_per_kv = shape.num_heads / shape.num_kv_heads;
        self.items.clear();
        let mut num_scores = 0;
        for seq in 0..batch.num_seqs() {
            let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
            let seq_len = batch.seq_lens[seq] as usize;
            let stride = score_stride(seq_len, &kv);
            // Tokens whose windows begin at different positions have nothing to share.
            let is_windowed = shape.sliding_window.is_some_and(|window| seq_len > window);
            let num_rows = ITEM_ROWS.min(MAX_ITEM_SCORES / stride);
            let max_tokens = match is_windowed {
                true => 1,
                false => (num_rows / heads_per_kv).clamp(1, MAX_ITEM_TOKENS),
            };
            num_scores = num_scores.max(max_tokens * heads_per_kv * stride);
            let num_parts = if end - start == 1 { heads_per_kv.div_ceil(ITEM_HEADS) } else { 1 };
            for token in (start..end).step_by(max_tokens) {
                let num_tokens = (end - token).min(max_tokens as u32);
                for part in 0..shape.num_kv_heads * num_parts {
                    let (kv_head, part) = (part / num_parts, part % num_parts);
                    let (first, num_heads) = even_tile(heads_per_kv, num_parts, part);
                    self.items.push(Item {
                        seq: seq as u32,
                        kv_head: kv_head as u32,
                        first_head: (kv_head * heads_per_kv + first) as u32,
                        num_heads: num_heads as u32,
                        token,
                        num_tokens,
                    });
                }
            }
        }
        self.workspaces.resize_with(cpu.pool.num_threads(), Workspace::default);
        for workspace in &mut self.workspaces {
            workspace.reserve(heads_per_kv.max(ITEM_ROWS), num_scores, &kv);
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    pub cpu: &'a Cpu,
    pub qkv: &'a Tensor,
    pub batch: &'a Batch,
    pub shape: AttentionShape<'a>,
    pub kv: KvLayerShape,
}

impl Task<'_> {
    pub(super) fn run<E: PanelElement>(
        self,
        k: &[E],
        v: &[E],
        scratch: &mut AttentionScratch,
        out: &mut Tensor,
    ) {
        scratch.prepare(&self);
        assert_eq!(out.width(), self.shape.num_heads * self.kv.v_dim);
        let out = SharedMut::new(out.values_mut());
        let workspaces = SharedMut::new(&mut scratch.workspaces);
        let items = &scratch.items;
        self.cpu.pool.run(items.len(), &|thread, index| {
            // SAFETY: no two items with one thread index overlap.
            let workspace = unsafe { &mut workspaces.slice(thread, 1)[0] };
            let next = items.get(index + 1).copied();
            ItemTask { task: self, item: items[index], next, k, v, out }.run(workspace);
        });
    }
}
