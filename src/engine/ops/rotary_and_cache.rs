//! rotary_and_cache: rotates the step's q and k, and writes its K and V into their slots of the
//! paged cache. One op, since a GPU does it in one pass over the rows.

use crate::engine::device::cuda::{Args, DevicePtr};
use crate::engine::device::{Device, Gpu, KvCache, Tensor};

use super::reshape_and_cache::reshape_and_cache;
use super::rotary::{RotaryTable, rotary};
use super::{Heads, Step};

/// Threads of a row's block.
const BLOCK: u32 = 128;

/// The query, key and value heads of a row of `qkv`, in this order.
#[derive(Clone, Copy, Debug)]
pub struct QkvHeads {
    /// Query heads.
    pub num_heads: usize,
    /// K and V heads.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl QkvHeads {
    /// Query heads.
    pub fn q(&self) -> Heads {
        self.heads(0, self.num_heads)
    }

    /// Key heads.
    pub fn k(&self) -> Heads {
        self.heads(self.num_heads, self.num_kv_heads)
    }

    fn v(&self) -> Heads {
        self.heads(self.num_heads + self.num_kv_heads, self.num_kv_heads)
    }

    fn heads(&self, first: usize, num_heads: usize) -> Heads {
        Heads { start: first * self.head_dim, num_heads, head_dim: self.head_dim }
    }
}

/// qkv (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim): q and k are rotated in place (None:
/// they are not), then k and v go to the step's slots of layer `layer`. Slots of a step are
/// distinct: the block pool gives a block to be written to one sequence only.
pub fn rotary_and_cache(
    device: &Device,
    (qkv, heads): (&mut Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    (cache, layer): (&mut KvCache, usize),
) {
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (qkv, heads), table, step, (cache, layer)),
    };
    if let Some(table) = table {
        let both = heads.heads(0, heads.num_heads + heads.num_kv_heads);
        rotary(cpu, qkv, both, step.positions().host, table);
    }
    let slot_mapping = step.slot_mapping().host;
    reshape_and_cache(cpu, qkv, (heads.k(), heads.v()), slot_mapping, layer, cache);
}

fn on_gpu(
    gpu: &Gpu,
    (qkv, heads): (&Tensor, QkvHeads),
    table: Option<&RotaryTable>,
    step: Step<'_>,
    (cache, layer): (&KvCache, usize),
) {
    let (k, v) = cache.layer_ptrs(layer);
    let mut args = Args::new();
    args.tensor(qkv)
        .ptr(step.positions().device_ptr)
        .ptr(table.map_or(DevicePtr::NULL, RotaryTable::device_ptr))
        .ptr(step.slot_mapping().device_ptr)
        .ptr(k)
        .ptr(v)
        .dims([heads.num_heads, heads.num_kv_heads, heads.head_dim, cache.shape.block_size]);
    let grid = [qkv.num_rows() as u32, 1];
    gpu.launch(("rotary_and_cache", "rotary_and_cache"), grid, (BLOCK, 0), &mut args);
}
