//! Attention on a GPU: kernels/paged_attention.cu and paged_attention_decode.cu, wide_attention.cu,
//! or paged_attention_f32.cu for exactness.

mod launch;
mod parts;
mod wide;

pub use launch::Launch;
pub(in crate::engine::ops) use parts::PartLaunch;

use crate::engine::config::DType;
use crate::engine::device::cuda::{Args, DevicePtr};
use crate::engine::device::gpu::{AttentionDefines, DecodeLayer, Kernel};
use crate::engine::device::kv_cache::KvLayerShape;
use crate::engine::device::{CacheLayer, Gpu, MAX_NARROW_HEAD_DIM, Tensor};
use crate::engine::ops::step::WorkList;
use crate::engine::ops::{Step, WeightValues};

use super::AttentionShape;
use parts::PartsTask;

/// `struct AttentionParams` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct AttentionParams {
    num_heads: u32,
    num_kv_heads: u32,
    cache_kv_heads: u32,
    block_size: u32,
    max_blocks_per_seq: u32,
    qkv_stride: u32,
    window: u32,
    after: u32,
    bias_stride: u32,
    bias_origin: u32,
    scale: f32,
    soft_cap: f32,
    /// Null without them.
    biases: DevicePtr,
    /// Null without them.
    sinks: DevicePtr,
}

impl AttentionParams {
    /// What kernels of decode are compiled for.
    fn decode_layer(&self) -> DecodeLayer {
        DecodeLayer {
            num_kv_heads: self.num_kv_heads,
            group_size: self.num_heads / self.num_kv_heads,
            block_size: self.block_size,
            window: self.window,
            has_soft_cap: self.soft_cap > 0.0,
        }
    }
}

/// What the kernels compute with K and V of a cache.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::ops) struct CacheAttention {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// Positions that a token sees up to itself, itself included; None: all.
    pub window: Option<usize>,
    pub biases: Biases,
    /// (num_heads) scores of positions without values.
    pub sinks: Option<DevicePtr>,
    /// Of whole texts: how many positions a token sees after itself, at most. None: the sequences
    /// are no texts, and a token sees none.
    pub after: Option<usize>,
}

/// What is added to scores.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::ops) enum Biases {
    None,
    /// Slopes (num_heads) of the distance, where sequences are no texts.
    Alibi(DevicePtr),
    /// (num_heads, stride) numbers by distance, of texts; `origin` is that of distance 0.
    Table {
        values: DevicePtr,
        stride: usize,
        origin: usize,
    },
}

/// Rows of a tensor core's tile.
const ROWS: usize = 16;
/// Positions of a tile of K or V.
const TILE: usize = 32;
/// As far as any text goes: what is added to a position stays in 32 bits.
const FURTHEST: usize = 1 << 30;

/// Query tokens of one unit of prefill.
pub(in crate::engine::ops) fn prefill_tokens(
    gpu: &Gpu,
    head_dim: usize,
    num_q_per_kv: usize,
) -> usize {
    let rows = match head_dim <= MAX_NARROW_HEAD_DIM {
        true => Launch::of(gpu, head_dim).prefill_rows(),
        false => wide::MAX_ROWS,
    };
    (rows / num_q_per_kv).max(1)
}

pub(super) fn paged_attention(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    layer: CacheLayer<'_>,
    shape: AttentionShape<'_>,
    out: &Tensor,
) {
    let slopes = shape.alibi.map(WeightValues::device_ptr);
    let attention = CacheAttention {
        num_heads: shape.num_heads,
        num_kv_heads: shape.num_kv_heads,
        scale: shape.scale,
        soft_cap: shape.soft_cap,
        window: shape.sliding_window,
        biases: slopes.map_or(Biases::None, Biases::Alibi),
        sinks: shape.sinks.map(WeightValues::device_ptr),
        after: None,
    };
    attend(gpu, (qkv, step), layer, attention, out);
}

impl CacheAttention {
    fn params(&self, qkv: &Tensor, kv: KvLayerShape) -> AttentionParams {
        let (biases, stride, origin) = match self.biases {
            Biases::None => (DevicePtr::NULL, 0, 0),
            Biases::Alibi(slopes) => (slopes, 0, 0),
            Biases::Table { values, stride, origin } => (values, stride, origin),
        };
        AttentionParams {
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            cache_kv_heads: kv.num_kv_heads as u32,
            block_size: kv.block_size as u32,
            // `AttentionWork::seq` is an entry of the tables, not a row.
            max_blocks_per_seq: 1,
            qkv_stride: qkv.width() as u32,
            window: self.window.map_or(0, |window| window as u32),
            after: self.after.unwrap_or(0).min(FURTHEST) as u32,
            bias_stride: stride as u32,
            bias_origin: origin as u32,
            scale: self.scale,
            soft_cap: self.soft_cap.unwrap_or(0.0),
            biases,
            sinks: self.sinks.unwrap_or(DevicePtr::NULL),
        }
    }

    /// `v_dim`: width of a head's output.
    fn defines(&self, kv: KvLayerShape, v_dim: usize) -> AttentionDefines {
        AttentionDefines {
            head_dim: kv.head_dim as u32,
            latent_dim: if kv.v_dim == 0 { v_dim as u32 } else { 0 },
            is_of_texts: self.after.is_some(),
            has_biases: !matches!(self.biases, Biases::None),
            has_sinks: self.sinks.is_some(),
            launch: None,
        }
    }
}

/// Queues attention of the step's tokens to K and V in a layer of a cache: to K and the last values
/// of K, as many as a head of `out` has, where the layer has no V.
pub(in crate::engine::ops) fn attend(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    layer: CacheLayer<'_>,
    attention: CacheAttention,
    out: &Tensor,
) {
    let kv = layer.shape();
    let v_dim = out.width() / attention.num_heads;
    assert!(kv.v_dim == 0 || kv.v_dim == v_dim);
    let (params, defines) = (attention.params(qkv, kv), attention.defines(kv, v_dim));
    let inputs = step.gpu_inputs();
    let (k, v) = match (layer.ptrs(), kv.v_dim) {
        ((k, _), 0) => (k, k.offset((kv.head_dim - v_dim) * layer.cache.element_bytes())),
        (both, _) => both,
    };
    let is_wide = kv.v_dim == 0 || kv.head_dim > MAX_NARROW_HEAD_DIM;
    let launch_part = |entry: &'static str, work: (&WorkList, usize), grid: [u32; 2], block| {
        let (items, num_items) = work.0.ptrs(work.1);
        let mut args = Args::new();
        args.tensor(qkv).ptr(k).ptr(v).ptr(items).ptr(num_items);
        args.ptr(inputs.block_tables.ptr()).tensor(out);
        if entry == parts::DECODE {
            args.ptr(DevicePtr::NULL);
        }
        args.value(params);
        let kernel = match gpu.dtype() {
            DType::Float32 => Kernel::of_attention("paged_attention_f32", entry, defines),
            DType::BFloat16 | DType::Float16 if is_wide => {
                Kernel::of_attention("wide_attention", entry, defines)
            }
            DType::BFloat16 | DType::Float16 => {
                Launch::of(gpu, kv.head_dim).kernel(entry, defines, &params)
            }
        };
        gpu.launch(kernel, grid, block, &mut args);
    };
    let launch = |entry, work, grid, block| launch_part(entry, (work, 0), grid, block);
    // One block per unit, or `parts` of them.
    let launch_units = |entry, work: &WorkList, parts: u32, block| {
        for (part, items) in work.launches.iter().enumerate() {
            let units = (items.len() * attention.num_kv_heads) as u32;
            launch_part(entry, (work, part), [units, parts], block);
        }
    };
    let properties = gpu.properties();
    // The padded rows decide the grid, so that a recorded launch serves every step of its size.
    let decode_units = match inputs.decode.host.is_empty() {
        true => 0,
        false => (step.num_rows() * attention.num_kv_heads) as u32,
    };
    if gpu.dtype() == DType::Float32 {
        launch("paged_attention_f32", &inputs.decode, [decode_units, 1], (128, 0));
        launch_units("paged_attention_f32", &inputs.prefill, 1, (128, 0));
        return;
    }
    if is_wide {
        assert!(!(defines.is_of_texts || defines.has_biases || defines.has_sinks), "{defines:?}");
        let block = |num_tokens: usize| {
            let num_rows = num_tokens * (attention.num_heads / attention.num_kv_heads);
            let block = wide::Block::new(num_rows, kv.head_dim, properties);
            (block.entry, num_rows.div_ceil(block.num_rows) as u32, (block.threads, block.smem))
        };
        let (entry, parts, threads) = block(1);
        launch(entry, &inputs.decode, [decode_units, parts], threads);
        let (entry, parts, threads) = block(inputs.tokens_per_item());
        launch_units(entry, &inputs.prefill, parts, threads);
        return;
    }
    let sizes = Launch::of(gpu, kv.head_dim);
    let may_have_parts = attention.window.is_none() && !defines.has_biases;
    if let Some(parts) = inputs.parts.as_ref().filter(|_| may_have_parts && step.has_parts().0) {
        let task = PartsTask { gpu, sizes, defines, params, cache: (k, v), parts };
        task.queue((qkv, step), inputs.block_tables.ptr(), out);
    } else {
        // As many blocks as are resident, whatever the number of units.
        let grid = decode_units.min(properties.num_sms * sizes.decode.blocks);
        launch(parts::DECODE, &inputs.decode, [grid, 1], sizes.decode_block());
    }
    launch_units("paged_attention_prefill", &inputs.prefill, 1, sizes.prefill_block());
}
