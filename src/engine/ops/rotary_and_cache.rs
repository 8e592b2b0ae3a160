//! rotary_and_cache: rotates the step's q and k, and writes its K and V into their slots of the
//! paged cache, after norms of heads if there are any. One op, since a GPU does it in one pass over
//! the rows. `rotate` is without the cache.

mod cuda;

use vllm_batch_device::kv_cache::KvData;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{CacheLayerMut, Cpu, Device, Tensor};

use vllm_batch_base::layers::QkvHeads;

use super::gemm::panel::PanelElement;
use super::reshape_and_cache::LayerSlots;
use super::rotary::{RotaryTable, rotate_heads};
use super::{NormWeight, Step, for_row_chunks, norm_heads};

/// `v_dim`: width of a V head.
fn check(heads: QkvHeads, qkv: &Tensor, v_dim: usize, table: Option<&RotaryTable>) {
    assert!(qkv.width() >= heads.q_width() + heads.kv_width() + heads.num_kv_heads * v_dim);
    assert!(table.is_none_or(|table| table.rotary_dim() <= heads.head_dim));
}

/// Transform of a token's heads before attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadTransform<'a> {
    /// Norms of each q head, k head and v head; `None`: not normalized.
    pub norms: [Option<&'a NormWeight>; 3],
    /// Rotation of q and k after that; `None`: no rotation.
    pub rotary: Option<&'a RotaryTable>,
}

impl HeadTransform<'_> {
    /// Nothing happens to them.
    pub fn is_none(&self) -> bool {
        self.rotary.is_none() && self.norms.iter().all(Option::is_none)
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
    qkv: (&mut Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    layer: CacheLayerMut<'_>,
) {
    let rotation = HeadTransform { rotary: table, ..HeadTransform::default() };
    norm_rotary_and_cache(device, qkv, rotation, step, layer);
}

/// As [`rotary_and_cache`], with heads normalized before.
///
/// # Panics
/// As there, or a norm is neither for one head nor for all.
pub fn norm_rotary_and_cache(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    transform: HeadTransform<'_>,
    step: Step<'_>,
    layer: CacheLayerMut<'_>,
) {
    let CacheLayerMut { cache, index } = layer;
    let shape = cache.shape.layer(index);
    let table = transform.rotary;
    check(heads, qkv, shape.v_dim, table);
    assert!(heads.num_kv_heads <= shape.num_kv_heads && heads.head_dim == shape.head_dim);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(_) => {
            return cuda::run(device, (qkv, heads), transform, step, Some(cache.layer(index)));
        }
    };
    norm_all_heads(device, (qkv, heads), transform.norms);
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
/// that normalize q and k after the rotation, and texts on the CPU.
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
    let rotation = HeadTransform { rotary: Some(table), ..HeadTransform::default() };
    norm_and_rotate(device, (qkv, heads), rotation, step);
}

/// As [`norm_rotary_and_cache`], without a cache: for layers that have no K and V of their own.
///
/// # Panics
/// As there.
pub fn norm_and_rotate(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    transform: HeadTransform<'_>,
    step: Step<'_>,
) {
    check(heads, qkv, heads.head_dim, transform.rotary);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(_) => return cuda::run(device, (qkv, heads), transform, step, None),
    };
    norm_all_heads(device, (qkv, heads), transform.norms);
    let Some(table) = transform.rotary else { return };
    let (num_rows, width) = (qkv.num_rows(), qkv.width());
    assert_eq!(step.batch.positions.len(), num_rows);
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    let rotated = (num_heads + num_kv_heads) * head_dim;
    let work = || Work::elementwise(num_rows * rotated, 8);
    let _timed = cpu.op_timer.timed(Op::new("rotate"), work);
    let shared = SharedMut::new(qkv.values_mut());
    for_row_chunks(&cpu.pool, num_rows, rotated, &|start, end| {
        let mut room = Vec::new();
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width, rotated) };
            let angles = table.of_token(step.batch, row, &mut room);
            dispatch(cpu.isa, Rotate { values, head_dim, angles });
        }
    });
}

/// The norms of q, k and v, a pass each.
fn norm_all_heads(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    norms: [Option<&NormWeight>; 3],
) {
    for (norm, heads) in norms.into_iter().zip([heads.q(), heads.k(), heads.v()]) {
        if let Some(norm) = norm {
            norm_heads(device, qkv, heads, norm);
        }
    }
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
        let slot_mapping = step.slot_mapping().host;
        assert_eq!(slot_mapping.len(), num_rows);
        assert!(table.is_none() || step.batch.positions.len() == num_rows);
        let shared = SharedMut::new(qkv.values_mut());
        for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
            let mut room = Vec::new();
            for (row, &slot) in (start..end).zip(&slot_mapping[start..end]) {
                // SAFETY: each row belongs to one item.
                let values = unsafe { shared.slice(row * width, width) };
                let angles = table.map(|table| table.of_token(step.batch, row, &mut room));
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
        unsafe { slots.write::<V>(slot, &qk[num_heads * head_dim..], v) };
    }
}

#[cfg(test)]
mod tests;
