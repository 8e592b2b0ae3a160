//! Choices on a GPU: kernels/index_scores.cu or index_maxima.cu, and choose_positions.cu, for some
//! rows at a time, whose scores there is room for. What is chosen are slots of the cache, or blocks
//! of it for each K and V head, upward by their positions, and the units of attention to them.

use std::ops::Range;

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr};
use vllm_batch_device::gpu::{Defines, Kernel};
use vllm_batch_device::{CacheLayer, Gpu, Tensor};

use super::{ChoiceSize, IndexScores};
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
    /// (num_rows, num_heads, table_len) slots of the cache, or blocks of it.
    tables: DeviceBuffer,
    table_len: usize,
    /// Slots of a block of these: 1, or those of a block of the cache.
    block_size: usize,
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
    unit: u32,
}

/// `struct MaximaParams` of kernels/index_maxima.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct MaximaParams {
    num_chosen: u32,
    block_size: u32,
    unit: u32,
    query_stride: u32,
    first_row: u32,
    score_stride: u32,
}

impl GpuChoice {
    pub(super) fn new(
        gpu: &Gpu,
        size: ChoiceSize,
        limits: StepLimits,
    ) -> Result<Self, EngineError> {
        let ChoiceSize { num_chosen, unit, num_heads } = size;
        let num_rows = gpu.max_padded_rows(limits.max_num_tokens);
        let stride = limits.max_model_len.div_ceil(unit);
        let rows_at_once = (SCORE_BYTES / 4 / (stride * num_heads)).clamp(1, num_rows);
        let block_size = if unit == 1 { 1 } else { limits.block_size };
        let table_len = num_chosen / block_size;
        Ok(Self {
            scores: gpu.alloc(rows_at_once * num_heads * stride * 4)?,
            rows_at_once,
            stride,
            tables: gpu.alloc(num_rows * num_heads * table_len * 4)?,
            table_len,
            block_size,
            work: gpu.alloc(num_rows * size_of::<AttentionWork>())?,
            num_work: gpu.alloc(4)?,
        })
    }

    /// The units of attention, and their number.
    pub(crate) fn work(&self) -> (DevicePtr, DevicePtr) {
        (self.work.ptr(), self.num_work.ptr())
    }

    /// Block tables that the units are of, one for each K and V head of a unit.
    pub(crate) fn tables(&self) -> DevicePtr {
        self.tables.ptr()
    }

    /// Entries of a table.
    pub(crate) fn table_len(&self) -> usize {
        self.table_len
    }

    /// Slots of a block that an entry names.
    pub(crate) fn block_size(&self) -> usize {
        self.block_size
    }
}

/// Queues the choices of a step.
pub(super) fn choose(
    gpu: &Gpu,
    (scores, step): (IndexScores<'_>, Step<'_>),
    layer: CacheLayer<'_>,
    (size, choice): (ChoiceSize, &GpuChoice),
) {
    let (num_rows, tables) = (step.num_rows(), step.gpu_inputs().block_tables.ptr());
    let entry = if size.unit == 1 { "choose_positions" } else { "choose_blocks" };
    for first in (0..num_rows).step_by(choice.rows_at_once) {
        let rows = choice.rows_at_once.min(num_rows - first);
        match scores.factors {
            Some(factors) => {
                let scores = (scores, factors, step);
                score_positions(gpu, scores, layer, (size, choice), first..first + rows);
            }
            None => {
                score_blocks(gpu, (scores, step), layer, (size, choice), first..first + rows);
            }
        }
        let params = ChoiceParams {
            num_chosen: size.num_chosen as u32,
            block_size: layer.shape().block_size as u32,
            first_row: first as u32,
            score_stride: choice.stride as u32,
            num_rows: num_rows as u32,
            unit: size.unit as u32,
        };
        let mut args = Args::new();
        args.ptr(choice.scores.ptr()).ptr(step.row_tables_ptr()).ptr(tables);
        args.ptr(step.positions().device_ptr).ptr(step.slot_mapping().device_ptr);
        args.ptr(choice.tables.ptr()).ptr(choice.work.ptr()).ptr(choice.num_work.ptr());
        args.value(params);
        let grid = [rows as u32, size.num_heads as u32];
        gpu.launch(("choose_positions", entry), grid, (CHOOSING, 0), &mut args);
    }
}

/// Blocks that score for each of so many rows: by these alone, which are padded, so that a recorded
/// launch serves every step of its size.
fn scoring_grid(gpu: &Gpu, num_rows: usize) -> [u32; 2] {
    let rows = num_rows as u32;
    let blocks = gpu.properties().num_sms * BLOCKS_PER_SM / rows;
    [rows, blocks.clamp(1, MAX_BLOCKS_PER_ROW)]
}

/// Queues the scores of single positions, of some rows.
fn score_positions(
    gpu: &Gpu,
    (scores, factors, step): (IndexScores<'_>, (&Tensor, usize), Step<'_>),
    layer: CacheLayer<'_>,
    (size, choice): (ChoiceSize, &GpuChoice),
    rows: Range<usize>,
) {
    let IndexScores { queries, num_heads, .. } = scores;
    let (kv, (keys, _)) = (layer.shape(), layer.ptrs());
    let head_dim = kv.head_dim;
    let defines = Defines::NONE.number("HEAD_DIM", head_dim as u32);
    let kernel = Kernel::with_defines("index_scores", "index_scores", defines);
    let smem = match gpu.dtype() {
        DType::Float32 => 0,
        // Fragments of 16 heads by 16 values, and factors.
        _ => num_heads.div_ceil(16) * (head_dim.div_ceil(16) * 512 + 64),
    };
    let params = IndexParams {
        num_heads: num_heads as u32,
        num_chosen: size.num_chosen as u32,
        block_size: kv.block_size as u32,
        query_stride: queries.width() as u32,
        factor_stride: factors.0.width() as u32,
        factor_column: factors.1 as u32,
        first_row: rows.start as u32,
        score_stride: choice.stride as u32,
        scale: 1.0 / (head_dim as f32).sqrt(),
        factor_scale: 1.0 / (num_heads as f32).sqrt(),
    };
    let mut args = Args::new();
    args.tensor(queries).tensor(factors.0).ptr(keys).ptr(step.row_tables_ptr());
    args.ptr(step.gpu_inputs().block_tables.ptr());
    args.ptr(step.positions().device_ptr).ptr(choice.scores.ptr()).value(params);
    gpu.launch(kernel, scoring_grid(gpu, rows.len()), (SCORING, smem), &mut args);
}

/// Queues those of blocks of positions.
fn score_blocks(
    gpu: &Gpu,
    (scores, step): (IndexScores<'_>, Step<'_>),
    layer: CacheLayer<'_>,
    (size, choice): (ChoiceSize, &GpuChoice),
    rows: Range<usize>,
) {
    let (kv, (keys, _)) = (layer.shape(), layer.ptrs());
    let defines = Defines::NONE.number("HEAD_DIM", kv.head_dim as u32);
    let defines = defines.number("NUM_HEADS", scores.num_heads as u32);
    let kernel = Kernel::with_defines("index_maxima", "index_maxima", defines);
    let params = MaximaParams {
        num_chosen: size.num_chosen as u32,
        block_size: kv.block_size as u32,
        unit: size.unit as u32,
        query_stride: scores.queries.width() as u32,
        first_row: rows.start as u32,
        score_stride: choice.stride as u32,
    };
    let mut args = Args::new();
    args.tensor(scores.queries).ptr(keys).ptr(step.row_tables_ptr());
    args.ptr(step.gpu_inputs().block_tables.ptr());
    args.ptr(step.positions().device_ptr).ptr(choice.scores.ptr()).value(params);
    gpu.launch(kernel, scoring_grid(gpu, rows.len()), (SCORING, 0), &mut args);
}
