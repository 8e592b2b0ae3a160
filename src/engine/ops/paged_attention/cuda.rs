//! Attention on a GPU: kernels/paged_attention.cu, or paged_attention_f32.cu for exactness.

use crate::engine::config::DType;
use crate::engine::device::cuda::Args;
use crate::engine::device::gpu::Kernel;
use crate::engine::device::{Gpu, KvCache, Tensor};
use crate::engine::ops::Step;
use crate::engine::ops::step::WorkList;

use super::AttentionShape;

/// `struct AttentionParams` of the kernels.
#[repr(C)]
#[derive(Clone, Copy)]
struct AttentionParams {
    num_heads: u32,
    num_kv_heads: u32,
    block_size: u32,
    max_blocks_per_seq: u32,
    qkv_stride: u32,
    window: u32,
    scale: f32,
    soft_cap: f32,
}

/// Launch sizes of paged_attention.cu, which derives its own from the same two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Launch {
    decode_threads: u32,
    decode_smem: usize,
    decode_blocks_per_sm: u32,
    prefill_warps: usize,
    prefill_smem: usize,
}

impl Launch {
    fn new(head_dim: usize, max_smem_bytes: usize) -> Self {
        let tile = 32 * (2 * head_dim + 16);
        let state = 64 * head_dim + 128;
        let query = if head_dim > 128 { 32 * head_dim } else { 0 };
        let smem = max_smem_bytes >> 10 << 10;
        let warps = if 4 * (2 * tile + query) + state + 16 <= smem { 4 } else { 2 };
        let share = if smem >= 160 << 10 { smem / 2 - 1024 } else { smem };
        let stages = (share.saturating_sub(state + 16) / (warps * tile)).clamp(2, 4);
        let decode_smem = warps * (stages * tile + query) + state + 16;
        let of_prefill = |warps: usize| warps * (state + query) + 4 * tile;
        let fits = |warps: &usize| of_prefill(*warps) <= smem;
        let prefill_warps = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
        Self {
            decode_threads: 32 * warps as u32,
            decode_smem,
            decode_blocks_per_sm: ((smem + 1024) / (decode_smem + 1024)).max(1) as u32,
            prefill_warps,
            prefill_smem: of_prefill(prefill_warps),
        }
    }
}

/// Query tokens of one unit of prefill.
pub(in crate::engine::ops) fn prefill_tokens(
    gpu: &Gpu,
    head_dim: usize,
    num_q_per_kv: usize,
) -> usize {
    let launch = Launch::new(head_dim, gpu.properties().max_smem_per_block_bytes);
    (16 * launch.prefill_warps / num_q_per_kv).max(1)
}

pub(super) fn paged_attention(
    gpu: &Gpu,
    (qkv, step): (&Tensor, Step<'_>),
    (cache, layer): (&KvCache, usize),
    shape: AttentionShape,
    out: &Tensor,
) {
    let kv = cache.shape;
    let params = AttentionParams {
        num_heads: shape.num_heads as u32,
        num_kv_heads: kv.num_kv_heads as u32,
        block_size: kv.block_size as u32,
        // `AttentionWork::seq` is an entry of the tables, not a row.
        max_blocks_per_seq: 1,
        qkv_stride: qkv.width() as u32,
        window: shape.sliding_window.map_or(0, |window| window as u32),
        scale: shape.scale,
        soft_cap: shape.soft_cap.unwrap_or(0.0),
    };
    let inputs = step.gpu_inputs();
    let (k, v) = cache.layer_ptrs(layer);
    let launch = |entry: &'static str, work: &WorkList, grid: u32, block: (u32, usize)| {
        let mut args = Args::new();
        args.tensor(qkv).ptr(k).ptr(v).ptr(work.items.ptr()).ptr(work.num_items.ptr());
        args.ptr(inputs.block_tables.ptr()).tensor(out).value(params);
        let source = match gpu.dtype() {
            DType::Float32 => "paged_attention_f32",
            DType::BFloat16 | DType::Float16 => "paged_attention",
        };
        let kernel = Kernel::with_head_dim(source, entry, kv.head_dim);
        gpu.launch(kernel, [grid, 1], block, &mut args);
    };
    let properties = gpu.properties();
    let units = |work: &WorkList| (work.host.len() * kv.num_kv_heads) as u32;
    if gpu.dtype() == DType::Float32 {
        for work in [&inputs.decode, &inputs.prefill] {
            launch("paged_attention_f32", work, units(work), (128, 0));
        }
        return;
    }
    let sizes = Launch::new(kv.head_dim, properties.max_smem_per_block_bytes);
    // As many blocks as are resident, whatever the number of units, so that a recorded launch
    // serves every step of its size.
    if !inputs.decode.host.is_empty() {
        let resident = properties.num_sms * sizes.decode_blocks_per_sm;
        let grid = resident.min((step.num_rows() * kv.num_kv_heads) as u32);
        let block = (sizes.decode_threads, sizes.decode_smem);
        launch("paged_attention_decode", &inputs.decode, grid, block);
    }
    if !inputs.prefill.host.is_empty() {
        let block = (32 * sizes.prefill_warps as u32, sizes.prefill_smem);
        launch("paged_attention_prefill", &inputs.prefill, units(&inputs.prefill), block);
    }
}

#[cfg(test)]
mod tests {
    use super::Launch;

    #[test]
    fn sizes_fit_every_generation() {
        for (smem_kb, head_dims) in
            [(227, &[16, 64, 128, 256][..]), (163, &[64, 128, 256]), (99, &[64, 128])]
        {
            for &head_dim in head_dims {
                let launch = Launch::new(head_dim, smem_kb << 10);
                assert!(launch.decode_smem <= smem_kb << 10, "{launch:?}");
                assert!(launch.prefill_smem <= smem_kb << 10, "{launch:?}");
            }
        }
        let hopper = Launch::new(128, 227 << 10);
        assert_eq!((hopper.decode_blocks_per_sm, hopper.prefill_warps), (2, 8));
    }
}
