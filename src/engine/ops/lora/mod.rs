//! lora: out += s B (A x), for the rows of a step that are computed with an adapter.
//!
//! A is (rank, k) and B (n, rank). What a row gets is a function of the row and of its adapter:
//!
//! - A x is a sum over k in an order that k decides: on the CPU upward, as of any linear layer of
//!   the model's dtype;
//! - s B (A x) is a sum over the rank upward, in f32. The CPU's goes on from the output that is
//!   there, with s B rounded to f32 once. A GPU adds it to the output as the layer has rounded it,
//!   and rounds once more: out = round(out + B (s A x)).
//!
//! Rows without an adapter are not touched. A layer of several parts (q, k and v) has A of all of
//! them in one product, and B of each.

mod cuda;
mod table;
#[cfg(test)]
mod tests;

pub use table::{TableDelta, TableSlots};

use std::ops::Range;

use super::Ids;
use super::linear::{AddedPart, LinearWeight, add_products, linear_rows};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::matrix::{SourceMatrix, SourceRows, SourceValues};
use vllm_batch_device::tensor::{Rows, RowsMut};
use vllm_batch_device::{Cpu, Device, Precision, Tensor};

/// An adapter's matrices of some of the outputs of a layer.
#[derive(Clone, Debug)]
pub struct LoraPart {
    /// (rank, k), row-major
    pub a: Vec<f32>,
    /// (outputs, rank), row-major
    pub b: Vec<f32>,
    /// Rows of `a`, at least 1.
    pub rank: usize,
    /// Factor of B A.
    pub scale: f32,
    /// The first of its outputs.
    pub first_output: usize,
}

impl LoraPart {
    /// s B for the CPU, whose inputs begin at this one.
    fn scaled_b(&self, cpu: &Cpu, first_input: usize) -> AddedPart {
        let Self { b, rank, scale, first_output, .. } = self;
        let scaled: Vec<f32> = b.iter().map(|b| b * scale).collect();
        let rows = matrix((b.len() / rank, *rank), &scaled);
        let weight = LinearWeight::pack(cpu, DType::Float32, &rows, None);
        AddedPart { weight, first_input, first_output: *first_output }
    }
}

/// An adapter's part of a linear layer, in a device's form.
#[derive(Debug)]
pub struct LoraDelta(Delta);

#[derive(Debug)]
enum Delta {
    Cpu(CpuDelta),
    /// On its way to a slot's memory.
    Cuda(cuda::Delta),
}

#[derive(Debug)]
struct CpuDelta {
    /// (ranks of all parts, k)
    a: LinearWeight,
    parts: Vec<AddedPart>,
}

impl LoraDelta {
    /// Packs the parts of a layer of `k` inputs, of which there is at least one.
    ///
    /// # Errors
    /// The device's linear layers read what adapters cannot.
    pub fn load(
        device: &Device,
        dtype: DType,
        k: usize,
        parts: &[LoraPart],
    ) -> Result<Self, EngineError> {
        let cpu = match device {
            Device::Cpu(cpu) => cpu,
            Device::Cuda(gpu) => {
                return Ok(Self(Delta::Cuda(cuda::Delta::new(gpu, dtype, parts))));
            }
        };
        let all: Vec<f32> = parts.iter().flat_map(|part| &part.a).copied().collect();
        let inner = parts.iter().map(|part| part.rank).sum();
        let a = LinearWeight::pack(cpu, dtype, &matrix((inner, k), &all), None);
        let mut first_input = 0;
        let part = |part: &LoraPart| {
            let added = part.scaled_b(cpu, first_input);
            first_input += part.rank;
            added
        };
        Ok(Self(Delta::Cpu(CpuDelta { a, parts: parts.iter().map(part).collect() })))
    }
}

impl CpuDelta {
    /// Rows of out += s B (A x); `inner` is for A x.
    fn add(
        &self,
        (device, cpu): (&Device, &Cpu),
        x: Rows<'_>,
        inner: &mut Tensor,
        out: RowsMut<'_>,
        num_rows: usize,
    ) {
        inner.reshape(0, self.a.shape().0);
        inner.resize_rows(num_rows);
        linear_rows(device, x, &self.a, inner.rows_from_mut(0), num_rows);
        add_products(cpu, inner.rows_from(0), &self.parts, out, num_rows);
    }
}

fn matrix((rows, columns): (usize, usize), values: &[f32]) -> SourceRows<'_> {
    assert_eq!(values.len(), rows * columns, "a matrix of an adapter");
    [SourceMatrix::new(rows, columns, SourceValues::Slice(values))].into()
}

/// Parts of adapters at one place, by slot.
#[derive(Debug)]
struct BySlot<T>(Vec<Option<T>>);

impl<T> Default for BySlot<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> BySlot<T> {
    fn set(&mut self, slot: usize, delta: Option<T>) {
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = delta;
    }

    fn get(&self, slot: usize) -> Option<&T> {
        self.0.get(slot)?.as_ref()
    }
}

/// Parts of adapters in one linear layer, each in the slot that it has in all layers.
#[derive(Debug, Default)]
pub struct LoraSlots {
    on_cpu: BySlot<CpuDelta>,
    on_gpu: Option<cuda::Slots>,
}

impl LoraSlots {
    /// Makes the device ready for so many adapters of a layer of `n` outputs and `k` inputs, each
    /// of up to so many parts and ranks of a part. A GPU has room for nothing else.
    ///
    /// # Errors
    /// The GPU's memory does not suffice, or its linear layers read what adapters cannot.
    pub fn reserve(
        &mut self,
        device: &Device,
        (n, k): (usize, usize),
        num_slots: usize,
        (num_parts, max_rank): (usize, usize),
    ) -> Result<(), EngineError> {
        if let Device::Cuda(gpu) = device {
            let slots = cuda::Slots::new(gpu, (n, k), num_slots, (num_parts, max_rank))?;
            self.on_gpu = Some(slots);
        }
        Ok(())
    }

    /// Puts what an adapter adds, if it adds anything here, in the place of another.
    ///
    /// # Panics
    /// A GPU has no room for it, or it is packed for another device.
    pub fn set(&mut self, device: &Device, slot: usize, delta: Option<LoraDelta>) {
        match (device, &mut self.on_gpu) {
            (Device::Cuda(gpu), Some(slots)) => {
                let delta = delta.as_ref().map(|delta| match &delta.0 {
                    Delta::Cuda(delta) => delta,
                    Delta::Cpu(_) => panic!("an adapter of the host was given to a GPU"),
                });
                slots.set(gpu, slot, delta);
            }
            (Device::Cuda(_), None) => assert!(delta.is_none(), "a layer without slots"),
            (Device::Cpu(_), _) => {
                let delta = delta.map(|delta| match delta.0 {
                    Delta::Cpu(delta) => delta,
                    Delta::Cuda(_) => panic!("an adapter of a GPU was given to the host"),
                });
                self.on_cpu.set(slot, delta);
            }
        }
    }
}

/// A linear layer that adapters may add to.
#[derive(Debug)]
pub struct AdaptedLinear {
    /// The layer.
    pub weight: LinearWeight,
    /// Parts of adapters.
    pub loras: LoraSlots,
    /// Bounds of what goes in and comes out. Whoever runs the layer applies them.
    pub bounds: Option<LinearBounds>,
}

/// The least and the largest value of inputs and outputs of a linear layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearBounds {
    /// Of inputs.
    pub inputs: [f32; 2],
    /// Of so many outputs each, one after the other.
    pub outputs: Vec<(usize, [f32; 2])>,
}

impl From<LinearWeight> for AdaptedLinear {
    fn from(weight: LinearWeight) -> Self {
        Self { weight, loras: LoraSlots::default(), bounds: None }
    }
}

impl AdaptedLinear {
    /// Whether an adapter adds to any of these rows of a step. On a GPU, where steps that have
    /// adapters are recorded alike: whether one may.
    pub fn is_adapted(&self, loras: &StepLoras, step_rows: Range<usize>) -> bool {
        if self.loras.on_gpu.is_some() {
            return !loras.of_tokens.is_empty();
        }
        let of_rows = slots_of(&loras.of_tokens, step_rows);
        of_rows.into_iter().any(|(slot, _)| self.loras.on_cpu.get(slot).is_some())
    }
}

/// Rows that are computed with the adapter of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRows {
    /// The slot.
    pub slot: usize,
    /// The rows, of a step or of its logits.
    pub rows: Range<usize>,
}

/// The adapters of a step, and what the op works in.
#[derive(Debug)]
pub struct StepLoras {
    /// Rows of the step; others have none.
    pub of_tokens: Vec<SlotRows>,
    /// Rows of its logits.
    pub of_logits: Vec<SlotRows>,
    /// (rows, ranks)
    inner: Tensor,
    on_gpu: Option<cuda::StepSlots>,
}

impl Default for StepLoras {
    fn default() -> Self {
        let (of_tokens, of_logits) = (Vec::new(), Vec::new());
        Self { of_tokens, of_logits, inner: Tensor::zeros(0, 1), on_gpu: None }
    }
}

impl StepLoras {
    /// Makes room on a GPU for the largest step, and for the most ranks that a layer's slots have
    /// of all parts together.
    ///
    /// # Errors
    /// The memory does not suffice.
    pub fn reserve(
        &mut self,
        device: &Device,
        (num_tokens, num_logits): (usize, usize),
        max_ranks: usize,
    ) -> Result<(), EngineError> {
        if let Device::Cuda(gpu) = device {
            let num_rows = num_tokens.max(num_logits);
            self.inner = device.tensor(num_rows, max_ranks, Precision::Full)?;
            self.on_gpu = Some(cuda::StepSlots::new(gpu, num_tokens, num_logits)?);
        }
        Ok(())
    }

    /// Brings the rows that are said by now to where the ops run, of a step that has so many rows
    /// and rows of logits.
    pub fn begin(&mut self, device: &Device, num_rows: usize, num_logits_rows: usize) {
        let Self { of_tokens, of_logits, on_gpu, .. } = self;
        if let (Device::Cuda(gpu), Some(slots)) = (device, on_gpu)
            && !of_tokens.is_empty()
        {
            slots.upload(gpu, (of_tokens, num_rows), (of_logits, num_logits_rows));
        }
    }

    /// out += what adapters add to a layer of x, for `num_rows` rows, the first of which is row
    /// `first` of the step.
    pub fn add(
        &mut self,
        device: &Device,
        x: Rows<'_>,
        layer: &LoraSlots,
        out: RowsMut<'_>,
        (first, num_rows): (usize, usize),
    ) {
        self.add_to(device, OfRows::Tokens(first), x, (layer, out), num_rows);
    }

    /// out += what adapters add to the rows of a table that tokens have, for all rows of the step.
    pub fn add_of_table(
        &mut self,
        device: &Device,
        ids: Ids<'_>,
        table: &TableSlots,
        out: &mut Tensor,
    ) {
        for SlotRows { slot, rows } in &self.of_tokens {
            let (Some(delta), Device::Cpu(cpu)) = (table.get(*slot), device) else { continue };
            delta.add(cpu, (ids.host, rows.clone()), &mut self.inner, out);
        }
    }

    /// The same as `add` for all rows of logits.
    pub fn add_to_logits(
        &mut self,
        device: &Device,
        x: &Tensor,
        layer: &LoraSlots,
        logits: &mut Tensor,
    ) {
        let (num_rows, out) = (x.num_rows(), logits.rows_from_mut(0));
        self.add_to(device, OfRows::Logits, x.rows_from(0), (layer, out), num_rows);
    }

    fn add_to(
        &mut self,
        device: &Device,
        of: OfRows,
        x: Rows<'_>,
        (layer, out): (&LoraSlots, RowsMut<'_>),
        num_rows: usize,
    ) {
        let Self { of_tokens, of_logits, inner, on_gpu } = self;
        let (rows, first) = match of {
            OfRows::Tokens(first) => (&*of_tokens, first),
            OfRows::Logits => (&*of_logits, 0),
        };
        match device {
            Device::Cpu(cpu) => {
                for (slot, rows) in slots_of(rows, first..first + num_rows) {
                    let Some(delta) = layer.on_cpu.get(slot) else { continue };
                    let x = Rows { first: x.first + rows.start, ..x };
                    let out = RowsMut { tensor: &mut *out.tensor, first: out.first + rows.start };
                    delta.add((device, cpu), x, inner, out, rows.len());
                }
            }
            Device::Cuda(gpu) => {
                let Some(layer) = layer.on_gpu.as_ref().filter(|_| !of_tokens.is_empty()) else {
                    return;
                };
                let slots = on_gpu.as_ref().expect("reserved with the layers' slots");
                let slots = match of {
                    OfRows::Tokens(_) => &slots.of_tokens,
                    OfRows::Logits => &slots.of_logits,
                };
                let slots = slots.ptr().offset(first * size_of::<u32>());
                cuda::add(gpu, x, (layer, slots), (inner, out), num_rows);
            }
        }
    }
}

/// Rows that an op covers.
#[derive(Clone, Copy)]
enum OfRows {
    /// Those of the step, from this one on.
    Tokens(usize),
    /// All rows of logits.
    Logits,
}

/// The slots of some rows, each with those of them that it has, counted from the first of all.
fn slots_of(
    rows: &[SlotRows],
    within: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    rows.iter().filter_map(move |SlotRows { slot, rows }| {
        let (start, end) = (rows.start.max(within.start), rows.end.min(within.end));
        (start < end).then(|| (*slot, start - within.start..end - within.start))
    })
}

/// `num_rows` rows of out = those of x Wᵀ + b, and what adapters add. The first is row `first` of
/// the step.
///
/// # Panics
/// Widths do not fit the weight, or the rows are not in use.
pub fn adapted_linear_rows(
    device: &Device,
    x: Rows<'_>,
    layer: &AdaptedLinear,
    out: RowsMut<'_>,
    (loras, first, num_rows): (&mut StepLoras, usize, usize),
) {
    let RowsMut { tensor, first: first_out } = out;
    linear_rows(device, x, &layer.weight, tensor.rows_from_mut(first_out), num_rows);
    loras.add(device, x, &layer.loras, tensor.rows_from_mut(first_out), (first, num_rows));
}
