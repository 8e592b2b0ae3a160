//! token_counts: what penalties look at, kept on a GPU, so that a row may be sampled before the
//! host knows its last token. The CPU's twin is `engine::sampler`, which counts anew for every row.

use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::{Gpu, bytes_of};

use super::GPU_BLOCK;

/// `struct CountedToken` of kernels/sample.cu: a token of a row's output, or of its prompt where
/// repetition counts. A list of them begins with one whose token is their number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedToken {
    /// The token.
    pub token: u32,
    /// Occurrences in the output.
    pub num_output: u32,
}

/// `struct CountTask` of kernels/sample.cu: what is counted in a list before rows are sampled.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountTask {
    /// First entry of the list.
    pub list: u32,
    /// First of the list's tokens.
    pub token_start: u32,
    /// End of them.
    pub token_end: u32,
    /// Row of the step before whose token is counted after them, or `NO_ROW`.
    pub sampled_row: u32,
}

impl CountTask {
    /// The host knows all tokens.
    pub const NO_ROW: u32 = u32::MAX;
}

// SAFETY: 32-bit numbers without padding.
unsafe impl Plain for CountedToken {}
// SAFETY: as above.
unsafe impl Plain for CountTask {}

/// Changes of a step to lists.
#[derive(Clone, Copy, Debug)]
pub struct CountChanges<'a> {
    /// Entries of all lists: where there is less room yet, the new entries are all there are.
    pub capacity: usize,
    /// Entries of lists that are made anew, one after the other.
    pub new_entries: &'a [CountedToken],
    /// Where they begin.
    pub start_of_new: usize,
    /// Counting tasks, each list at most once.
    pub tasks: &'a [CountTask],
    /// Tokens that are counted, and drafts of rows.
    pub tokens: &'a [u32],
}

/// Lists on the device, and what changes them. They grow: most runs have no penalties.
#[derive(Debug)]
pub struct CountBuffers {
    lists: DeviceBuffer,
    tasks: DeviceBuffer,
    tokens: DeviceBuffer,
}

impl CountBuffers {
    /// Room for a few.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(gpu: &Gpu) -> Result<Self, EngineError> {
        Ok(Self { lists: gpu.alloc(4096)?, tasks: gpu.alloc(4096)?, tokens: gpu.alloc(4096)? })
    }

    /// The lists.
    pub(super) fn lists(&self) -> DevicePtr {
        self.lists.ptr()
    }

    /// Tokens of the step, among which drafts are.
    pub(super) fn tokens(&self) -> DevicePtr {
        self.tokens.ptr()
    }
}

/// Queues what a step makes of lists, before its rows are sampled and after those of the last.
///
/// # Errors
/// The GPU's memory does not suffice, or the device failed before.
pub fn count_tokens(
    gpu: &Gpu,
    changes: CountChanges<'_>,
    buffers: &mut CountBuffers,
) -> Result<(), EngineError> {
    let CountChanges { capacity, new_entries, start_of_new, tasks, tokens } = changes;
    for (bytes, buffer) in [
        (capacity * size_of::<CountedToken>(), &mut buffers.lists),
        (size_of_val(tasks).next_power_of_two(), &mut buffers.tasks),
        (size_of_val(tokens).next_power_of_two(), &mut buffers.tokens),
    ] {
        if bytes > buffer.bytes() {
            gpu.synchronize()?;
            *buffer = gpu.alloc(bytes)?;
        }
    }
    let start = start_of_new * size_of::<CountedToken>();
    gpu.pack_uploads();
    gpu.upload_at(&buffers.lists, start, bytes_of(new_entries));
    gpu.upload(&buffers.tasks, bytes_of(tasks));
    gpu.upload(&buffers.tokens, bytes_of(tokens));
    let mut args = Args::new();
    args.ptr(buffers.lists.ptr()).ptr(buffers.tasks.ptr()).ptr(buffers.tokens.ptr());
    args.ptr(gpu.sampled_ptr());
    gpu.launch(("sample", "count_tokens"), [tasks.len() as u32, 1], (GPU_BLOCK, 0), &mut args);
    Ok(())
}
