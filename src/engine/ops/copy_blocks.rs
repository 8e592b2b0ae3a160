//! copy_blocks: blocks of the KV cache, for sequences that go on from the same tokens, and for
//! prefixes that go to the host's memory or come back.

use std::collections::HashSet;
use std::ops::Range;

use vllm_batch_device::cuda::{Args, DevicePtr, Plain};
use vllm_batch_device::kv_cache::KvData;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::{Device, Gpu, KvCache, bytes_of};

use super::{GPU_BLOCK, Step};

/// Makes the step's copies of blocks in all layers, as if one after the other.
pub fn copy_blocks(device: &Device, step: Step<'_>, cache: &mut KvCache) {
    let copies = &*step.batch.block_copies;
    if copies.is_empty() {
        return;
    }
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, step, cache),
    };
    let block_bytes = cache.shape.block_bytes(cache.element_bytes());
    let work = || Work::elementwise(copies.len(), 2 * block_bytes);
    let _timed = cpu.op_timer.timed(Op::new("copy_blocks"), work);
    for layer in 0..cache.shape.states.num_layers {
        let width = cache.shape.states.width;
        let states = cache.state_layer_mut(layer).into_host();
        for &(from, to) in copies {
            let from = from as usize * width;
            states.copy_within(from..from + width, to as usize * width);
        }
    }
    for layer in 0..cache.shape.layers.len() {
        let (ranges, lens) = (cache.layer_ranges(layer), cache.shape.layer(layer).block_lens());
        match &mut cache.data {
            KvData::Float32 { k, v } => copy(copies, [k, v], ranges, lens),
            KvData::BFloat16 { k, v } => copy(copies, [k, v], ranges, lens),
            KvData::Float16 { k, v } => copy(copies, [k, v], ranges, lens),
            KvData::Cuda { .. } => panic!("a cache of a GPU was given to the CPU"),
        }
    }
}

/// K and V of a layer: these ranges of the values, and the values of a block.
fn copy<E: Plain>(
    copies: &[(u32, u32)],
    values: [&mut [E]; 2],
    ranges: [Range<usize>; 2],
    lens: [usize; 2],
) {
    for ((values, range), len) in values.into_iter().zip(ranges).zip(lens) {
        let layer = &mut values[range];
        for &(from, to) in copies {
            let from = from as usize * len;
            layer.copy_within(from..from + len, to as usize * len);
        }
    }
}

fn on_gpu(gpu: &Gpu, step: Step<'_>, cache: &mut KvCache) {
    let buffer = &step.gpu_inputs().block_copies;
    let mut left = &*step.batch.block_copies;
    while !left.is_empty() {
        let (copies, after) = left.split_at(num_independent(left).min(buffer.bytes() / 8));
        left = after;
        let pairs: Vec<u32> = copies.iter().flat_map(|&(from, to)| [from, to]).collect();
        gpu.upload(buffer, bytes_of(&pairs));
        let num_blocks = cache.shape.num_blocks;
        let copy = |blocks: DevicePtr, of_host: DevicePtr, block_bytes: usize| {
            let mut args = Args::new();
            args.ptr(buffer.ptr()).ptr(blocks).ptr(of_host).dims([num_blocks, block_bytes]);
            let grid = [copies.len() as u32, 1];
            gpu.launch(("gather_rows", "copy_blocks"), grid, (GPU_BLOCK, 0), &mut args);
        };
        for index in 0..cache.shape.layers.len() {
            let (k, v) = cache.layer(index).ptrs();
            let [host_k, host_v] = cache.host_layer_ptrs(index);
            let lens = cache.shape.layer(index).block_lens();
            let [k_bytes, v_bytes] = lens.map(|len| len * cache.element_bytes());
            copy(k, host_k, k_bytes);
            if v_bytes > 0 {
                copy(v, host_v, v_bytes);
            }
        }
        for layer in 0..cache.shape.states.num_layers {
            let of_host = cache.host_state_ptr(layer);
            let states = cache.state_layer_mut(layer);
            copy(states.ptr(), of_host, states.width * size_of::<f32>());
        }
    }
}

/// Number of first copies that may run in any order, or at once: none reads or writes a block that
/// another one writes. At least one.
fn num_independent(copies: &[(u32, u32)]) -> usize {
    let (mut read, mut written) = (HashSet::new(), HashSet::new());
    let mut is_free = |&(from, to): &(u32, u32)| {
        let waits = written.contains(&from) || written.contains(&to) || read.contains(&to);
        read.insert(from);
        written.insert(to);
        !waits
    };
    copies.iter().position(|copy| !is_free(copy)).unwrap_or(copies.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Batch;
    use vllm_batch_base::config::DType;
    use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateData, StateShape};

    #[test]
    fn copies_are_cut_where_one_waits_for_another() {
        for (copies, expected) in [
            // Many copies of one block, and of several.
            (&[(0, 3), (0, 4), (1, 5)][..], 3),
            // What is read was written, is written after it was read, and is written twice.
            (&[(0, 3), (3, 4)], 1),
            (&[(0, 3), (1, 4), (5, 0)], 2),
            (&[(0, 3), (1, 3)], 1),
        ] {
            assert_eq!(num_independent(copies), expected, "{copies:?}");
        }
    }

    #[test]
    fn blocks_are_copied_in_every_layer_and_no_other_changes() {
        let num_blocks = 5;
        // One layer has other heads.
        let layers = [(2, 6), (1, 10), (2, 6)];
        let shape = KvCacheShape {
            layers: layers.map(|(num, head_dim)| KvHeads { num, head_dim, v_dim: 6 }).into(),
            num_blocks,
            block_size: 16,
            states: StateShape { num_layers: 2, width: 3 },
            panel_width: 8,
        };
        let device = Device::cpu(Some(1));
        let mut cache = KvCache::new(shape, DType::Float32);
        let KvData::Float32 { k, v } = &mut cache.data else { unreachable!() };
        for (place, value) in k.iter_mut().chain(v.iter_mut()).enumerate() {
            *value = place as f32;
        }
        let (old_k, old_v) = (k.to_vec(), v.to_vec());
        let StateData::Host(states) = &mut cache.states else { unreachable!() };
        for (place, value) in states.iter_mut().enumerate() {
            *value = place as f32;
        }
        let old_states = states.to_vec();
        let batch = Batch { block_copies: vec![(0, 3), (4, 1)], ..Batch::default() };
        copy_blocks(&device, Step::on_host(&batch), &mut cache);
        let KvData::Float32 { k, v } = &cache.data else { unreachable!() };
        let check = |new: &[f32], old: &[f32], len: usize| {
            for (place, block) in new.chunks(len).enumerate() {
                let from = match place % num_blocks {
                    3 => place - 3,
                    1 => place + 3,
                    _ => place,
                };
                assert!(block == &old[from * len..(from + 1) * len], "block {place}");
            }
        };
        for layer in 0..3 {
            let [of_k, of_v] = cache.layer_ranges(layer);
            let [k_len, v_len] = cache.shape.layer(layer).block_lens();
            check(&k[of_k.clone()], &old_k[of_k], k_len);
            check(&v[of_v.clone()], &old_v[of_v], v_len);
        }
        let StateData::Host(states) = &cache.states else { unreachable!() };
        check(states, &old_states, 3);
    }
}
