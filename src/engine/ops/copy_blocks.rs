//! copy_blocks: blocks of the KV cache, for sequences that go on from the same tokens.

use crate::engine::device::cuda::{Args, Plain};
use crate::engine::device::kv_cache::{KvCacheShape, KvData};
use crate::engine::device::op_times::{Op, Work};
use crate::engine::device::{Device, Gpu, KvCache, bytes_of};

use super::{GPU_BLOCK, Step};

/// Makes the step's copies of blocks, in all layers.
pub fn copy_blocks(device: &Device, step: Step<'_>, cache: &mut KvCache) {
    let copies = &*step.batch.block_copies;
    if copies.is_empty() {
        return;
    }
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, step, cache),
    };
    let (shape, element_bytes) = (cache.shape, cache.element_bytes());
    let work = || Work::elementwise(copies.len(), 2 * shape.block_bytes(element_bytes));
    let _timed = cpu.op_timer.timed(Op::new("copy_blocks"), work);
    for layer in 0..shape.states.num_layers {
        let width = shape.states.width;
        let states = cache.state_layer_mut(layer).values;
        for &(from, to) in copies {
            let from = from as usize * width;
            states.copy_within(from..from + width, to as usize * width);
        }
    }
    match &mut cache.data {
        KvData::Float32 { k, v } => copy(copies, shape, (k, v)),
        KvData::BFloat16 { k, v } => copy(copies, shape, (k, v)),
        KvData::Float16 { k, v } => copy(copies, shape, (k, v)),
        KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
    }
}

/// k and v: (num_layers, num_blocks, values of a block).
fn copy<E: Plain>(copies: &[(u32, u32)], shape: KvCacheShape, (k, v): (&mut [E], &mut [E])) {
    let KvCacheShape { num_layers, num_blocks, num_kv_heads, .. } = shape;
    for (values, head_len) in [(k, shape.k_len()), (v, shape.v_len())] {
        let len = num_kv_heads * head_len;
        for layer in 0..num_layers {
            let start = |block: u32| (layer * num_blocks + block as usize) * len;
            for &(from, to) in copies {
                values.copy_within(start(from)..start(from) + len, start(to));
            }
        }
    }
}

fn on_gpu(gpu: &Gpu, step: Step<'_>, cache: &KvCache) {
    let KvCacheShape { num_layers, num_blocks, .. } = cache.shape;
    let element_bytes = gpu.kv_cache_dtype().size_bytes(gpu.dtype());
    let block_bytes = cache.shape.block_bytes(element_bytes) / 2 / num_layers;
    let (k, v) = cache.layer(0).ptrs();
    let buffer = &step.gpu_inputs().block_copies;
    for copies in step.batch.block_copies.chunks(buffer.bytes() / 8) {
        let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
        gpu.upload(buffer, bytes_of(&pairs));
        let mut args = Args::new();
        args.ptr(buffer.ptr()).ptr(k).ptr(v).dims([num_blocks, block_bytes]);
        let grid = [copies.len() as u32, num_layers as u32];
        gpu.launch(("gather_rows", "copy_blocks"), grid, (GPU_BLOCK, 0), &mut args);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::batch::Batch;
    use crate::engine::config::DType;
    use crate::engine::device::kv_cache::StateShape;

    #[test]
    fn blocks_are_copied_in_every_layer_and_no_other_changes() {
        let (num_layers, num_blocks) = (3, 5);
        let shape = KvCacheShape {
            num_layers,
            num_blocks,
            block_size: 16,
            num_kv_heads: 2,
            head_dim: 6,
            v_dim: 6,
            states: StateShape { num_layers: 2, width: 3 },
            panel_width: 8,
        };
        let device = Device::cpu(Some(1));
        let mut cache = KvCache::new(shape, DType::Float32);
        let KvData::Float32 { k, v } = &mut cache.data else { unreachable!() };
        let len = 2 * shape.k_len();
        for (place, value) in k.iter_mut().chain(v.iter_mut()).enumerate() {
            *value = place as f32;
        }
        let (old_k, old_v) = (k.to_vec(), v.to_vec());
        for (place, value) in cache.states.iter_mut().enumerate() {
            *value = place as f32;
        }
        let old_states = cache.states.to_vec();
        let batch = Batch { block_copies: vec![(0, 3), (4, 1)], ..Batch::default() };
        copy_blocks(&device, Step::on_host(&batch), &mut cache);
        let KvData::Float32 { k, v } = &cache.data else { unreachable!() };
        let v_len = 2 * shape.v_len();
        let states = (&cache.states, old_states, 3);
        for (new, old, len) in [(k, old_k, len), (v, old_v, v_len), states] {
            for (place, block) in new.chunks(len).enumerate() {
                let from = match place % num_blocks {
                    3 => place - 3,
                    1 => place + 3,
                    _ => place,
                };
                assert!(block == &old[from * len..(from + 1) * len], "block {place}");
            }
        }
    }
}
