//! encoder_attention: every token of a text attends to the tokens of its text: to all, to the first
//! ones, to those near it, or, in a decoder's layers, to those up to it. Texts lie one after the
//! other, without padding; K and V are those of the same pass.
//!
//! One order, which the text alone decides. On the CPU: scores are sums over head_dim upward; the
//! softmax sums lane i over the positions i, i + LANES, ...; P·V runs over positions upward. Tiles
//! have steps of 32 in place of both. On a GPU: the order of `paged_attention`, whose kernels run
//! it over a cache of the step.

use vllm_batch_device::simd::InstructionSet;
mod by_tiles;
mod cuda;
mod head;
mod softmax;
#[cfg(test)]
mod tests;

use std::ops::Range;

use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_device::cuda::DeviceBuffer;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::limits::Arithmetic;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::dispatch;
use vllm_batch_device::simd::tiles::TileUnit;
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, KvCache, Tensor, bytes_of};

use super::batch::Batch;
use super::shared_rows::SharedRows;
use super::{HeadTransform, Step, TextLimits, norm_and_rotate, norm_rotary_and_cache};
use by_tiles::TilePass;
use head::HeadPass;
use vllm_batch_base::layers::QkvHeads;

/// What attention looks like in one layer of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct EncoderAttentionShape<'a> {
    /// Heads; a row of `qkv` has q, k and v of them, one after the other.
    pub heads: QkvHeads,
    /// Factor of the scores.
    pub scale: f32,
    /// scores = cap * tanh(scores / cap).
    pub soft_cap: Option<f32>,
    /// A token attends to this many positions before it; None: to all.
    pub before: Option<usize>,
    /// And to this many after it; None: to all.
    pub after: Option<usize>,
    /// Added to the scores.
    pub bias: Option<&'a RelativeBias>,
}

impl EncoderAttentionShape<'_> {
    /// The first columns of the K and the V that a query head has in a row of `qkv`.
    fn key_and_value_of(&self, head: usize) -> (usize, usize) {
        let QkvHeads { num_heads, num_kv_heads, head_dim } = self.heads;
        let key = (num_heads + head / (num_heads / num_kv_heads)) * head_dim;
        (key, key + num_kv_heads * head_dim)
    }

    /// What the query at a position attends to, in a row that is long enough.
    fn seen(&self, query: usize) -> Range<usize> {
        let start = self.before.map_or(0, |before| query.saturating_sub(before));
        start..self.after.map_or(usize::MAX, |after| query.saturating_add(after).saturating_add(1))
    }
}

/// What is added to scores, by the distance of key and query.
#[derive(Debug)]
pub struct RelativeBias {
    /// (heads, distances and `PADDING`)
    values: Vec<f32>,
    max_len: usize,
    /// The same on a GPU.
    on_gpu: Option<DeviceBuffer>,
}

/// Values behind those of a head: scores are read by whole vectors, and by tiles on a GPU.
const PADDING: usize = 32;

impl RelativeBias {
    /// A bias for rows of up to `max_len` tokens: `value(head, j - i)` for the query at i and the
    /// key at j.
    pub fn new(num_heads: usize, max_len: usize, value: impl Fn(usize, isize) -> f32) -> Self {
        let max = max_len as isize;
        let of_head = |head| {
            let values = (1 - max..max).map(move |distance| (head, distance));
            values.map(Some).chain(std::iter::repeat_n(None, PADDING))
        };
        let places = (0..num_heads).flat_map(of_head);
        let values =
            places.map(|place| place.map_or(0.0, |(head, distance)| value(head, distance)));
        Self { values: values.collect(), max_len, on_gpu: None }
    }

    /// The same, where attention on the device reads it.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn on_device(mut self, device: &Device) -> Result<Self, EngineError> {
        if let Device::Cuda(gpu) = device {
            let buffer = gpu.alloc(size_of_val(&self.values[..]))?;
            gpu.upload(&buffer, bytes_of(&self.values));
            self.on_gpu = Some(buffer);
        }
        Ok(self)
    }

    /// Values of a head.
    fn stride(&self) -> usize {
        2 * self.max_len - 1 + PADDING
    }

    /// Which of them is of the distance 0.
    fn origin(&self) -> usize {
        self.max_len - 1
    }

    /// Of the query at a position and the keys from position 0 on; `len` of them, and padding.
    fn of_query(&self, head: usize, position: usize, len: usize) -> &[f32] {
        let start = head * self.stride() + self.origin() - position;
        &self.values[start..start + len + PADDING]
    }
}

/// Makes a buffer as long as is needed; it never gets shorter.
fn grow<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}

/// What attention works in between steps.
#[derive(Debug, Default)]
pub struct EncoderScratch {
    on_cpu: CpuScratch,
    /// Of a GPU: K and V of the layer that is computed. One serves all layers.
    cache: Option<KvCache>,
}

#[derive(Debug, Default)]
struct CpuScratch {
    /// What multiplies q, K and V, rounded to bf16; None: f32.
    unit: Option<TileUnit>,
    /// One per thread, of what is used.
    workspaces: Vec<(head::Workspace, by_tiles::Workspace)>,
}

impl CpuScratch {
    fn new(cpu: &Cpu, dtype: DType) -> Self {
        Self { unit: cpu.isa.bf16_products().tiles_of(dtype), ..Self::default() }
    }

    /// Room for texts of up to `len` tokens.
    fn reserve(&mut self, num_threads: usize, len: usize, head_dim: usize) {
        self.workspaces.resize_with(num_threads, Default::default);
        for (floats, tiles) in &mut self.workspaces {
            match self.unit {
                None => floats.reserve(len, head_dim),
                Some(_) => tiles.reserve(len, head_dim),
            }
        }
    }
}

impl EncoderScratch {
    /// For steps of texts of a model of this type, and layers with heads in these numbers at most.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(
        (device, dtype): (&Device, DType),
        heads: QkvHeads,
        limits: TextLimits,
    ) -> Result<Self, EngineError> {
        let gpu = match device {
            Device::Cpu(cpu) => {
                return Ok(Self { on_cpu: CpuScratch::new(cpu, dtype), cache: None });
            }
            Device::Cuda(gpu) => gpu,
        };
        let (num, head_dim) = (heads.num_kv_heads, heads.head_dim);
        let shape = KvCacheShape {
            layers: vec![KvHeads { num, head_dim, v_dim: head_dim }],
            num_blocks: limits.num_blocks(),
            block_size: TextLimits::BLOCK_SIZE,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let cache = KvCache::on_device(device, shape, gpu.dtype())?;
        Ok(Self { cache: Some(cache), ..Self::default() })
    }
}

/// qkv (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim): heads are normalized and rotated in
/// place. K and V then are where [`encoder_attention`] reads them, which a GPU does in the same
/// pass.
///
/// # Panics
/// Shapes differ, or more of a head is to be rotated than there is.
pub fn rotate_texts(
    device: &Device,
    qkv: (&mut Tensor, QkvHeads),
    transform: HeadTransform<'_>,
    step: Step<'_>,
    scratch: &mut EncoderScratch,
) {
    match &mut scratch.cache {
        Some(cache) => norm_rotary_and_cache(device, qkv, transform, step, cache.layer_mut(0)),
        None => norm_and_rotate(device, qkv, transform, step),
    }
}

/// out (num_tokens, num_heads * head_dim) = softmax(cap(q Kᵀ * scale) + bias) V within each text of
/// the step; [`rotate_texts`] came before.
///
/// # Panics
/// Widths and rows do not fit, or a GPU has no K and V of the texts.
pub fn encoder_attention(
    device: &Device,
    (qkv, step): (&Tensor, Step<'_>),
    shape: EncoderAttentionShape<'_>,
    scratch: &mut EncoderScratch,
    out: &mut Tensor,
) {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = shape.heads;
    assert_eq!(qkv.width(), (num_heads + 2 * num_kv_heads) * head_dim);
    assert!(num_heads.is_multiple_of(num_kv_heads) && out.width() == num_heads * head_dim);
    out.set_num_rows(qkv.num_rows());
    match device {
        Device::Cpu(cpu) => {
            on_cpu(cpu, (qkv, step.batch), shape, &mut scratch.on_cpu, out);
        }
        Device::Cuda(gpu) => {
            let cache = scratch.cache.as_ref().expect("a GPU's scratch has a cache");
            cuda::encoder_attention(gpu, (qkv, step), cache, shape, out);
        }
    }
}

/// Row i is a text's tokens, which follow those of the text before it in `qkv`.
fn on_cpu(
    cpu: &Cpu,
    (qkv, batch): (&Tensor, &Batch),
    shape: EncoderAttentionShape<'_>,
    scratch: &mut CpuScratch,
    out: &mut Tensor,
) {
    let QkvHeads { num_heads, head_dim, .. } = shape.heads;
    let row_starts = &batch.query_start_loc[..];
    assert_eq!(row_starts.last().map(|end| *end as usize), Some(qkv.num_rows()));
    let lens = || row_starts.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
    let work = || {
        let num_scores: usize = lens().map(|len| len * len).sum();
        let flops = 4.0 * (num_scores * num_heads * head_dim) as f64;
        Work { flops, ..Work::elementwise(qkv.num_rows() * (qkv.width() + out.width()), 4) }
    };
    let arithmetic = match scratch.unit {
        Some(_) => Arithmetic::of_bf16(cpu.isa),
        None => Arithmetic::Float32,
    };
    let op = Op { arithmetic, ..Op::new("encoder_attention") };
    let _timed = cpu.op_timer.timed(op, work);
    scratch.reserve(cpu.pool.num_threads(), lens().max().unwrap_or(0), head_dim);
    let CpuScratch { unit, workspaces } = scratch;
    let (unit, workspaces) = (*unit, SharedMut::new(workspaces));
    let out = SharedRows::of(out);
    let num_rows = row_starts.len() - 1;
    cpu.pool.run(num_rows * num_heads, &|thread, item| {
        // SAFETY: no two items with one thread index overlap.
        let (floats, tiles) = unsafe { &mut workspaces.slice(thread, 1)[0] };
        let (row, head) = (item / num_heads, item % num_heads);
        let first = row_starts[row] as usize;
        let num_queries = row_starts[row + 1] as usize - first;
        let len = batch.seen_len(row) as usize;
        match unit {
            Some(unit) => {
                let isa = cpu.isa;
                TilePass { qkv, shape, head, first, num_queries, len, isa, unit, out }.run(tiles);
            }
            None => {
                let workspace = floats;
                let pass = HeadPass { qkv, shape, head, first, num_queries, len, workspace, out };
                dispatch(cpu.isa, pass);
            }
        }
    });
}
