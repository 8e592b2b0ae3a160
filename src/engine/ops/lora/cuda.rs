//! Adapters on a GPU: kernels/lora.cu. Which slot a row has, and all addresses, lie in the device's
//! memory, so that steps are recorded: a slot changes between two steps, by uploads into memory
//! that was made at load.

use super::{LoraPart, SlotRows};
use vllm_batch_base::config::{DType, Quantization};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr, Plain};
use vllm_batch_device::tensor::{Rows, RowsMut, narrowed};
use vllm_batch_device::{Gpu, Tensor, bytes_of};

/// Parts of a layer, to kernels/lora.cu.
const MAX_PARTS: usize = 4;
/// The slot of a row without an adapter, to kernels/lora.cu.
const NO_SLOT: u32 = u32::MAX;
/// Each part of B begins at a multiple of so many bytes: what a thread loads at once.
const ALIGN: usize = 16;

/// `struct LoraPart` of kernels/lora.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PartEntry {
    b: DevicePtr,
    scale: f32,
    first_rank: u32,
    num_ranks: u32,
    first_output: u32,
    num_outputs: u32,
    unused: u32,
}

/// `struct LoraSlot` of kernels/lora.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct SlotEntry {
    a: DevicePtr,
    num_ranks: u32,
    num_parts: u32,
    parts: [PartEntry; MAX_PARTS],
}

// SAFETY: numbers without padding.
unsafe impl Plain for SlotEntry {}

/// An adapter's part of a layer, in the form of its slot.
#[derive(Debug)]
pub(super) struct Delta {
    /// (ranks of all parts, k) in the model's dtype
    a: Vec<u8>,
    /// (outputs, rank) of each part, in the model's dtype
    b: Vec<u8>,
    /// Table entry; addresses begin at 0.
    entry: SlotEntry,
}

impl Delta {
    /// # Panics
    /// The GPU narrows what linear layers read, `dtype` is not its own, or there are more than
    /// [`MAX_PARTS`] parts.
    pub(super) fn new(gpu: &Gpu, dtype: DType, parts: &[LoraPart]) -> Self {
        check_inputs(gpu);
        assert!(dtype == gpu.dtype() && parts.len() <= MAX_PARTS, "what kernels of adapters take");
        let (mut a, mut b, mut entry) = (Vec::new(), Vec::new(), SlotEntry::default());
        for (part, entry_of_part) in parts.iter().zip(&mut entry.parts) {
            b.resize(b.len().next_multiple_of(ALIGN), 0);
            *entry_of_part = PartEntry {
                b: DevicePtr(b.len() as u64),
                scale: part.scale,
                first_rank: entry.num_ranks,
                num_ranks: part.rank as u32,
                first_output: part.first_output as u32,
                num_outputs: (part.b.len() / part.rank) as u32,
                unused: 0,
            };
            entry.num_ranks += part.rank as u32;
            a.extend(narrowed(&part.a, dtype));
            b.extend(narrowed(&part.b, dtype));
        }
        entry.num_parts = parts.len() as u32;
        Self { a, b, entry }
    }
}

/// The kernels read x as the layer does, and a narrowed one is rounded for its weights.
fn check_inputs(gpu: &Gpu) {
    let is_narrow = gpu.quantization() == Some(Quantization::Fp8);
    assert!(!is_narrow, "adapters beside E4M3 rows, which their kernels do not take");
}

/// The adapters of a layer.
#[derive(Debug)]
pub(super) struct Slots {
    n: usize,
    /// Sum of the ranks of all parts of an adapter.
    max_ranks: usize,
    /// (slots) what kernels read
    table: DeviceBuffer,
    entries: Vec<SlotEntry>,
    memory: Vec<SlotMemory>,
}

/// Room for an adapter.
#[derive(Debug)]
struct SlotMemory {
    a: DeviceBuffer,
    b: DeviceBuffer,
}

impl Slots {
    /// Room for adapters of a layer of `n` outputs and `k` inputs: of so many parts, each of at
    /// most `max_rank`.
    ///
    /// # Errors
    /// The GPU's memory does not suffice, or its kernels do not take so many parts.
    pub(super) fn new(
        gpu: &Gpu,
        (n, k): (usize, usize),
        num_slots: usize,
        (num_parts, max_rank): (usize, usize),
    ) -> Result<Self, EngineError> {
        check_inputs(gpu);
        if num_parts > MAX_PARTS {
            let text = format!(
                "an adapter has {num_parts} parts of one layer, and a GPU's kernels take {MAX_PARTS}"
            );
            let help = "give `settings.device` cpu";
            return Err(EngineError::setting(Setting::LoraModules, text, help));
        }
        let (size, max_ranks) = (gpu.dtype().size_bytes(), num_parts * max_rank);
        let memory = || -> Result<SlotMemory, EngineError> {
            let a = gpu.alloc(max_ranks * k * size)?;
            let b = gpu.alloc(n * max_rank * size + num_parts * ALIGN)?;
            Ok(SlotMemory { a, b })
        };
        Ok(Self {
            n,
            max_ranks,
            table: gpu.alloc(num_slots * size_of::<SlotEntry>())?,
            entries: vec![SlotEntry::default(); num_slots],
            memory: (0..num_slots).map(|_| memory()).collect::<Result<_, _>>()?,
        })
    }

    /// Puts what an adapter adds, if it adds anything here, in the place of another. Steps that are
    /// queued still compute with that one.
    ///
    /// # Panics
    /// The slot has no room for it.
    pub(super) fn set(&mut self, gpu: &Gpu, slot: usize, delta: Option<&Delta>) {
        let mut entry = SlotEntry::default();
        if let Some(delta) = delta {
            let SlotMemory { a, b } = &self.memory[slot];
            assert!(delta.entry.num_ranks as usize <= self.max_ranks, "ranks of an adapter");
            gpu.upload(a, &delta.a);
            gpu.upload(b, &delta.b);
            entry = SlotEntry { a: a.ptr(), ..delta.entry };
            for part in &mut entry.parts[..entry.num_parts as usize] {
                assert!((part.first_output + part.num_outputs) as usize <= self.n, "outputs");
                part.b = b.ptr().offset(part.b.0 as usize);
            }
        }
        self.entries[slot] = entry;
        gpu.upload(&self.table, bytes_of(&self.entries));
    }
}

/// Slots of the rows of a step.
#[derive(Debug)]
pub(super) struct StepSlots {
    /// (padded rows of a step)
    pub of_tokens: DeviceBuffer,
    /// (padded rows of its logits)
    pub of_logits: DeviceBuffer,
    /// Reused by every step.
    staging: Vec<u32>,
}

impl StepSlots {
    /// Room for the largest step.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub(super) fn new(
        gpu: &Gpu,
        num_tokens: usize,
        num_logits: usize,
    ) -> Result<Self, EngineError> {
        let rows = |num_rows: usize| gpu.alloc(gpu.max_padded_rows(num_rows) * size_of::<u32>());
        let (of_tokens, of_logits) = (rows(num_tokens)?, rows(num_logits)?);
        Ok(Self { of_tokens, of_logits, staging: Vec::new() })
    }

    /// Brings the slots of a step's rows, and of those that pad, to the device.
    pub(super) fn upload(
        &mut self,
        gpu: &Gpu,
        (of_tokens, num_rows): (&[SlotRows], usize),
        (of_logits, num_logits_rows): (&[SlotRows], usize),
    ) {
        let staging = &mut self.staging;
        let mut upload = |buffer: &DeviceBuffer, slots: &[SlotRows], num_rows: usize| {
            staging.clear();
            staging.resize(num_rows, NO_SLOT);
            for SlotRows { slot, rows } in slots {
                staging[rows.clone()].fill(*slot as u32);
            }
            gpu.upload(buffer, bytes_of(staging));
        };
        upload(&self.of_tokens, of_tokens, num_rows);
        upload(&self.of_logits, of_logits, num_logits_rows);
    }
}

/// Rows and ranks of a block of the shrink, and from how many rows on: enough to fill a device.
/// Both give the same bits.
const SHRINKS: [(&str, usize, usize); 2] =
    [("lora_shrink_64", 64, 1024), ("lora_shrink_16", 16, 0)];
const SHRINK_THREADS: u32 = 256;
const SHRINK_RANKS: usize = 16;
/// Rows and outputs of a block of the expansion.
const EXPAND_TILE: (usize, usize) = (16, 256);
const EXPAND_THREADS: u32 = 128;

/// `num_rows` rows of out += B (s A x), of the adapter in the slot of each. `inner` is for A x.
pub(super) fn add(
    gpu: &Gpu,
    x: Rows<'_>,
    (layer, row_slots): (&Slots, DevicePtr),
    (inner, out): (&mut Tensor, RowsMut<'_>),
    num_rows: usize,
) {
    let Rows { tensor: x, first: first_x } = x;
    let RowsMut { tensor: out, first: first_out } = out;
    assert!(first_x + num_rows <= x.num_rows() && first_out + num_rows <= out.num_rows());
    assert!(x.dtype() == gpu.dtype() && out.width() == layer.n, "shapes of adapters");
    let max_ranks = layer.max_ranks;
    inner.reshape(num_rows, max_ranks);
    let at = |tensor: &Tensor, row: usize| tensor.device_ptr().offset(row * tensor.row_bytes());

    let mut args = Args::new();
    args.ptr(at(x, first_x)).ptr(row_slots).ptr(layer.table.ptr());
    args.dims([num_rows, x.width(), max_ranks]).tensor(inner);
    let shrink = SHRINKS.iter().find(|(.., from)| num_rows >= *from);
    let &(entry, rows, _) = shrink.expect("one takes any number");
    let grid = [num_rows.div_ceil(rows) as u32, max_ranks.div_ceil(SHRINK_RANKS) as u32];
    gpu.launch(("lora", entry), grid, (SHRINK_THREADS, 0), &mut args);

    let mut args = Args::new();
    args.tensor(inner).ptr(row_slots).ptr(layer.table.ptr());
    args.dims([num_rows, max_ranks, out.width()]).ptr(at(out, first_out));
    let entry = if out.dtype() == gpu.dtype() { "lora_expand" } else { "lora_expand_f32" };
    let (rows, outputs) = EXPAND_TILE;
    let grid = [num_rows.div_ceil(rows) as u32, out.width().div_ceil(outputs) as u32];
    gpu.launch(("lora", entry), grid, (EXPAND_THREADS, 0), &mut args);
}
