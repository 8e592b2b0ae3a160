//! Parts of rows: what a GPU computes of rows that decode, and of chunks of few tokens behind long
//! contexts, in units of their own, to be merged. The lists, and where results are kept until then.

mod plan;

use crate::batch::Batch;
use crate::paged_attention::{PartLaunch, Sharing};
use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::{Gpu, bytes_of};

use super::{AttentionWork, StepLimits, WorkList};
use plan::{MergeWork, Plan, SPLIT, Shape, SharedToken, SharedWork};

// SAFETY: six integers without padding.
unsafe impl Plain for SharedWork {}
// SAFETY: two integers without padding.
unsafe impl Plain for SharedToken {}
// SAFETY: three integers without padding.
unsafe impl Plain for MergeWork {}

/// Slots at most, each of which holds all heads of a token: 136 MB of 32 heads of 128.
const MAX_SLOTS: usize = 8192;

/// The parts of a step in a GPU's memory.
#[derive(Debug)]
pub(crate) struct PartInputs {
    /// Units that each row computes by itself.
    pub units: WorkList,
    /// The units of prompts that are not in parts.
    pub prefill: WorkList,
    /// Units that several rows compute together.
    pub shared: List,
    /// The rows that do, by their first tokens.
    pub shared_tokens: List,
    /// The rows whose parts are merged.
    pub merges: List,
    /// (max_slots, num_heads, head_dim + 4) f32
    pub slots: DeviceBuffer,
    sharing: Sharing,
    shape: Shape,
    plan: Plan,
}

/// A list of the step, and its length beside it.
#[derive(Debug)]
pub(crate) struct List {
    items: DeviceBuffer,
    num_items: DeviceBuffer,
}

impl List {
    fn new<T: Plain>(gpu: &Gpu, max_items: usize) -> Result<Self, EngineError> {
        Ok(Self { items: gpu.alloc(max_items * size_of::<T>())?, num_items: gpu.alloc(4)? })
    }

    fn upload<T: Plain>(&self, gpu: &Gpu, items: &[T]) {
        gpu.upload(&self.items, bytes_of(items));
        gpu.upload(&self.num_items, bytes_of(&[items.len() as u32]));
    }

    /// The items, and their number.
    pub(crate) fn ptrs(&self) -> (DevicePtr, DevicePtr) {
        (self.items.ptr(), self.num_items.ptr())
    }
}

impl PartInputs {
    /// `None`: the kernels of these heads compute rows as a whole.
    /// `prefill_items`: units of prompts, at most.
    pub(super) fn new(
        gpu: &Gpu,
        limits: StepLimits,
        prefill_items: usize,
    ) -> Result<Option<Self>, EngineError> {
        let launch = PartLaunch::new(gpu, limits.heads).filter(|_| limits.attends_to_all);
        let Some(launch) = launch else { return Ok(None) };
        let max_num_seqs = limits.max_num_seqs;
        let max_splits = limits.max_model_len.div_ceil(SPLIT as usize);
        let max_slots = (limits.max_num_tokens * max_splits).min(MAX_SLOTS);
        let shape = Shape {
            num_kv_heads: limits.heads.num_kv_heads,
            shared_tokens: launch.shared_tokens(limits.num_q_per_kv),
            decode_blocks: launch.decode_blocks as usize,
            shared_blocks: launch.shared_blocks as usize,
            block_size: limits.block_size,
            max_slots,
        };
        // A part has a slot at least, or is a row.
        let max_parts = max_num_seqs + max_slots;
        // A token of a chunk has two slots at least.
        let max_rows = max_num_seqs + max_slots / 2;
        let slot_bytes = limits.heads.num_heads * (limits.heads.head_dim + 4) * size_of::<f32>();
        Ok(Some(Self {
            units: WorkList::new(gpu, max_parts, limits.max_num_tokens)?,
            prefill: WorkList::new(gpu, prefill_items, 0)?,
            shared: List::new::<SharedWork>(gpu, max_parts)?,
            shared_tokens: List::new::<SharedToken>(gpu, max_rows)?,
            merges: List::new::<MergeWork>(gpu, max_rows)?,
            slots: gpu.alloc(max_slots * slot_bytes)?,
            sharing: Sharing::default(),
            shape,
            plan: Plan::default(),
        }))
    }

    /// Finds the parts of a step, whose `prefill` would be these units as a whole, and brings them
    /// to the GPU if there are any.
    pub(super) fn upload(&mut self, gpu: &Gpu, batch: &Batch, whole: &[AttentionWork]) {
        let Self { units, prefill, sharing, shape, plan, .. } = self;
        units.host.clear();
        plan.make((batch, whole), sharing, *shape, &mut units.host);
        if !plan.merges.is_empty() {
            units.open(gpu, batch.num_tokens());
            units.upload(gpu, None);
            prefill.host.clear();
            let is_whole = |work: &&AttentionWork| plan.cut_seqs.binary_search(&work.seq).is_err();
            prefill.host.extend(whole.iter().filter(is_whole));
            prefill.upload(gpu, gpu.properties().max_launch_positions);
            self.shared.upload(gpu, &plan.shared);
            self.shared_tokens.upload(gpu, &plan.shared_tokens);
            self.merges.upload(gpu, &plan.merges);
        }
    }

    /// Whether the step has parts at all, and whether rows compute some together.
    pub(crate) fn are_used(&self) -> (bool, bool) {
        (!self.plan.merges.is_empty(), !self.plan.shared.is_empty())
    }
}
