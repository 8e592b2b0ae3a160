//! copy_blocks: blocks of the KV cache of a GPU.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvData, KvHeads, StateData, StateShape};
use vllm_batch::engine::device::{Device, KvCache, bytes_of};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::copy_blocks;

use crate::cuda_ops::pair::{Pair, step_inputs};

/// Blocks of the GPU; those of the host come after them.
const NUM_BLOCKS: usize = 7;

#[test]
fn copy_blocks_copies_blocks_of_every_layer() {
    check(&[(0, 6), (5, 1), (0, 3)]);
}

/// Each copy finds what the ones before have left.
#[test]
fn copy_blocks_takes_blocks_to_the_host_and_back() {
    check(&[(1, 7), (2, 9), (0, 1), (9, 0), (7, 4), (3, 7), (0, 5), (7, 6)]);
}

/// The blocks that all have in the end, of all layers, are those that the copies give one by one.
fn check(copies: &[(u32, u32)]) {
    let num_blocks = NUM_BLOCKS;
    let mut in_place: Vec<usize> = (0..NUM_BLOCKS + 3).collect();
    for &(from, to) in copies {
        in_place[to as usize] = in_place[from as usize];
    }
    let in_place = &in_place[..NUM_BLOCKS];
    // The last layer has latents, whose V is in K.
    let layers = [(1, 16, 16), (2, 24, 24), (3, 128, 128), (1, 32, 0)];
    let layers = layers.map(|(num, head_dim, v_dim)| KvHeads { num, head_dim, v_dim });
    // Not whole pieces of 16 bytes.
    let states = StateShape { num_layers: 2, width: 5 };
    for (seed, dtype) in [(600, DType::Float32), (601, DType::BFloat16)] {
        let Some(pair) = Pair::open(dtype, seed, None) else { return };
        let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
        let shape = KvCacheShape {
            layers: layers.into(),
            num_blocks,
            block_size: 16,
            states,
            panel_width: pair.gpu.kv_panel_width(),
        };
        let mut cache = KvCache::on_device(&pair.gpu, shape, dtype).expect("memory");
        cache.add_host_blocks(gpu, 3).expect("memory");
        let KvData::Cuda { k, v } = &cache.data else { panic!("a cache of the GPU") };
        let words = |bytes: usize, first: usize| -> Vec<u32> {
            let words = first..first + bytes / 4;
            words.map(|i| (i as u32).wrapping_mul(2_654_435_761)).collect()
        };
        let old = [words(k.bytes(), 1), words(v.bytes(), 9)];
        gpu.upload(k, bytes_of(&old[0]));
        gpu.upload(v, bytes_of(&old[1]));
        let StateData::Cuda(of_states) = &cache.states else { panic!("states of the GPU") };
        let old_states = words(of_states.bytes(), 5);
        gpu.upload(of_states, bytes_of(&old_states));
        // More than the buffer of the pairs has room for.
        let batch = Batch { block_copies: copies.to_vec(), ..Batch::default() };
        let mut inputs = step_inputs(&pair.gpu, &batch);
        copy_blocks(&pair.gpu, inputs.step(&pair.gpu, &batch), &mut cache);
        gpu.synchronize().expect("the kernel ran");
        let KvData::Cuda { k, v } = &cache.data else { panic!("a cache of the GPU") };
        for (which, (buffer, old)) in [k, v].into_iter().zip(old).enumerate() {
            let new = buffer.read::<u32>(old.len()).expect("the op ran");
            let mut start = 0;
            for (layer, heads) in layers.iter().enumerate() {
                let width = [heads.head_dim, heads.v_dim][which] * dtype.size_bytes() / 4;
                let block_words = 16 * heads.num * width;
                for (block, &from) in in_place.iter().enumerate() {
                    let words = |block: usize| start + block * block_words..;
                    let got = &new[words(block)][..block_words];
                    let expected = &old[words(from)][..block_words];
                    assert!(got == expected, "layer {layer}, block {block}, {which}");
                }
                start += num_blocks * block_words;
            }
            assert_eq!(start, old.len(), "and no more");
        }
        let StateData::Cuda(of_states) = &cache.states else { panic!("states of the GPU") };
        let new = of_states.read::<u32>(old_states.len()).expect("the op ran");
        for (place, block) in new.chunks(states.width).enumerate() {
            let from = place - place % num_blocks + in_place[place % num_blocks];
            let expected = &old_states[from * states.width..(from + 1) * states.width];
            assert!(block == expected, "state {place}");
        }
    }
}
