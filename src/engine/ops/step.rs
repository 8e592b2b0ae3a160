//! One step's integers where ops need them: `Batch` on the host, and its copy on a GPU.

mod parts;
mod runs;
mod texts;

pub(super) use parts::PartInputs;
pub use texts::TextLimits;

use std::cmp::Reverse;
use std::ops::Range;

use crate::batch::Batch;
use runs::RunInputs;
use texts::TextInputs;
use vllm_batch_base::EngineError;
use vllm_batch_device::cuda::{DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::{Device, Gpu, bytes_of};

use super::paged_attention::{prefill_states_bytes, prefill_tokens};
use vllm_batch_base::layers::QkvHeads;

/// Indices of a step: on the host, and on the GPU when that is where the step runs.
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// Values of the batch.
    pub host: &'a [u32],
    /// Padded to the rows of the step's tensors; null without a GPU.
    pub(super) device_ptr: DevicePtr,
}

impl<'a> From<&'a [u32]> for Ids<'a> {
    fn from(host: &'a [u32]) -> Self {
        Self { host, device_ptr: DevicePtr::NULL }
    }
}

/// The slots of a step's rows in a GPU's memory: a row that pads has none. Null without a GPU, and
/// where no row pads.
#[derive(Clone, Copy, Debug)]
pub struct RowSlots(pub(super) DevicePtr);

impl Default for RowSlots {
    fn default() -> Self {
        Self(DevicePtr::NULL)
    }
}

/// One step, as ops see it.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Batch from the scheduler.
    pub batch: &'a Batch,
    inputs: Option<&'a GpuInputs>,
}

impl<'a> Step<'a> {
    /// A step on the CPU.
    pub fn on_host(batch: &'a Batch) -> Self {
        Self { batch, inputs: None }
    }

    /// Rows of the step's tensors: on a GPU padded to a size that it has an algorithm for.
    pub fn num_rows(&self) -> usize {
        self.inputs.map_or(self.batch.num_tokens(), |inputs| inputs.num_rows)
    }

    /// Rows of the logits, padded in the same way.
    pub fn num_logits_rows(&self) -> usize {
        let num_logits = self.batch.logits_indices.len();
        self.inputs.map_or(num_logits, |inputs| inputs.num_logits_rows)
    }

    /// (num_rows) token ids.
    pub fn input_ids(&self) -> Ids<'a> {
        self.ids(&self.batch.input_ids, |inputs| &inputs.input_ids)
    }

    /// (num_rows) absolute positions.
    pub fn positions(&self) -> Ids<'a> {
        self.ids(&self.batch.positions, |inputs| &inputs.positions)
    }

    /// (num_rows, 3) positions on axes in a GPU's memory.
    ///
    /// # Panics
    /// It was not said that tokens have any.
    pub(super) fn axes_ptr(&self) -> DevicePtr {
        let axes = self.gpu_inputs().axes.as_ref();
        axes.expect("room for positions on axes").ptr()
    }

    /// (num_rows) where what tokens attend to ends, in a GPU's memory; null: behind themselves.
    ///
    /// # Panics
    /// It was not said that images are attended to whole.
    pub(super) fn attended_ends_ptr(&self) -> DevicePtr {
        match self.batch.attended_ends.is_empty() {
            true => DevicePtr::NULL,
            false => self.gpu_inputs().attended_ends.as_ref().expect("room for them").ptr(),
        }
    }

    /// (num_rows) where in the block tables the blocks of each row's sequence are, in a GPU's
    /// memory.
    ///
    /// # Panics
    /// It was not said that tokens choose positions.
    pub(super) fn row_tables_ptr(&self) -> DevicePtr {
        let tables = self.gpu_inputs().row_tables.as_ref();
        tables.expect("room for the tables of rows").ptr()
    }

    /// (num_rows) segments, of a step of texts.
    pub fn token_types(&self) -> Ids<'a> {
        self.ids(&self.batch.token_types, |inputs| &inputs.texts().token_types)
    }

    /// (num_texts + 1) first token of each text, and the end, of a step of texts.
    pub fn text_starts(&self) -> Ids<'a> {
        self.ids(&self.batch.query_start_loc, |inputs| &inputs.texts().starts)
    }

    /// (num_rows) slots of K and V.
    pub fn slot_mapping(&self) -> Ids<'a> {
        self.ids(&self.batch.slot_mapping, |inputs| &inputs.slot_mapping)
    }

    /// Slots of the rows, for a GPU's kernels.
    pub fn row_slots(&self) -> RowSlots {
        RowSlots(self.slot_mapping().device_ptr)
    }

    /// (num_logits_rows) rows whose logits are wanted.
    pub fn logits_indices(&self) -> Ids<'a> {
        self.ids(&self.batch.logits_indices, |inputs| &inputs.logits_indices)
    }

    /// Key of the CUDA graph for this step. Two steps share a graph if they have the same padded
    /// row count and agree on: adapters, split rows, shared splits. `None`: do not record (prefill,
    /// images, or a state that depends on this step).
    pub fn graph_key(&self) -> Option<usize> {
        let (batch, inputs) = (self.batch, self.inputs?);
        let num_rows = inputs.num_rows;
        let decodes = batch.num_tokens() == batch.num_seqs();
        let samples = batch.logits_indices.len() == batch.num_seqs();
        let waits = inputs.runs.as_ref().is_some_and(|runs| runs.levels().count() > 1);
        // Embeddings of images are copied by launches of their own.
        let has_media = !batch.media.is_empty();
        let is_small = num_rows <= MAX_GRAPH_ROWS;
        let is_recorded = decodes && samples && !waits && !has_media && is_small;
        let (has_parts, shares) = self.has_parts();
        let bits = [!batch.loras.is_empty(), has_parts, shares];
        let key = |key, bit| 2 * key + usize::from(bit);
        is_recorded.then(|| bits.into_iter().fold(num_rows, key))
    }

    /// Whether attention computes rows that decode in parts, and some parts for several rows. No
    /// bit depends on it.
    pub fn has_parts(&self) -> (bool, bool) {
        let parts = self.inputs.and_then(|inputs| inputs.parts.as_ref());
        parts.map_or((false, false), PartInputs::are_used)
    }

    pub(super) fn gpu_inputs(&self) -> &'a GpuInputs {
        self.inputs.expect("a step of the host was given to a GPU")
    }

    fn ids(&self, host: &'a [u32], of: impl Fn(&GpuInputs) -> &DeviceBuffer) -> Ids<'a> {
        Ids { host, device_ptr: self.inputs.map_or(DevicePtr::NULL, |inputs| of(inputs).ptr()) }
    }
}

/// The buffers behind `Step`s, allocated once for the largest step.
#[derive(Debug)]
pub struct StepInputs {
    gpu: Option<GpuInputs>,
}

/// Limits of a step that buffers are sized by.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Tokens of a step.
    pub max_num_tokens: usize,
    /// Sequences of a step.
    pub max_num_seqs: usize,
    /// Rows of logits of a step.
    pub max_num_logits: usize,
    /// Longest context.
    pub max_model_len: usize,
    /// Tokens of a KV block.
    pub block_size: usize,
    /// Query heads that share a K and V head, by which a GPU's units of work are sized. Layers with
    /// other numbers take the same units, in as many passes as they need.
    pub num_q_per_kv: usize,
    /// The most heads of a layer, and the widest.
    pub heads: QkvHeads,
    /// Some layer attends to all positions and has no biases: a GPU may compute rows in parts.
    pub attends_to_all: bool,
    /// Layers go from token to token with states.
    pub has_states: bool,
    /// Tokens have positions on axes.
    pub has_axes: bool,
    /// Tokens of images attend to all of theirs.
    pub has_whole_images: bool,
    /// Tokens attend to positions that they choose.
    pub has_choices: bool,
}

impl StepInputs {
    /// Room for the largest step.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(device: &Device, limits: StepLimits) -> Result<Self, EngineError> {
        let gpu = match device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(GpuInputs::new(gpu, limits)?),
        };
        Ok(Self { gpu })
    }

    /// Brings a batch to where the ops run.
    pub fn step<'a>(&'a mut self, device: &Device, batch: &'a Batch) -> Step<'a> {
        if let (Device::Cuda(gpu), Some(inputs)) = (device, &mut self.gpu) {
            inputs.upload(gpu, batch);
        }
        Step { batch, inputs: self.gpu.as_ref() }
    }
}

/// A step's integers in a GPU's memory.
#[derive(Debug)]
pub(super) struct GpuInputs {
    /// Query tokens of a unit of prefill.
    tokens_per_item: u32,
    num_rows: usize,
    num_logits_rows: usize,
    input_ids: DeviceBuffer,
    positions: DeviceBuffer,
    /// (num_rows, 3), if tokens have positions on axes; those of text are equal.
    axes: Option<DeviceBuffer>,
    /// (num_rows) where what tokens attend to ends, if images are attended to whole.
    attended_ends: Option<DeviceBuffer>,
    /// (num_rows) where in the block tables a row's blocks are, if tokens choose positions.
    row_tables: Option<DeviceBuffer>,
    slot_mapping: DeviceBuffer,
    logits_indices: DeviceBuffer,
    /// Sampled rows of a step ahead.
    sampled_rows: DeviceBuffer,
    /// (max_num_seqs, 2) as many as are made at a time; uploaded by the op.
    pub(super) block_copies: DeviceBuffer,
    /// Rows of all sequences one after the other; `AttentionWork::seq` is where one begins.
    pub(super) block_tables: DeviceBuffer,
    pub(super) decode: WorkList,
    pub(super) prefill: WorkList,
    /// Merge states of prefill, if they are not in shared memory; reused by every layer.
    pub(super) prefill_states: DeviceBuffer,
    /// The same work in parts, if kernels take it so.
    pub(super) parts: Option<PartInputs>,
    /// Where texts are, if the steps are of whole texts.
    texts: Option<TextInputs>,
    /// The tokens of each sequence, if layers have states.
    runs: Option<RunInputs>,
    /// Reused by every step.
    staging: Vec<u32>,
}

/// Units of attention; how many each launch has lies beside them, so that a CUDA graph can be
/// replayed with another number.
#[derive(Debug)]
pub(super) struct WorkList {
    items: DeviceBuffer,
    num_items: DeviceBuffer,
    /// A bit for each token of a step that launches may add, and as many zeros.
    is_added: DeviceBuffer,
    none_added: Vec<u32>,
    pub host: Vec<AttentionWork>,
    /// Those of each launch.
    pub launches: Vec<Range<usize>>,
}

// SAFETY: seven integers without padding.
unsafe impl Plain for AttentionWork {}

/// `struct AttentionWork` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionWork {
    /// First query token in the flat axis.
    pub token: u32,
    pub num_tokens: u32,
    /// First entry of the sequence in `block_tables`.
    pub seq: u32,
    /// Absolute position of the first query token.
    pub position: u32,
    /// Positions that the unit computes, of those that any of the tokens sees.
    pub start: u32,
    pub end: u32,
    /// Where the first split is kept. NO_SLOT: the unit is all of its tokens' attention.
    pub slot: u32,
}

/// `struct DecodeList` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DecodeList {
    items: DevicePtr,
    num_items: DevicePtr,
    is_added: DevicePtr,
}

/// Largest step that is recorded as a CUDA graph: of as many rows as `step_sizes` gives any device
/// to decode at once.
const MAX_GRAPH_ROWS: usize = 1024;

/// No slot: a row that only pads, a unit whose result is not kept for others.
const NO_SLOT: u32 = u32::MAX;

impl WorkList {
    /// Room for units of the host's, and for tokens that launches add.
    fn new(gpu: &Gpu, max_items: usize, max_added: usize) -> Result<Self, EngineError> {
        let none_added = vec![0; max_added.div_ceil(32)];
        Ok(Self {
            items: gpu.alloc((max_items + max_added) * size_of::<AttentionWork>())?,
            num_items: gpu.alloc(max_items.max(1) * 4)?,
            is_added: gpu.alloc(size_of_val(&none_added[..]))?,
            none_added,
            host: Vec::with_capacity(max_items),
            launches: Vec::with_capacity(max_items),
        })
    }

    /// Longest first: the last units to run should be short ones. In launches that see up to
    /// `max_positions` each, or in one.
    fn upload(&mut self, gpu: &Gpu, max_positions: Option<u32>) {
        let order = |work: &AttentionWork| (Reverse(work.end - work.start), work.token, work.start);
        self.host.sort_unstable_by_key(order);
        self.launches.clear();
        let max_positions = max_positions.map_or(u64::MAX, u64::from);
        self.launches.extend(launches(&self.host, max_positions));
        let sizes: Vec<u32> = self.launches.iter().map(|items| items.len() as u32).collect();
        gpu.upload(&self.items, bytes_of(&self.host));
        gpu.upload(&self.num_items, bytes_of(&sizes));
    }

    /// Lets launches of a step add tokens, of which none is added yet.
    fn open(&self, gpu: &Gpu, num_tokens: usize) {
        gpu.upload(&self.is_added, bytes_of(&self.none_added[..num_tokens.div_ceil(32)]));
    }

    /// Where they add them: to the units of the first launch.
    pub(crate) fn list(&self) -> DecodeList {
        let (items, num_items) = self.ptrs(0);
        DecodeList { items, num_items, is_added: self.is_added.ptr() }
    }

    /// The units of a launch, and their number.
    pub(crate) fn ptrs(&self, launch: usize) -> (DevicePtr, DevicePtr) {
        let start = self.launches[launch].start * size_of::<AttentionWork>();
        (self.items.ptr().offset(start), self.num_items.ptr().offset(4 * launch))
    }
}

/// Units per launch: together they see at most `max_positions`, or a single one sees more. At least
/// one launch.
fn launches(work: &[AttentionWork], max_positions: u64) -> Vec<Range<usize>> {
    let (mut launches, mut start, mut positions) = (Vec::new(), 0, 0u64);
    for (index, work) in work.iter().enumerate() {
        positions = positions.saturating_add(u64::from(work.end));
        if positions > max_positions && index > start {
            launches.push(start..index);
            (start, positions) = (index, u64::from(work.end));
        }
    }
    launches.push(start..work.len());
    launches
}

impl GpuInputs {
    /// Query tokens of a unit of prefill, at most.
    pub(super) fn tokens_per_item(&self) -> usize {
        self.tokens_per_item as usize
    }

    fn new(gpu: &Gpu, limits: StepLimits) -> Result<Self, EngineError> {
        let rows = gpu.max_padded_rows(limits.max_num_tokens);
        let logits_rows = gpu.max_padded_rows(limits.max_num_logits);
        let ids = |len: usize| gpu.alloc(len * 4);
        let blocks = limits.max_model_len.div_ceil(limits.block_size);
        // Without attention no unit is computed.
        let (tokens_per_item, states_bytes) = match (limits.num_q_per_kv, limits.heads.head_dim) {
            (0, _) => (limits.max_num_tokens, 0),
            (num, dim) => (prefill_tokens(gpu, dim, num), prefill_states_bytes(gpu, dim)),
        };
        let of_runs = (limits.max_num_seqs, limits.block_size);
        let runs = limits.has_states.then(|| RunInputs::new(gpu, of_runs));
        let prefill_items = limits.max_num_tokens / tokens_per_item + limits.max_num_seqs;
        Ok(Self {
            tokens_per_item: tokens_per_item as u32,
            num_rows: 0,
            num_logits_rows: 0,
            input_ids: ids(rows)?,
            positions: ids(rows)?,
            axes: limits.has_axes.then(|| ids(3 * rows)).transpose()?,
            attended_ends: limits.has_whole_images.then(|| ids(rows)).transpose()?,
            row_tables: limits.has_choices.then(|| ids(rows)).transpose()?,
            slot_mapping: ids(rows)?,
            logits_indices: ids(logits_rows)?,
            sampled_rows: ids(limits.max_num_tokens)?,
            block_copies: ids(2 * limits.max_num_seqs)?,
            // Two at least, for the warm-up.
            block_tables: ids((limits.max_num_seqs * blocks).max(2))?,
            decode: WorkList::new(gpu, limits.max_num_seqs, limits.max_num_tokens)?,
            prefill: WorkList::new(gpu, prefill_items, 0)?,
            prefill_states: gpu.alloc(states_bytes)?,
            parts: PartInputs::new(gpu, limits, prefill_items)?,
            texts: None,
            runs: runs.transpose()?,
            staging: Vec::with_capacity((3 * rows).max(limits.max_num_seqs * blocks)),
        })
    }

    fn upload(&mut self, gpu: &Gpu, batch: &Batch) {
        let rows = gpu.padded_rows(batch.num_tokens());
        let logits_rows = match batch.logits_indices.len() {
            0 => 0,
            num_logits => gpu.padded_rows(num_logits),
        };
        self.num_rows = rows;
        self.num_logits_rows = logits_rows;
        gpu.pack_uploads();
        let staging = &mut self.staging;
        let mut padded = |buffer: &DeviceBuffer, values: &[u32], len: usize, pad: u32| {
            staging.clear();
            staging.extend_from_slice(values);
            staging.resize(len, pad);
            gpu.upload(buffer, bytes_of(staging));
        };
        padded(&self.input_ids, &batch.input_ids, rows, 0);
        padded(&self.positions, &batch.positions, rows, 0);
        padded(&self.logits_indices, &batch.logits_indices, logits_rows, 0);
        if let Some(axes) = &self.axes {
            match &batch.axes[..] {
                [] => {
                    let of_text = |position: &u32| [*position; 3];
                    let of_text: Vec<u32> = batch.positions.iter().flat_map(of_text).collect();
                    padded(axes, &of_text, 3 * rows, 0);
                }
                of_batch => padded(axes, of_batch.as_flattened(), 3 * rows, 0),
            }
        }
        if let Some(texts) = &mut self.texts {
            texts.places.place(batch);
            padded(&texts.token_types, &batch.token_types, rows, 0);
            padded(&texts.starts, &batch.query_start_loc, batch.query_start_loc.len(), 0);
            padded(&self.slot_mapping, &texts.places.slots, rows, NO_SLOT);
            return self.upload_work(gpu, batch);
        }
        padded(&self.slot_mapping, &batch.slot_mapping, rows, NO_SLOT);
        padded(&self.block_tables, &batch.block_tables, batch.block_tables.len(), 0);
        padded(&self.sampled_rows, &batch.sampled_rows, batch.sampled_rows.len(), 0);
        if let (Some(ends), false) = (&self.attended_ends, batch.attended_ends.is_empty()) {
            let of_batch: Vec<u32> =
                (0..batch.num_tokens()).map(|t| batch.attended_end(t)).collect();
            padded(ends, &of_batch, rows, 0);
        }
        if let Some(tables) = &self.row_tables {
            let of_seq = |(seq, rows): (usize, &[u32])| {
                let table = (seq * batch.max_blocks_per_seq) as u32;
                std::iter::repeat_n(table, (rows[1] - rows[0]) as usize)
            };
            let seqs = batch.query_start_loc.windows(2).enumerate();
            padded(tables, &seqs.flat_map(of_seq).collect::<Vec<_>>(), rows, 0);
        }
        if let Some(runs) = &mut self.runs {
            runs.upload(gpu, batch);
        }
        self.upload_work(gpu, batch);
        if !batch.sampled_rows.is_empty() {
            let num_rows = batch.sampled_rows.len();
            super::sample::take_sampled(gpu, &self.sampled_rows, &self.input_ids, num_rows);
        }
    }

    /// # Panics
    /// No layer was said to have states.
    pub(super) fn runs(&self) -> &RunInputs {
        self.runs.as_ref().expect("a step of layers with states")
    }

    fn upload_work(&mut self, gpu: &Gpu, batch: &Batch) {
        self.decode.host.clear();
        self.prefill.host.clear();
        match &self.texts {
            Some(texts) => {
                texts.places.list_work(batch, self.tokens_per_item, &mut self.prefill.host);
            }
            None => {
                self.list_work(batch);
                if !self.prefill.host.is_empty() {
                    self.decode.open(gpu, batch.num_tokens());
                }
            }
        }
        // Recorded launches of decoding serve every step of their size: they are not split.
        self.decode.upload(gpu, None);
        self.prefill.upload(gpu, gpu.properties().max_launch_positions);
        if let Some(parts) = &mut self.parts {
            parts.upload(gpu, batch, &self.prefill.host);
        }
    }

    /// One unit per sequence that decodes, and one per tile of a sequence that computes more.
    fn list_work(&mut self, batch: &Batch) {
        for seq in 0..batch.num_seqs() {
            let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
            let block_table = (seq * batch.max_blocks_per_seq) as u32;
            let first_position = batch.seq_lens[seq] - (end - start);
            let of_sequence =
                |max_tokens| work_of(start..end, max_tokens, (block_table, first_position));
            match end - start {
                1 => self.decode.host.extend(of_sequence(1)),
                _ => {
                    let seen = |work: AttentionWork| {
                        let last = (work.token + work.num_tokens - 1) as usize;
                        AttentionWork { end: batch.attended_end(last), ..work }
                    };
                    self.prefill.host.extend(of_sequence(self.tokens_per_item).map(seen));
                }
            }
        }
    }
}

/// Units of up to `max_tokens` of a sequence's tokens, each of which sees up to itself. `seq` is
/// the first entry in the block tables, `first` the position of the first token.
fn work_of(
    tokens: Range<u32>,
    max_tokens: u32,
    (seq, first): (u32, u32),
) -> impl Iterator<Item = AttentionWork> {
    tokens.clone().step_by(max_tokens as usize).map(move |token| {
        let num_tokens = (tokens.end - token).min(max_tokens);
        let position = first + (token - tokens.start);
        let (start, end) = (0, position + num_tokens);
        AttentionWork { token, num_tokens, seq, position, start, end, slot: NO_SLOT }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_see_no_more_positions_than_they_may_unless_of_one_unit() {
        let work = |end: u32| {
            let whole = work_of(0..1, 1, (0, end - 1)).next();
            whole.expect("one token has one unit")
        };
        let all = [900, 400, 300, 300, 300, 100].map(work);
        assert_eq!(launches(&all, 1000), [0..1, 1..4, 4..6]);
        assert_eq!(launches(&all, 1), [0..1, 1..2, 2..3, 3..4, 4..5, 5..6]);
        assert_eq!(launches(&all, u64::MAX)[0], 0..6);
        assert_eq!(launches(&[], 5)[0], 0..0);
    }
}
