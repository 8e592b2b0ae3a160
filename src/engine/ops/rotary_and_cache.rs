//! rotary_and_cache: rotates the step's q and k, and writes its K and V into their slots of the
//! paged cache. One op, since a GPU does it in one pass over the rows. `rotate` is its first half.

use crate::engine::device::cuda::{Args, DevicePtr};
use crate::engine::device::kv_cache::KvData;
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::device::{CacheLayer, CacheLayerMut, Cpu, Device, Gpu, Tensor};

use super::gemm::panel::PanelElement;
use super::reshape_and_cache::LayerSlots;
use super::rotary::{RotaryTable, rotate_heads};
use super::{Heads, Step, for_row_chunks};

/// Threads of a row's block.
const BLOCK: u32 = 128;

/// The query, key and value heads of a row of `qkv`, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvHeads {
    /// Query heads.
    pub num_heads: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl QkvHeads {
    /// Values of all query heads.
    pub fn q_width(self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Values of all K heads, or of all V heads.
    pub fn kv_width(self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Values of q, k and v.
    pub fn qkv_width(self) -> usize {
        self.q_width() + 2 * self.kv_width()
    }

    /// Query heads.
    pub fn q(&self) -> Heads {
        self.heads(0, self.num_heads)
    }

    /// Key heads.
    pub fn k(&self) -> Heads {
        self.heads(self.num_heads, self.num_kv_heads)
    }

    /// Value heads, as wide as the others.
    pub fn v(&self) -> Heads {
        self.heads(self.num_heads + self.num_kv_heads, self.num_kv_heads)
    }

    /// `v_dim`: width of a V head.
    fn check(&self, qkv: &Tensor, v_dim: usize, table: Option<&RotaryTable>) {
        assert!(qkv.width() >= self.q_width() + self.kv_width() + self.num_kv_heads * v_dim);
        assert!(table.is_none_or(|table| table.rotary_dim() <= self.head_dim));
    }

    fn heads(&self, first: usize, num_heads: usize) -> Heads {
        Heads { start: first * self.head_dim, num_heads, head_dim: self.head_dim }
    }
}

/// qkv (num_tokens, (num_heads + num_kv_heads) * head_dim + num_kv_heads * v_dim), with the cache's
/// v_dim, and columns of others behind them: q and k are rotated in place (None: they are not),
/// then k and v go to the step's slots of layer `layer`, to the first heads there if the cache has
/// room for more. Slots of a step are distinct: the block pool gives a block to be written to one
/// sequence only.
///
/// # Panics
/// Shapes differ, the cache has fewer heads, or more of a head is to be rotated than there is.
pub fn rotary_and_cache(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    layer: CacheLayerMut<'_>,
) {
    let CacheLayerMut { cache, index } = layer;
    let shape = cache.shape.layer(index);
    heads.check(qkv, shape.v_dim, table);
    assert!(heads.num_kv_heads <= shape.num_kv_heads && heads.head_dim == shape.head_dim);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => {
            return on_gpu(gpu, (qkv, heads), table, step, Some(cache.layer(index)));
        }
    };
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let work = || {
        let num_rotated = table.map_or(0, |_| num_heads + num_kv_heads);
        let written = num_kv_heads * (head_dim + shape.v_dim) * (4 + cache.element_bytes());
        Work::elementwise(qkv.num_rows(), 8 * num_rotated * head_dim + written)
    };
    let _timed = cpu.op_timer.timed(Op::new("rotary_and_cache"), work);
    let task = Task { cpu, heads, table, step };
    let ranges = cache.layer_ranges(index);
    match &mut cache.data {
        KvData::Float32 { k, v } => task.run(qkv, LayerSlots::new((k, v), ranges, shape)),
        KvData::BFloat16 { k, v } => task.run(qkv, LayerSlots::new((k, v), ranges, shape)),
        KvData::Float16 { k, v } => task.run(qkv, LayerSlots::new((k, v), ranges, shape)),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}

/// Rotates q and k of qkv in place, as [`rotary_and_cache`] does, and writes no cache: for models
/// that normalize q and k after the rotation, and layers that have no K and V of their own.
///
/// # Panics
/// Shapes differ, or more of a head is to be rotated than there is.
pub fn rotate(
    device: &Device,
    qkv: &mut Tensor,
    heads: QkvHeads,
    table: &RotaryTable,
    step: Step<'_>,
) {
    heads.check(qkv, heads.head_dim, Some(table));
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (qkv, heads), Some(table), step, None),
    };
    let (num_rows, width, positions) = (qkv.num_rows(), qkv.width(), step.positions().host);
    assert_eq!(positions.len(), num_rows);
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let rotated = (num_heads + num_kv_heads) * head_dim;
    let work = || Work::elementwise(num_rows * rotated, 8);
    let _timed = cpu.op_timer.timed(Op::new("rotate"), work);
    let shared = SharedMut::new(qkv.values_mut());
    for_row_chunks(&cpu.pool, num_rows, rotated, &|start, end| {
        for (row, &position) in (start..end).zip(&positions[start..end]) {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width, rotated) };
            dispatch(cpu.isa, Rotate { values, head_dim, angles: table.row(position) });
        }
    });
}

/// q and k of one token.
struct Rotate<'a> {
    values: &'a mut [f32],
    head_dim: usize,
    angles: &'a [(f32, f32)],
}

impl Kernel for Rotate<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        rotate_heads(self.values, self.head_dim, self.angles);
    }
}

struct Task<'a> {
    cpu: &'a Cpu,
    heads: QkvHeads,
    table: Option<&'a RotaryTable>,
    step: Step<'a>,
}

impl Task<'_> {
    fn run<E: PanelElement>(&self, qkv: &mut Tensor, slots: LayerSlots<E>) {
        let Self { cpu, heads, table, step } = *self;
        let (num_rows, width) = (qkv.num_rows(), qkv.width());
        let (positions, slot_mapping) = (step.positions().host, step.slot_mapping().host);
        assert_eq!(slot_mapping.len(), num_rows);
        assert!(table.is_none() || positions.len() == num_rows);
        let shared = SharedMut::new(qkv.values_mut());
        for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
            for row in start..end {
                // SAFETY: each row belongs to one item.
                let values = unsafe { shared.slice(row * width, width) };
                let angles = table.map(|table| table.row(positions[row]));
                let slot = slot_mapping[row];
                dispatch(cpu.isa, Row { values, heads, angles, slots, slot });
            }
        });
    }
}

/// One token.
struct Row<'a, E> {
    /// q, k and v.
    values: &'a mut [f32],
    heads: QkvHeads,
    angles: Option<&'a [(f32, f32)]>,
    slots: LayerSlots<E>,
    slot: u32,
}

impl<E: PanelElement> Kernel for Row<'_, E> {
    /// # Safety
    /// As `Kernel::run`; nobody else touches the slot: slots of a step are distinct.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { values, heads, angles, slots, slot } = self;
        let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
        let (qk, v) = values.split_at_mut((num_heads + num_kv_heads) * head_dim);
        if let Some(angles) = angles {
            rotate_heads(qk, head_dim, angles);
        }
        // SAFETY: the caller's promise.
        unsafe { slots.write(slot, &qk[num_heads * head_dim..], v) };
    }
}

fn on_gpu(
    gpu: &Gpu,
    (qkv, heads): (&Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    layer: Option<CacheLayer<'_>>,
) {
    let nowhere = (DevicePtr::NULL, DevicePtr::NULL);
    let (k, v) = layer.map_or(nowhere, CacheLayer::ptrs);
    let shape = layer.map(CacheLayer::shape);
    let (block_size, cache_heads) =
        shape.map_or((1, 0), |shape| (shape.block_size, shape.num_kv_heads));
    assert!(heads.head_dim.is_multiple_of(2));
    let rotary_dim = table.map_or(0, RotaryTable::rotary_dim);
    let mut args = Args::new();
    args.tensor(qkv)
        .ptr(step.positions().device_ptr)
        .ptr(table.map_or(DevicePtr::NULL, RotaryTable::device_ptr))
        .ptr(step.slot_mapping().device_ptr)
        .ptr(k)
        .ptr(v)
        .dims([qkv.width(), heads.num_heads, heads.num_kv_heads, heads.head_dim])
        .dims([rotary_dim, block_size, cache_heads]);
    let grid = [qkv.num_rows() as u32, 1];
    gpu.launch(("rotary_and_cache", "rotary_and_cache"), grid, (BLOCK, 0), &mut args);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::Batch;
    use crate::engine::config::DType;
    use crate::engine::device::KvCache;
    use crate::engine::device::kv_cache::{KvCacheShape, KvHeads, StateShape};
    use crate::engine::device::simd::Isa;

    /// q and k are rotated and v is not, and the cache holds what k and v then are.
    #[test]
    fn only_q_and_k_are_rotated_and_k_and_v_are_where_their_slots_are() {
        let heads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 6 };
        let mut table = RotaryTable::new(vec![1.0, 0.25], 1.0);
        table.extend_to(1000);
        let width = 8 * 6;
        let values: Vec<f32> = (0..3 * width).map(|i| (i as f32 * 0.37).sin()).collect();
        let batch =
            Batch { positions: vec![0, 777, 5], slot_mapping: vec![17, 3, 40], ..Batch::default() };
        for isa in Isa::all_available() {
            let device = Device::cpu_with_isa(2, isa);
            let shape = KvCacheShape {
                // The first layer is another.
                layers: [(2, 10), (3, 6)]
                    .map(|(num, head_dim)| KvHeads { num, head_dim, v_dim: head_dim })
                    .into(),
                num_blocks: 3,
                block_size: 16,
                states: StateShape::default(),
                panel_width: device.kv_panel_width(),
            };
            let mut cache = KvCache::new(shape, DType::Float32);
            let [of_k, of_v] = cache.layer_ranges(1);
            let shape = cache.shape.layer(1);
            let mut qkv = Tensor::from_vec(values.clone(), width);
            let step = Step::on_host(&batch);
            rotary_and_cache(&device, (&mut qkv, heads), Some(&table), step, cache.layer_mut(1));
            let mut rotated = Tensor::from_vec(values.clone(), width);
            rotate(&device, &mut rotated, heads, &table, step);
            assert_eq!(rotated.values(), qkv.values(), "{isa:?}: the rotation alone");
            let KvData::Float32 { k, v } = &cache.data else { panic!("f32 was asked for") };
            for row in 0..3 {
                let mut expected = values[row * width..(row + 1) * width].to_vec();
                rotate_heads(&mut expected[..6 * 6], 6, table.row(batch.positions[row]));
                for (got, expected) in qkv.row(row).iter().zip(&expected) {
                    assert!((got - expected).abs() < 1e-6, "{isa:?} row {row}");
                }
                assert_eq!(qkv.row(row)[36..], values[row * width + 36..(row + 1) * width]);
                let slot = batch.slot_mapping[row] as usize;
                let (block, offset) = (slot / 16, slot % 16);
                for (head, d) in (0..2).flat_map(|head| (0..6).map(move |d| (head, d))) {
                    let index = block * 3 + head;
                    let in_k = d * shape.k_panel_width() + offset % shape.k_panel_width();
                    let panel = offset / shape.k_panel_width() * 6 * shape.k_panel_width();
                    let got = k[of_k.start + index * shape.k_len() + panel + in_k];
                    assert_eq!(got, qkv.row(row)[24 + head * 6 + d], "{isa:?} K of row {row}");
                    let in_v = index * shape.v_len() + offset * shape.panel_width + d;
                    let got = v[of_v.start + in_v];
                    assert_eq!(got, qkv.row(row)[36 + head * 6 + d], "{isa:?} V of row {row}");
                }
            }
            let num_written = k.iter().chain(v.iter()).filter(|value| **value != 0.0).count();
            assert_eq!(num_written, 3 * 2 * 6 * 2, "{isa:?}: and nothing else is written");
        }
    }
}
