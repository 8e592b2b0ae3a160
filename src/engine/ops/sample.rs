//! sample: the next token of rows of logits on a GPU, with the parameters and the random numbers of
//! `engine::sampler`. The CPU's twin is that module: it takes rows, not ops.

use std::ops::Range;

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, Plain};
use vllm_batch_device::gpu::Readback;
use vllm_batch_device::{Gpu, Tensor, bytes_of};

use super::GPU_BLOCK;
use super::token_counts::CountBuffers;

/// `struct SampleRow` of kernels/sample.cu: everything that decides a token, besides the logits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SampleRow {
    /// 0: greedy.
    pub temperature: f32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
    /// 0: off.
    pub top_k: u32,
    /// Counter of the row's random block.
    pub counter: [u32; 4],
    /// Key of the random numbers.
    pub key: [u32; 2],
    /// First of the row's entries in the edits.
    pub edit_start: u32,
    /// End of them.
    pub edit_end: u32,
    /// `ONLY_ALLOWED`, `SKIP`, `PENALIZED`.
    pub flags: u32,
    /// 1: off.
    pub repetition_penalty: f32,
    /// 0: off.
    pub frequency_penalty: f32,
    /// 0: off.
    pub presence_penalty: f32,
    /// Row of the logits.
    pub logits_row: u32,
    /// With `PENALIZED`: where its list of counted tokens begins.
    pub list: u32,
    /// First draft of the row among the step's tokens: penalties count drafts beside the list.
    pub draft_start: u32,
    /// End of them.
    pub draft_end: u32,
}

impl SampleRow {
    /// Only tokens with an edit that says `Edit::ALLOWED` may be sampled.
    pub const ONLY_ALLOWED: u32 = 1;
    /// The row is left alone.
    pub const SKIP: u32 = 2;
    /// Penalties apply to the tokens of its list.
    pub const PENALIZED: u32 = 4;

    /// Whether its logits are lost when it is sampled.
    pub fn overwrites_logits(&self) -> bool {
        self.edit_start < self.edit_end || self.flags & (Self::ONLY_ALLOWED | Self::PENALIZED) != 0
    }
}

/// `struct Edit` of kernels/sample.cu: what a row's parameters do to one token.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Edit {
    /// The token.
    pub token: u32,
    /// `FORBIDDEN`, `ALLOWED`.
    pub flags: u32,
    /// Added to its logit.
    pub bias: f32,
}

impl Edit {
    /// It may not be sampled.
    pub const FORBIDDEN: u32 = 1;
    /// It is on the list of a row with `SampleRow::ONLY_ALLOWED`.
    pub const ALLOWED: u32 = 2;
}

/// `struct SampleResult` of kernels/sample.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleResult {
    /// The token, when `status` is 0.
    pub token: u32,
    /// 0, `NON_FINITE`, `NO_TOKEN`.
    pub status: u32,
}

impl SampleResult {
    /// Logits with a NaN or +inf, or nothing but -inf.
    pub const NON_FINITE: u32 = 1;
    /// Every token is forbidden.
    pub const NO_TOKEN: u32 = 2;
}

// SAFETY: 32-bit numbers without padding.
unsafe impl Plain for SampleRow {}
// SAFETY: as above.
unsafe impl Plain for Edit {}
// SAFETY: as above.
unsafe impl Plain for SampleResult {}

/// Threads of a row's block when there are few rows.
const WIDE_BLOCK: u32 = 640;
/// Threads when there are so many rows that two blocks share a multiprocessor.
const NARROW_BLOCK: u32 = 384;

/// Threads of the block of each of `num_rows` rows of logits. No result depends on it.
pub(super) fn block_of_row(gpu: &Gpu, num_rows: usize) -> u32 {
    let is_many = num_rows > gpu.properties().num_sms as usize;
    if is_many { NARROW_BLOCK } else { WIDE_BLOCK }
}

/// Buffers that live between steps.
#[derive(Debug)]
pub struct SampleBuffers {
    rows: DeviceBuffer,
    edits: DeviceBuffer,
    /// Token counts for penalties.
    pub counts: CountBuffers,
}

impl SampleBuffers {
    /// Room for `max_rows` rows; edits grow.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(gpu: &Gpu, max_rows: usize) -> Result<Self, EngineError> {
        Ok(Self {
            rows: gpu.alloc(max_rows * size_of::<SampleRow>())?,
            edits: gpu.alloc(4096 * size_of::<Edit>())?,
            counts: CountBuffers::new(gpu)?,
        })
    }
}

/// Queues the upload of the rows of a step.
///
/// # Errors
/// The GPU's memory does not suffice for the edits, or the device failed before.
pub fn upload(
    gpu: &Gpu,
    (rows, edits): (&[SampleRow], &[Edit]),
    buffers: &mut SampleBuffers,
) -> Result<(), EngineError> {
    let edit_bytes = size_of_val(edits);
    if edit_bytes > buffers.edits.bytes() {
        gpu.synchronize()?;
        buffers.edits = gpu.alloc(edit_bytes.next_power_of_two())?;
    }
    gpu.pack_uploads();
    gpu.upload(&buffers.rows, bytes_of(rows));
    gpu.upload(&buffers.edits, bytes_of(edits));
    Ok(())
}

/// Queues the sampling of `rows` of those that were uploaded, from `logits` (any, vocab_size).
/// Those without `SKIP` lose their logits if `SampleRow::overwrites_logits` says so.
pub fn sample(gpu: &Gpu, logits: &mut Tensor, rows: Range<usize>, buffers: &SampleBuffers) {
    let mut args = Args::new();
    args.tensor(logits).dims([logits.width()]);
    args.ptr(buffers.rows.ptr().offset(rows.start * size_of::<SampleRow>()));
    args.ptr(buffers.edits.ptr()).ptr(buffers.counts.lists()).ptr(buffers.counts.tokens());
    args.ptr(gpu.sampled_ptr().offset(rows.start * size_of::<SampleResult>()));
    let block = block_of_row(gpu, rows.len());
    gpu.launch(("sample", "sample"), [rows.len() as u32, 1], (block, 0), &mut args);
}

/// Waits for the results of a step of `num_rows` rows. At most two steps may be waited for at a
/// time.
///
/// # Errors
/// The device failed.
pub fn results(
    gpu: &Gpu,
    readback: Readback,
    num_rows: usize,
) -> Result<Vec<SampleResult>, EngineError> {
    let mut results = vec![SampleResult::default(); num_rows];
    gpu.finish_read(readback, 0, &mut results)?;
    Ok(results)
}

/// input_ids[i] = the token that row `rows[i]` of the last step sampled, but for rows of
/// `Batch::KNOWN`.
pub(super) fn take_sampled(
    gpu: &Gpu,
    rows: &DeviceBuffer,
    input_ids: &DeviceBuffer,
    num_rows: usize,
) {
    let mut args = Args::new();
    args.ptr(gpu.sampled_ptr()).ptr(rows.ptr()).ptr(input_ids.ptr()).dims([num_rows]);
    let blocks = num_rows.div_ceil(GPU_BLOCK as usize) as u32;
    gpu.launch(("take_sampled", "take_sampled"), [blocks, 1], (GPU_BLOCK, 0), &mut args);
}

/// One row of logits, for the host to sample from.
pub fn download_row(gpu: &Gpu, logits: &Tensor, row: usize, values: &mut Vec<f32>) {
    let width = logits.width();
    values.clear();
    values.resize(width, 0.0);
    gpu.download(logits.device_ptr().offset(row * width * 4), values);
}
