//! Attention on a GPU: kernels/paged_attention.cu, wide_attention.cu, or paged_attention_f32.cu for
//! exactness.

mod parts;
mod wide;

pub(in crate::engine::ops) use parts::PartLaunch;

use crate::engine::config::{DType, KvCacheDType};
use crate::engine::device::cuda::{Args, DevicePtr};
use crate::engine::device::gpu::{AttentionDefines, Kernel};
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

/// Launch sizes of paged_attention.cu, which derives its own from the same numbers by the same
/// formulas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launch {
    decode_threads: u32,
    decode_smem: usize,
    decode_blocks_per_sm: u32,
    prefill_threads: u32,
    /// Rows, each a query token with a query head, of a unit of prefill.
    prefill_rows: usize,
    prefill_smem: usize,
    prefill_blocks_per_sm: u32,
}

/// Rows of a tensor core's tile.
const ROWS: usize = 16;
/// Positions of a tile of K or V.
const TILE: usize = 32;
/// As far as any text goes: what is added to a position stays in 32 bits.
const FURTHEST: usize = 1 << 30;

impl Launch {
    fn new(head_dim: usize, max_smem_bytes: usize, has_fp8_cache: bool) -> Self {
        let smem = max_smem_bytes >> 10 << 10;
        let state = 64 * head_dim + 128;
        let head_dim = head_dim.next_multiple_of(ROWS);
        let padding = if head_dim.is_multiple_of(64) { 0 } else { 16 };
        let tile = TILE * (2 * head_dim + padding);
        let narrow = TILE * head_dim;
        let query = ROWS * head_dim * 2;
        let (decode_warps, decode_smem) = {
            let (slot, wide) = if has_fp8_cache { (narrow, tile) } else { (tile, 0) };
            let fixed = wide + if head_dim > 128 { query } else { 0 };
            let of_block = state + 16;
            let warps = if 4 * (2 * slot + fixed) + of_block <= smem { 4 } else { 2 };
            let share = if smem >= 160 << 10 { smem / 2 - 1024 } else { smem };
            let of_warp = (share - of_block) / warps;
            let stages = (of_warp.saturating_sub(fixed) / slot).clamp(2, 4);
            (warps, warps * (stages * slot + fixed) + of_block)
        };
        let most_blocks = if head_dim <= 32 { 4 } else { 3 };
        let tiles = if has_fp8_cache { 2 * (tile + narrow) } else { 4 * tile };
        let shared_groups = |groups: usize| match head_dim {
            64 | 129.. => groups,
            33.. => groups - 1,
            _ => 0,
        };
        let of_prefill = |warps: usize, groups: usize| {
            tiles + warps * (groups * state + shared_groups(groups) * query)
        };
        let fits = |blocks: usize, warps: usize, groups: usize| {
            blocks * (of_prefill(warps, groups) + 1024) <= smem + 1024
        };
        let groups = if head_dim <= 128 && fits(2, 4, 2) { 2 } else { 1 };
        let choices = [(2, 4), (1, 8), (1, 4), (1, 2)];
        let fitting = choices.into_iter().find(|&(blocks, warps)| fits(blocks, warps, groups));
        let prefill_warps = fitting.map_or(1, |(_, warps)| warps);
        let prefill_smem = of_prefill(prefill_warps, groups);
        let blocks_in = |bytes: usize| ((smem + 1024) / (bytes + 1024)).min(most_blocks) as u32;
        Self {
            decode_threads: 32 * decode_warps as u32,
            decode_smem,
            decode_blocks_per_sm: blocks_in(decode_smem),
            prefill_threads: 32 * prefill_warps as u32,
            prefill_rows: ROWS * prefill_warps * groups,
            prefill_smem,
            prefill_blocks_per_sm: blocks_in(prefill_smem),
        }
    }

    /// Threads of a block and bytes of its shared memory, as are those of `prefill_block`.
    fn decode_block(&self) -> (u32, usize) {
        (self.decode_threads, self.decode_smem)
    }

    fn prefill_block(&self) -> (u32, usize) {
        (self.prefill_threads, self.prefill_smem)
    }

    fn of(gpu: &Gpu, head_dim: usize) -> Self {
        let max_smem_bytes = gpu.properties().max_smem_per_block_bytes;
        Self::new(head_dim, max_smem_bytes, gpu.kv_cache_dtype() == KvCacheDType::Fp8)
    }
}

/// Query tokens of one unit of prefill.
pub(in crate::engine::ops) fn prefill_tokens(
    gpu: &Gpu,
    head_dim: usize,
    num_q_per_kv: usize,
) -> usize {
    let rows = match head_dim <= MAX_NARROW_HEAD_DIM {
        true => Launch::of(gpu, head_dim).prefill_rows,
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
        let source = match gpu.dtype() {
            DType::Float32 => "paged_attention_f32",
            DType::BFloat16 | DType::Float16 if is_wide => "wide_attention",
            DType::BFloat16 | DType::Float16 => "paged_attention",
        };
        let kernel = Kernel::of_attention(source, entry, defines);
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
        let grid = decode_units.min(properties.num_sms * sizes.decode_blocks_per_sm);
        launch(parts::DECODE, &inputs.decode, [grid, 1], sizes.decode_block());
    }
    launch_units("paged_attention_prefill", &inputs.prefill, 1, sizes.prefill_block());
}

#[cfg(test)]
mod tests {
    use super::Launch;

    #[test]
    fn sizes_fit_every_generation() {
        for (smem_kb, head_dims) in
            [(227, &[16, 24, 64, 120, 160, 192, 256][..]), (163, &[64, 128, 256]), (99, &[64, 128])]
        {
            for (head_dim, has_fp8_cache) in
                head_dims.iter().flat_map(|&head_dim| [(head_dim, false), (head_dim, true)])
            {
                let launch = Launch::new(head_dim, smem_kb << 10, has_fp8_cache);
                assert!(launch.decode_smem <= smem_kb << 10, "{launch:?}");
                assert!(launch.prefill_smem <= smem_kb << 10, "{launch:?}");
                assert!(launch.decode_blocks_per_sm > 0, "{launch:?}");
            }
        }
        // As measured on an H200.
        let hopper = Launch::new(128, 227 << 10, false);
        assert_eq!((hopper.decode_blocks_per_sm, hopper.prefill_smem), (2, 115_712));
        assert_eq!((hopper.prefill_threads, hopper.prefill_rows), (128, 128));
        assert_eq!(Launch::new(128, 227 << 10, true).prefill_smem, 107_520);
        assert_eq!(Launch::new(64, 227 << 10, false).prefill_smem, 66_560);
        let padded = Launch::new(120, 227 << 10, false);
        assert_eq!(padded, Launch { decode_smem: 106_128, prefill_smem: 111_616, ..hopper });
    }
}
