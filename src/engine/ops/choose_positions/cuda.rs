//! Choices on a GPU: kernels/index_scores.cu and choose_positions.cu, for some rows at a time,
//! whose scores there is room for. What is chosen are slots of the cache, upward by their
//! positions, and the units of attention to them.

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr};
use vllm_batch_device::gpu::{Defines, Kernel};
use vllm_batch_device::{CacheLayer, Gpu};

use super::IndexScores;
use crate::step::AttentionWork;
use crate::{Step, StepLimits};
use vllm_batch_base::config::DType;

/// Bytes of scores, about.
const SCORE_BYTES: usize = 256 << 20;

/// Threads of a block that scores, and of one that chooses.
const SCORING: u32 = 128;
const CHOOSING: u32 = 256;

/// Blocks of a multiprocessor that score at once, about.
const BLOCKS_PER_SM: u32 = 8;

/// Blocks that score for a row, at most.
const MAX_BLOCKS_PER_ROW: u32 = 64;

/// Buffers of a choice.
#[derive(Debug)]
pub(crate) struct GpuChoice {
    /// (rows_at_once, stride)
    scores: DeviceBuffer,
    rows_at_once: usize,
    stride: usize,
    /// (num_rows, num_chosen) slots of the cache.
    slots: DeviceBuffer,
    /// (num_rows) units of attention, and their number.
    work: DeviceBuffer,
    num_work: DeviceBuffer,
}

/// `struct IndexParams` of kernels/index_scores.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct IndexParams {
    num_heads: u32,
    num_chosen: u32,
    block_size: u32,
    query_stride: u32,
    factor_stride: u32,
    factor_column: u32,
    first_row: u32,
    score_stride: u32,
    scale: f32,
    factor_scale: f32,
}

/// `struct ChoiceParams` of kernels/choose_positions.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct ChoiceParams {
    num_chosen: u32,
    block_size: u32,
    first_row: u32,
    score_stride: u32,
    num_rows: u32,
}

impl GpuChoice {
    pub(super) fn new(
        gpu: &Gpu,
        num_chosen: usize,
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let num_rows = gpu.max_padded_rows(limits.max_num_tokens);
        let stride = limits.max_model_len;
        let rows_at_once = (SCORE_BYTES / 4 / stride).clamp(1, num_rows);
        Ok(Self {
            scores: gpu.alloc(rows_at_once * stride * 4)?,
            rows_at_once,
            stride,
            slots: gpu.alloc(num_rows * num_chosen * 4)?,
            work: gpu.alloc(num_rows * size_of::<AttentionWork>())?,
            num_work: gpu.alloc(4)?,
        })
    }

    /// The units of attention, and their number.
    pub(crate) fn work(&self) -> (DevicePtr, DevicePtr) {
        (self.work.ptr(), self.num_work.ptr())
    }

    /// Block tables of blocks of one position, which the units are of.
    pub(crate) fn slots(&self) -> DevicePtr {
        self.slots.ptr()
    }
}

/// Queues the choices of a step.
pub(super) fn choose(
    gpu: &Gpu,
    (scores, step): (IndexScores<'_>, Step<'_>),
    layer: CacheLayer<'_>,
    (num_chosen, choice): (usize, &GpuChoice),
) {
    let IndexScores { queries, num_heads, factors } = scores;
    let (kv, (keys, _)) = (layer.shape(), layer.ptrs());
    let (num_rows, head_dim) = (step.num_rows(), kv.head_dim);
    let tables = step.gpu_inputs().block_tables.ptr();
    let defines = Defines::NONE.number("HEAD_DIM", head_dim as u32);
    let kernel = Kernel::with_defines("index_scores", "index_scores", defines);
    let smem = match gpu.dtype() {
        DType::Float32 => 0,
        // Fragments of 16 heads by 16 values, and factors.
        _ => num_heads.div_ceil(16) * (head_dim.div_ceil(16) * 512 + 64),
    };
    for first in (0..num_rows).step_by(choice.rows_at_once) {
        let rows = choice.rows_at_once.min(num_rows - first) as u32;
        let params = IndexParams {
            num_heads: num_heads as u32,
            num_chosen: num_chosen as u32,
            block_size: kv.block_size as u32,
            query_stride: queries.width() as u32,
            factor_stride: factors.0.width() as u32,
            factor_column: factors.1 as u32,
            first_row: first as u32,
            score_stride: choice.stride as u32,
            scale: 1.0 / (head_dim as f32).sqrt(),
            factor_scale: 1.0 / (num_heads as f32).sqrt(),
        };
        let mut args = Args::new();
        args.tensor(queries).tensor(factors.0).ptr(keys).ptr(step.row_tables_ptr()).ptr(tables);
        args.ptr(step.positions().device_ptr).ptr(choice.scores.ptr()).value(params);
        // By the padded rows alone, so that a recorded launch serves every step of its size.
        let blocks = gpu.properties().num_sms * BLOCKS_PER_SM / rows;
        let grid = [rows, blocks.clamp(1, MAX_BLOCKS_PER_ROW)];
        gpu.launch(kernel, grid, (SCORING, smem), &mut args);
        let params = ChoiceParams {
            num_chosen: num_chosen as u32,
            block_size: kv.block_size as u32,
            first_row: first as u32,
            score_stride: choice.stride as u32,
            num_rows: num_rows as u32,
        };
        let mut args = Args::new();
        args.ptr(choice.scores.ptr()).ptr(step.row_tables_ptr()).ptr(tables);
        args.ptr(step.positions().device_ptr).ptr(step.slot_mapping().device_ptr);
        args.ptr(choice.slots.ptr()).ptr(choice.work.ptr()).ptr(choice.num_work.ptr());
        args.value(params);
        let kernel = ("choose_positions", "choose_positions");
        gpu.launch(kernel, [rows, 1], (CHOOSING, 0), &mut args);
    }
}
