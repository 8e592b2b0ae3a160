//! Attention of rows that decode in parts: what several compute together, what each computes by
//! itself, and the parts merged. The launches are the same for every step of a number of rows.

use super::defines::AttentionDefines;
use crate::MAX_NARROW_HEAD_DIM;
use crate::Step;
use crate::step::PartInputs;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::QkvHeads;
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::gpu::Kernel;
use vllm_batch_device::{Gpu, Tensor};

use super::{AttentionParams, Launch, ROWS};

/// Kernel for rows that decode, whole or split.
pub(super) const DECODE: &str = "paged_attention_decode";
const SHARED: &str = "paged_attention_shared";
const MERGE: &str = "paged_attention_merge";

/// Warps of a block that merges, each of which takes a head of a row.
const MERGE_WARPS: usize = 4;
/// Blocks that merge on a multiprocessor at once.
const MERGE_BLOCKS_PER_SM: usize = 16;

/// By which parts are cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartLaunch {
    /// Blocks of decoding that are resident at once.
    pub decode_blocks: u32,
    /// Blocks of rows that compute together that are.
    pub shared_blocks: u32,
    shared_rows: usize,
}

impl PartLaunch {
    /// `None`: the kernels of these heads compute rows as a whole.
    pub(crate) fn new(gpu: &Gpu, heads: QkvHeads) -> Option<Self> {
        let has_kernel = gpu.dtype() != DType::Float32 && heads.head_dim <= MAX_NARROW_HEAD_DIM;
        let num_sms = gpu.properties().num_sms;
        (has_kernel && heads.num_heads > 0).then(|| {
            let sizes = Launch::of(gpu, heads.head_dim);
            Self {
                decode_blocks: num_sms * sizes.decode.blocks,
                shared_blocks: num_sms * sizes.prefill_blocks_per_sm,
                // A group of rows for each warp.
                shared_rows: ROWS * sizes.prefill.warps as usize,
            }
        })
    }

    /// Tokens that compute together in one unit, of so many query heads each.
    pub(crate) fn shared_tokens(self, num_q_per_kv: usize) -> usize {
        (self.shared_rows / num_q_per_kv).max(1)
    }
}

/// Arguments that all launches of a layer share.
pub(super) struct PartsTask<'a> {
    pub gpu: &'a Gpu,
    pub sizes: Launch,
    pub defines: AttentionDefines,
    pub params: AttentionParams,
    /// Where K and V are.
    pub cache: (DevicePtr, DevicePtr),
    pub parts: &'a PartInputs,
}

impl PartsTask<'_> {
    pub(super) fn queue(&self, (qkv, step): (&Tensor, Step<'_>), tables: DevicePtr, out: &Tensor) {
        let Self { gpu, sizes, parts, .. } = *self;
        let num_sms = gpu.properties().num_sms;
        let slots = parts.slots.ptr();
        if parts.are_used().1 {
            let (work, num_work) = parts.shared.ptrs();
            let mut args = self.args(qkv, (work, num_work), tables);
            args.ptr(parts.shared_tokens.ptrs().0).ptr(slots).value(self.params);
            let grid = num_sms * sizes.prefill_blocks_per_sm;
            gpu.launch(self.kernel(SHARED), [grid, 1], sizes.prefill_block(), &mut args);
        }
        let mut args = self.args(qkv, parts.units.ptrs(0), tables);
        args.tensor(out).ptr(slots).value(self.params);
        let grid = num_sms * sizes.decode.blocks;
        gpu.launch(self.kernel(DECODE), [grid, 1], sizes.decode_block(), &mut args);
        let (work, num_work) = parts.merges.ptrs();
        let mut args = Args::new();
        args.ptr(work).ptr(num_work).ptr(slots).tensor(out).value(self.params);
        let most = step.num_rows() * self.params.num_heads as usize;
        let grid = most.div_ceil(MERGE_WARPS).min(num_sms as usize * MERGE_BLOCKS_PER_SM);
        let block = (32 * MERGE_WARPS as u32, 0);
        gpu.launch(self.kernel(MERGE), [grid as u32, 1], block, &mut args);
    }

    /// Those that both kernels over K and V begin with.
    fn args(&self, qkv: &Tensor, work: (DevicePtr, DevicePtr), tables: DevicePtr) -> Args {
        let mut args = Args::new();
        args.tensor(qkv).ptr(self.cache.0).ptr(self.cache.1).ptr(work.0).ptr(work.1).ptr(tables);
        args
    }

    fn kernel(&self, entry: &'static str) -> Kernel {
        self.sizes.kernel(entry, self.defines, &self.params)
    }
}
