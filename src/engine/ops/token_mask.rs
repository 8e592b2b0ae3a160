//! token_mask: logits of tokens that structured output forbids, on a GPU. The CPU's twin is
//! `engine::sampler`: it takes rows, not ops.

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, Plain};
use vllm_batch_device::{Gpu, Tensor, bytes_of};

/// `struct MaskRow` of kernels/token_mask.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaskRow {
    /// Row of the logits.
    pub logits_row: u32,
    /// First word of the row among those of the step.
    pub first_word: u32,
    /// Number of words; tokens past them are forbidden.
    pub num_words: u32,
    /// Padding.
    pub unused: u32,
}

// SAFETY: 32-bit numbers without padding.
unsafe impl Plain for MaskRow {}

/// Threads of a row's block.
const BLOCK: u32 = 1024;

/// Buffers that live between steps. They grow: most runs have no masks.
#[derive(Debug)]
pub struct MaskBuffers {
    rows: DeviceBuffer,
    words: DeviceBuffer,
}

impl MaskBuffers {
    /// Room for a few.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(gpu: &Gpu) -> Result<Self, EngineError> {
        Ok(Self { rows: gpu.alloc(4096)?, words: gpu.alloc(4096)? })
    }
}

/// Queues the masks of a step: of the rows that are named, logits (any, vocab_size) of tokens
/// without their bit become -inf.
///
/// # Errors
/// The GPU's memory does not suffice, or the device failed before.
pub fn token_mask(
    gpu: &Gpu,
    logits: &mut Tensor,
    (rows, words): (&[MaskRow], &[u32]),
    buffers: &mut MaskBuffers,
) -> Result<(), EngineError> {
    if rows.is_empty() {
        return Ok(());
    }
    for (bytes, buffer) in
        [(size_of_val(rows), &mut buffers.rows), (size_of_val(words), &mut buffers.words)]
    {
        if bytes > buffer.bytes() {
            gpu.synchronize()?;
            *buffer = gpu.alloc(bytes.next_power_of_two())?;
        }
    }
    gpu.pack_uploads();
    gpu.upload(&buffers.rows, bytes_of(rows));
    gpu.upload(&buffers.words, bytes_of(words));
    let mut args = Args::new();
    args.tensor(logits).dims([logits.width()]).ptr(buffers.rows.ptr()).ptr(buffers.words.ptr());
    let grid = [rows.len() as u32, 1];
    gpu.launch(("token_mask", "token_mask"), grid, (BLOCK, 0), &mut args);
    Ok(())
}
