//! reshape_and_cache: a token's K and V into its slot of the paged cache.

use std::ops::Range;

use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::simd::Vector;
use vllm_batch_device::tensor::SharedMut;

use super::gemm::panel::PanelElement;

/// One layer of a cache, to be written.
#[derive(Clone, Copy)]
pub(super) struct LayerSlots<E> {
    pub k: SharedMut<E>,
    pub v: SharedMut<E>,
    pub shape: KvLayerShape,
}

impl<E> LayerSlots<E> {
    /// The layer that has these ranges of all K and all V.
    pub(crate) fn new(
        (k, v): (&mut [E], &mut [E]),
        [of_k, of_v]: [Range<usize>; 2],
        shape: KvLayerShape,
    ) -> Self {
        Self { k: SharedMut::new(&mut k[of_k]), v: SharedMut::new(&mut v[of_v]), shape }
    }
}

impl<E: PanelElement> LayerSlots<E> {
    /// Writes the K heads and the V heads of a token, head_dim and v_dim values each; no more heads
    /// than the cache has.
    ///
    /// # Safety
    /// Nobody else touches this slot meanwhile; the CPU has the instructions of `V`.
    #[inline(always)]
    pub(crate) unsafe fn write<V: Vector>(&self, slot: u32, k: &[f32], v: &[f32]) {
        let Self { shape, .. } = *self;
        let KvLayerShape { block_size, num_kv_heads, head_dim, .. } = shape;
        let (k_width, v_width) = (shape.k_panel_width(), shape.panel_width);
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        let first = block * num_kv_heads;
        let k_panel_len = head_dim.next_multiple_of(2) * k_width;
        let (k_panel, k_lane) = (offset / k_width, offset % k_width);
        let v_panel_len = block_size * v_width;
        let of_head = |head: usize| &v[head * shape.v_dim..(head + 1) * shape.v_dim];
        for (head, k) in k.chunks_exact(head_dim).take(num_kv_heads).enumerate() {
            let (index, v) = (first + head, of_head(head));
            let panel = self.k.ptr(index * shape.k_len() + k_panel * k_panel_len, k_panel_len);
            // SAFETY: k_lane and all of head_dim are within the panel, and the slot's alone.
            unsafe { E::put_inputs(k, panel, (k_lane, k_width)) };
            for (panel, values) in v.chunks(v_width).enumerate() {
                let start = index * shape.v_len() + panel * v_panel_len;
                let panel = self.v.ptr(start, v_panel_len);
                // SAFETY: the offset and the lanes are within the panel, and the slot's alone.
                unsafe { E::put_lanes::<V>(values, panel, (offset, v_width)) };
            }
        }
    }
}
