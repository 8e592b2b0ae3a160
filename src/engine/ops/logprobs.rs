//! logprobs: log-probabilities and ranks of tokens in rows of logits on a GPU, beside the results
//! of `sample`. The CPU's twin is `engine::sampler`: it takes rows, not ops.

use std::ops::Range;

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::gpu::Readback;
use vllm_batch_device::{Gpu, Tensor, bytes_of};

use super::sample::{SampleResult, block_of_row};

/// `struct LogprobRow` of kernels/logprobs.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobRow {
    /// Row of the logits, or of what was kept of them.
    pub logits_row: u32,
    /// The token that is there, or `SAMPLED`.
    pub token: u32,
    /// Most likely tokens that are wanted besides it, at most the vocabulary.
    pub num_top: u32,
    /// Row in the results of sampling.
    pub result_row: u32,
    /// First entry; the row has 1 + `num_top`.
    pub first_entry: u32,
    /// 1: `logits_row` is one of the kept rows.
    pub is_kept: u32,
}

impl LogprobRow {
    /// The token is in the row's result.
    pub const SAMPLED: u32 = u32::MAX;
}

/// `struct LogprobEntry` of kernels/logprobs.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobEntry {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
    /// Number of logits that are at least its own.
    pub rank: u32,
}

// SAFETY: 32-bit numbers without padding.
unsafe impl Plain for LogprobRow {}
// SAFETY: as above.
unsafe impl Plain for LogprobEntry {}

/// Most rows of logits that are kept at a time: as many as sampling takes at once.
const MAX_KEPT_ROWS: usize = 128;
/// Threads of a block that copies a row.
const COPY_BLOCK: u32 = 1024;

/// Buffers that live between steps.
#[derive(Debug)]
pub struct LogprobBuffers {
    rows: DeviceBuffer,
    /// (max_kept) rows of logits to keep.
    kept_rows: DeviceBuffer,
    /// (MAX_KEPT_ROWS, vocab_size) f32, or fewer.
    kept: DeviceBuffer,
}

impl LogprobBuffers {
    /// Room for `max_rows` rows of `vocab_size` logits.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(gpu: &Gpu, max_rows: usize, vocab_size: usize) -> Result<Self, EngineError> {
        Ok(Self {
            rows: gpu.alloc(max_rows * size_of::<LogprobRow>())?,
            kept_rows: gpu.alloc(max_rows * 4)?,
            kept: gpu.alloc(max_kept_rows(max_rows) * vocab_size * 4)?,
        })
    }
}

/// Rows that may be kept at a time in steps of up to `max_rows` rows.
pub fn max_kept_rows(max_rows: usize) -> usize {
    max_rows.min(MAX_KEPT_ROWS)
}

/// Queues the upload of the rows of a step, and of the rows of logits to keep.
pub fn upload(gpu: &Gpu, rows: &[LogprobRow], kept_rows: &[u32], buffers: &LogprobBuffers) {
    gpu.pack_uploads();
    gpu.upload(&buffers.rows, bytes_of(rows));
    gpu.upload(&buffers.kept_rows, bytes_of(kept_rows));
}

/// Queues a copy of rows of `logits` (any, vocab_size), which sampling would overwrite: `kept_rows`
/// of those that were uploaded become the kept rows from 0 on.
pub fn keep_rows(gpu: &Gpu, logits: &Tensor, kept_rows: Range<usize>, buffers: &LogprobBuffers) {
    let mut args = Args::new();
    args.ptr(buffers.kept_rows.ptr().offset(kept_rows.start * 4)).tensor(logits);
    args.ptr(buffers.kept.ptr()).dims([logits.width() * 4]);
    let grid = [kept_rows.len() as u32, 1];
    gpu.launch(("gather_rows", "gather_rows"), grid, (COPY_BLOCK, 0), &mut args);
}

/// Queues the logprobs of `rows` of those that were uploaded, from `logits` (any, vocab_size) and
/// the kept rows, after their sampling; the step has `num_results` rows. Entries follow their
/// results. A row whose token is given gets a result, as if it were sampled.
pub fn logprobs(
    gpu: &Gpu,
    logits: &Tensor,
    rows: Range<usize>,
    num_results: usize,
    buffers: &LogprobBuffers,
) {
    let mut args = Args::new();
    args.tensor(logits).ptr(buffers.kept.ptr()).dims([logits.width()]);
    args.ptr(buffers.rows.ptr().offset(rows.start * size_of::<LogprobRow>()));
    args.ptr(gpu.sampled_ptr()).ptr(entries_ptr(gpu, num_results));
    let block = block_of_row(gpu, rows.len());
    gpu.launch(("logprobs", "logprobs"), [rows.len() as u32, 1], (block, 0), &mut args);
}

fn entries_ptr(gpu: &Gpu, num_results: usize) -> DevicePtr {
    gpu.sampled_ptr().offset(num_results * size_of::<SampleResult>())
}

/// Bytes of the results and entries of a step.
pub fn num_bytes(num_results: usize, num_entries: usize) -> usize {
    num_results * size_of::<SampleResult>() + num_entries * size_of::<LogprobEntry>()
}

/// Waits for the entries of a step of `num_results` rows.
///
/// # Errors
/// The device failed.
pub fn entries(
    gpu: &Gpu,
    readback: Readback,
    num_results: usize,
    num_entries: usize,
) -> Result<Vec<LogprobEntry>, EngineError> {
    let mut entries = vec![LogprobEntry::default(); num_entries];
    gpu.finish_read(readback, num_bytes(num_results, 0), &mut entries)?;
    Ok(entries)
}
