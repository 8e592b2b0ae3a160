//! Attention on the CPU: items of some query tokens and one KV head. The rows of an item are its
//! tokens' query heads of that KV head, or some of them, which share every load of K and V; Q·K and
//! P·V are the products of `gemm` over the panels of the cache.

use vllm_batch_device::simd::InstructionSet;
mod by_tiles;
mod item;
mod plan;
mod products;
mod softmax;
#[cfg(test)]
mod tests;

use crate::batch::Batch;
use crate::gemm::panel::PanelElement;
use crate::shared_rows::SharedRows;
use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Tensor};

use super::AttentionShape;
use super::chosen::ChosenScratch;
use super::sharing::Sharing;
use item::{ItemTask, Workspace};
use plan::Plan;

/// Buffers that live between steps.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    pub(super) sharing: Sharing,
    /// Only where tokens attend to positions that they choose.
    pub(super) chosen: Option<ChosenScratch>,
    plan: Plan,
    /// One per thread.
    workspaces: Vec<Workspace>,
}

impl AttentionScratch {
    fn prepare(&mut self, task: &Task<'_>) {
        self.plan.make(task, &self.sharing);
        self.workspaces.resize_with(task.cpu.pool.num_threads(), Workspace::default);
        for workspace in &mut self.workspaces {
            workspace.reserve(self.plan.max_rows, self.plan.max_scores, &task.kv);
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
    /// Tokens from this position on are left alone.
    pub end: u32,
}

impl Task<'_> {
    /// Query heads that share a KV head.
    fn heads_per_kv(&self) -> usize {
        self.shape.num_heads / self.shape.num_kv_heads
    }

    /// Attention of the step that `scratch.sharing` is of.
    pub(super) fn run<E: PanelElement>(
        self,
        k: &[E],
        v: &[E],
        scratch: &mut AttentionScratch,
        out: &mut Tensor,
    ) {
        scratch.prepare(&self);
        if self.cpu.isa.bf16_products().tiles_of(E::DTYPE).is_some() {
            for workspace in &mut scratch.workspaces {
                workspace.tiles.reserve(scratch.plan.max_rows, &self.kv);
            }
        }
        assert_eq!(out.width(), self.shape.num_heads * self.kv.v_dim);
        let out = SharedRows::of(out);
        let workspaces = SharedMut::new(&mut scratch.workspaces);
        let plan = &scratch.plan;
        self.cpu.pool.run(plan.items.len(), &|thread, index| {
            // SAFETY: no two items with one thread index overlap.
            let workspace = unsafe { &mut workspaces.slice(thread, 1)[0] };
            let next = plan.items.get(index + 1).copied();
            ItemTask { task: self, plan, item: plan.items[index], next, k, v, out }.run(workspace);
        });
    }
}
