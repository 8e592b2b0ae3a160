//! Parts of adapters in embedding tables: out += s B (column of A).

use std::ops::Range;

use super::super::linear::{AddedPart, add_products};
use super::{BySlot, LoraPart};
use vllm_batch_device::{Cpu, Device, Tensor};

/// An adapter's part of the rows of a table, on a device.
#[derive(Debug)]
pub struct TableDelta {
    /// (rows of the table, rank) in f32
    table: Vec<f32>,
    /// (width of the table, rank)
    parts: [AddedPart; 1],
}

impl TableDelta {
    /// Packs a part whose `a` is (rank, rows of the table).
    ///
    /// # Panics
    /// The device is a GPU, which has no kernel for such adapters.
    pub fn load(device: &Device, part: &LoraPart) -> Self {
        let Device::Cpu(cpu) = device else { panic!("an adapter of a table on a GPU") };
        let LoraPart { a, rank, .. } = part;
        let num_rows = a.len() / rank;
        let table = (0..num_rows).flat_map(|row| (0..*rank).map(move |r| a[r * num_rows + row]));
        Self { table: table.collect(), parts: [part.scaled_b(cpu, 0)] }
    }

    /// Rows of out += those of the tokens; `inner` is for columns of A.
    pub(super) fn add(
        &self,
        cpu: &Cpu,
        (ids, rows): (&[u32], Range<usize>),
        inner: &mut Tensor,
        out: &mut Tensor,
    ) {
        let rank = self.parts[0].weight.shape().1;
        inner.reshape(0, rank);
        inner.resize_rows(rows.len());
        for (index, &id) in ids[rows.clone()].iter().enumerate() {
            inner.row_mut(index).copy_from_slice(&self.table[id as usize * rank..][..rank]);
        }
        let out = out.rows_from_mut(rows.start);
        add_products(cpu, inner.rows_from(0), &self.parts, out, rows.len());
    }
}

/// Parts of adapters in one table, by slot.
#[derive(Debug, Default)]
pub struct TableSlots(BySlot<TableDelta>);

impl TableSlots {
    /// Puts what an adapter adds, if it adds anything here, in the place of another.
    pub fn set(&mut self, slot: usize, delta: Option<TableDelta>) {
        self.0.set(slot, delta);
    }

    pub(super) fn get(&self, slot: usize) -> Option<&TableDelta> {
        self.0.get(slot)
    }
}
