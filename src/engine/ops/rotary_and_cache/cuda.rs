//! The launches of rotary_and_cache: with norms of heads in the same pass, or without norms.

use crate::{HeadTransform, NormWeight, RotaryTable, Step};
use vllm_batch_base::layers::{NormKind, QkvHeads};
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::{CacheLayer, Device, Gpu, Tensor};

use super::norm_all_heads;

/// Threads of a row's block.
const BLOCK: u32 = 128;
/// The same with norms, at most.
const BLOCK_OF_NORMS: usize = 256;
/// Widest head that norms in the same pass take: one that the lanes of a warp share.
const MAX_HEAD_DIM: usize = 256;
/// Values that a thread takes at a time (kernels/common.cuh).
const CHUNK: usize = 8;

/// `struct Shape` of kernels/rotary.cuh.
#[repr(C)]
#[derive(Clone, Copy)]
struct Shape {
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    rotary_dim: u32,
    block_size: u32,
    cache_heads: u32,
}

/// `struct HeadNorm` of kernels/norm_rotary_and_cache.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeadNorm {
    weight: DevicePtr,
    bias: DevicePtr,
    eps: f32,
    weight_step: u32,
}

impl HeadNorm {
    fn new(norm: Option<&NormWeight>, num_heads: usize, head_dim: usize) -> Self {
        let null = DevicePtr::NULL;
        let Some(norm) = norm else {
            return Self { weight: null, bias: null, eps: 0.0, weight_step: 0 };
        };
        Self {
            weight: norm.weight.device_ptr(),
            bias: norm.bias.as_ref().map_or(null, Tensor::device_ptr),
            eps: norm.eps,
            weight_step: norm.weight_step(num_heads, head_dim) as u32,
        }
    }
}

/// `norm_rotary_and_cache` on a GPU; None: no cache is written.
pub(super) fn run(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    transform: HeadTransform<'_>,
    step: Step<'_>,
    layer: Option<CacheLayer<'_>>,
) {
    let Device::Cuda(gpu) = device else { unreachable!("asked of a GPU") };
    let HeadTransform { norms, rotary } = transform;
    assert!(heads.head_dim.is_multiple_of(2));
    let mut args = Args::new();
    let shape = shared_args(&mut args, (qkv, heads), rotary, step, layer);
    let (num_rows, kind) = (qkv.num_rows(), kind_of_all(norms));
    match kind.filter(|_| heads.head_dim <= MAX_HEAD_DIM) {
        Some(kind) => {
            // Whoever has norms of v has v in the cache.
            assert!(norms[2].is_none() || layer.is_some() || heads.num_kv_heads == 0);
            launch_with_norms(gpu, num_rows, heads, (norms, kind), args.value(shape));
        }
        None => {
            norm_all_heads(device, (qkv, heads), norms);
            let grid = [num_rows as u32, 1];
            let kernel = ("rotary_and_cache", "rotary_and_cache");
            gpu.launch(kernel, grid, (BLOCK, 0), args.value(shape));
        }
    }
}

/// The kind of norms that all are of, if there are any.
fn kind_of_all(norms: [Option<&NormWeight>; 3]) -> Option<NormKind> {
    let mut kinds = norms.into_iter().flatten().map(|norm| norm.kind);
    let first = kinds.next()?;
    kinds.all(|kind| kind == first).then_some(first)
}

/// Arguments of both kernels, except for the shape, which comes next.
fn shared_args(
    args: &mut Args,
    (qkv, heads): (&Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    layer: Option<CacheLayer<'_>>,
) -> Shape {
    let nowhere = (DevicePtr::NULL, DevicePtr::NULL);
    let (k, v) = layer.map_or(nowhere, CacheLayer::ptrs);
    let of_cache = layer.map(CacheLayer::shape);
    let (block_size, cache_heads) =
        of_cache.map_or((1, 0), |shape| (shape.block_size, shape.num_kv_heads));
    args.tensor(qkv)
        .value(RotaryTable::angles(table, step))
        .ptr(step.slot_mapping().device_ptr)
        .ptr(k)
        .ptr(v)
        .dims([qkv.width()]);
    Shape {
        num_heads: heads.num_heads as u32,
        num_kv_heads: heads.num_kv_heads as u32,
        head_dim: heads.head_dim as u32,
        rotary_dim: table.map_or(0, RotaryTable::rotary_dim) as u32,
        block_size: block_size as u32,
        cache_heads: cache_heads as u32,
    }
}

fn launch_with_norms(
    gpu: &Gpu,
    num_rows: usize,
    heads: QkvHeads,
    (norms, kind): ([Option<&NormWeight>; 3], NormKind),
    args: &mut Args,
) {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = heads;
    for (norm, num_heads) in norms.into_iter().zip([num_heads, num_kv_heads, num_kv_heads]) {
        args.value(HeadNorm::new(norm, num_heads, head_dim));
    }
    args.u32(u32::from(kind == NormKind::Layer));
    let lanes = head_dim.div_ceil(CHUNK).next_power_of_two();
    let threads = (num_heads + 2 * num_kv_heads) * lanes;
    let block = threads.next_multiple_of(32).min(BLOCK_OF_NORMS) as u32;
    let kernel = ("norm_rotary_and_cache", "norm_rotary_and_cache");
    gpu.launch(kernel, [num_rows as u32, 1], (block, 0), args);
}
