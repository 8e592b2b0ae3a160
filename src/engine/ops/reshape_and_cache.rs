//! reshape_and_cache: the step's K and V rows into their slots of the paged cache.

use crate::engine::device::kv_cache::{KvCacheShape, KvData};
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{Cpu, KvCache, Tensor};

use super::gemm::panel::PanelElement;
use super::{Heads, for_row_chunks};

/// Writes the K heads and V heads of every row of `qkv` to `slot_mapping` (num_tokens), in one
/// layer. Slots of a batch are distinct: the block pool gives a block to be written to one sequence
/// only.
pub(super) fn reshape_and_cache(
    cpu: &Cpu,
    qkv: &Tensor,
    (k_heads, v_heads): (Heads, Heads),
    slot_mapping: &[u32],
    layer: usize,
    cache: &mut KvCache,
) {
    assert_eq!(qkv.num_rows(), slot_mapping.len());
    let shape = cache.shape;
    let num_values = slot_mapping.len() * 2 * shape.num_kv_heads * shape.head_dim;
    let work = || Work::elementwise(num_values, 4 + cache.element_bytes());
    let _timed = cpu.op_timer.timed(Op::new("reshape_and_cache"), work);
    let task = Task { cpu, qkv, k_heads, v_heads, slot_mapping, layer, shape };
    match &mut cache.data {
        KvData::Float32 { k, v } => task.write(k, v),
        KvData::BFloat16 { k, v } => task.write(k, v),
        KvData::Float16 { k, v } => task.write(k, v),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}

struct Task<'a> {
    cpu: &'a Cpu,
    qkv: &'a Tensor,
    k_heads: Heads,
    v_heads: Heads,
    slot_mapping: &'a [u32],
    layer: usize,
    shape: KvCacheShape,
}

impl Task<'_> {
    fn write<E: PanelElement>(&self, k: &mut [E], v: &mut [E]) {
        let (k, v) = (SharedMut::new(k), SharedMut::new(v));
        let width = self.k_heads.num_heads * self.k_heads.head_dim * 2;
        for_row_chunks(&self.cpu.pool, self.qkv.num_rows(), width, &|start, end| {
            for row in start..end {
                for head in 0..self.shape.num_kv_heads {
                    self.write_head(row, head, k, v);
                }
            }
        });
    }

    fn write_head<E: PanelElement>(
        &self,
        row: usize,
        head: usize,
        k: SharedMut<E>,
        v: SharedMut<E>,
    ) {
        let shape = self.shape;
        let KvCacheShape { num_blocks, block_size, num_kv_heads, head_dim, .. } = shape;
        let slot = self.slot_mapping[row] as usize;
        let (block, offset) = (slot / block_size, slot % block_size);
        let index = (self.layer * num_blocks + block) * num_kv_heads + head;
        let from = |heads: Heads| {
            let start = heads.start + head * head_dim;
            &self.qkv.row(row)[start..start + head_dim]
        };
        let (k_width, v_width) = (shape.k_panel_width(), shape.panel_width);
        let panel_len = head_dim.next_multiple_of(2) * k_width;
        let start = index * shape.k_len() + offset / k_width * panel_len;
        let panel = k.ptr(start, panel_len);
        for (d, &value) in from(self.k_heads).iter().enumerate() {
            // SAFETY: within the panel; slots of a batch are distinct, so this element belongs to
            // this row alone.
            unsafe { *panel.add(E::index(d, offset % k_width, k_width)) = E::from_f32(value) };
        }
        let panel_len = block_size * v_width;
        for (panel, columns) in from(self.v_heads).chunks(v_width).enumerate() {
            let panel = v.ptr(index * shape.v_len() + panel * panel_len, panel_len);
            for (lane, &value) in columns.iter().enumerate() {
                // SAFETY: as above.
                unsafe { *panel.add(E::index(offset, lane, v_width)) = E::from_f32(value) };
            }
        }
    }
}
