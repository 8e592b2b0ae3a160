//! lora: out += s B (A x), for the rows of a step that are computed with an adapter.
//!
//! A is (rank, k) and B (n, rank). What a row gets is a function of the row and of its adapter:
//!
//! - A x is a sum over k upward, as of any linear layer of the model's dtype;
//! - s B (A x) goes on from the output that is there, over the rank upward, in f32, with s B
//!   rounded to f32 once.
//!
//! Rows without an adapter are not touched. A layer of several parts (q, k and v) has A of all of
//! them in one product, and B of each.

mod table;
#[cfg(test)]
mod tests;

pub use table::{TableDelta, TableSlots};

use std::ops::Range;

use super::Ids;
use super::linear::{
    AddedPart, LinearWeight, SourceMatrix, SourceRows, SourceValues, add_products, linear_rows,
};
use crate::engine::EngineError;
use crate::engine::config::DType;
use crate::engine::device::tensor::{Rows, RowsMut};
use crate::engine::device::{Cpu, Device, Tensor};

/// An adapter's matrices of some of the outputs of a layer.
#[derive(Clone, Debug)]
pub struct LoraPart {
    /// (rank, k), row-major
    pub a: Vec<f32>,
    /// (outputs, rank), row-major
    pub b: Vec<f32>,
    /// Rows of `a`, at least 1.
    pub rank: usize,
    /// What B A is multiplied by.
    pub scale: f32,
    /// The first of its outputs.
    pub first_output: usize,
}

/// What an adapter adds to a linear layer, on a device.
#[derive(Debug)]
pub struct LoraDelta {
    /// (ranks of all parts, k)
    a: LinearWeight,
    parts: Vec<AddedPart>,
}

impl LoraDelta {
    /// Packs the parts of a layer of `k` inputs, of which there is at least one.
    ///
    /// # Errors
    /// The device takes no adapters, or has no memory for this one.
    pub fn load(
        device: &Device,
        dtype: DType,
        k: usize,
        parts: &[LoraPart],
    ) -> Result<Self, EngineError> {
        let Device::Cpu(cpu) = device else { return Err(not_on_a_gpu()) };
        let all: Vec<f32> = parts.iter().flat_map(|part| &part.a).copied().collect();
        let inner = parts.iter().map(|part| part.rank).sum();
        let a = LinearWeight::pack(cpu, dtype, &matrix((inner, k), &all), None);
        let mut first_input = 0;
        let part = |LoraPart { b, rank, scale, first_output, .. }: &LoraPart| {
            let scaled: Vec<f32> = b.iter().map(|b| b * scale).collect();
            let rows = matrix((b.len() / rank, *rank), &scaled);
            let weight = LinearWeight::pack(cpu, DType::Float32, &rows, None);
            let part = AddedPart { weight, first_input, first_output: *first_output };
            first_input += rank;
            part
        };
        Ok(Self { a, parts: parts.iter().map(part).collect() })
    }

    /// Bytes of it on its device.
    pub fn num_bytes(&self) -> usize {
        let of_parts = self.parts.iter().map(|part| part.weight.num_bytes());
        self.a.num_bytes() + of_parts.sum::<usize>()
    }

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

/// Why a GPU takes none.
fn not_on_a_gpu() -> EngineError {
    EngineError::Config("--lora-modules: adapters are computed on the CPU only".to_owned())
}

/// What adapters add to one linear layer, each in the slot that it has in all layers.
#[derive(Debug, Default)]
pub struct LoraSlots(Vec<Option<LoraDelta>>);

impl LoraSlots {
    /// Puts what an adapter adds, if it adds anything here, in the place of another.
    pub fn set(&mut self, slot: usize, delta: Option<LoraDelta>) {
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = delta;
    }

    fn get(&self, slot: usize) -> Option<&LoraDelta> {
        self.0.get(slot)?.as_ref()
    }
}

/// A linear layer that adapters may add to.
#[derive(Debug)]
pub struct AdaptedLinear {
    /// The layer.
    pub weight: LinearWeight,
    /// What adapters add.
    pub loras: LoraSlots,
}

impl From<LinearWeight> for AdaptedLinear {
    fn from(weight: LinearWeight) -> Self {
        Self { weight, loras: LoraSlots::default() }
    }
}

impl AdaptedLinear {
    /// Whether an adapter adds to any of these rows of a step.
    pub fn is_adapted(&self, loras: &StepLoras, step_rows: Range<usize>) -> bool {
        let of_rows = slots_of(&loras.of_tokens, step_rows);
        of_rows.into_iter().any(|(slot, _)| self.loras.get(slot).is_some())
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
}

impl Default for StepLoras {
    fn default() -> Self {
        Self { of_tokens: Vec::new(), of_logits: Vec::new(), inner: Tensor::zeros(0, 1) }
    }
}

impl StepLoras {
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
        let rows = slots_of(&self.of_tokens, first..first + num_rows);
        add(device, rows, x, layer, (out, &mut self.inner));
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
        let rows = slots_of(&self.of_logits, 0..x.num_rows());
        add(device, rows, x.rows_from(0), layer, (logits.rows_from_mut(0), &mut self.inner));
    }
}

fn add(
    device: &Device,
    rows: impl Iterator<Item = (usize, Range<usize>)>,
    x: Rows<'_>,
    layer: &LoraSlots,
    (out, inner): (RowsMut<'_>, &mut Tensor),
) {
    for (slot, rows) in rows {
        let (Some(delta), Device::Cpu(cpu)) = (layer.get(slot), device) else { continue };
        let x = Rows { first: x.first + rows.start, ..x };
        let out = RowsMut { tensor: &mut *out.tensor, first: out.first + rows.start };
        delta.add((device, cpu), x, inner, out, rows.len());
    }
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
