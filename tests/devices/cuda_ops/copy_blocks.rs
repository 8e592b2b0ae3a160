//! copy_blocks: blocks of the KV cache of a GPU.

use vllm_batch::engine::batch::Batch;
use vllm_batch::engine::config::DType;
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvData, KvHeads, StateShape};
use vllm_batch::engine::device::{Device, KvCache, bytes_of};
use vllm_batch::engine::ops::copy_blocks;

use crate::cuda_ops::pair::{Pair, step_inputs};

#[test]
fn copy_blocks_copies_blocks_of_every_layer() {
    let (num_layers, num_blocks) = (3, 7);
    for (seed, dtype) in [(600, DType::Float32), (601, DType::BFloat16)] {
        let Some(pair) = Pair::open(dtype, seed, None) else { return };
        let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
        for (num_kv_heads, head_dim) in [(1, 16), (2, 24), (3, 128)] {
            let heads = KvHeads { num: num_kv_heads, head_dim, v_dim: head_dim };
            let shape = KvCacheShape {
                layers: vec![heads; num_layers],
                num_blocks,
                block_size: 16,
                states: StateShape::default(),
                panel_width: pair.gpu.kv_panel_width(),
            };
            let mut cache = KvCache::on_device(&pair.gpu, shape, dtype).expect("memory");
            let KvData::Cuda { k, v } = &cache.data else { panic!("a cache of the GPU") };
            let num_words = k.bytes() / 4;
            let words = |first: usize| {
                (first..first + num_words).map(|i| (i as u32).wrapping_mul(2_654_435_761))
            };
            let (old_k, old_v): (Vec<u32>, Vec<u32>) = (words(1).collect(), words(9).collect());
            gpu.upload(k, bytes_of(&old_k));
            gpu.upload(v, bytes_of(&old_v));
            // More than the buffer of the pairs has room for.
            let batch = Batch { block_copies: vec![(0, 6), (5, 1), (0, 3)], ..Batch::default() };
            let mut inputs = step_inputs(&pair.gpu, &batch);
            copy_blocks(&pair.gpu, inputs.step(&pair.gpu, &batch), &mut cache);
            gpu.synchronize().expect("the kernel ran");
            let KvData::Cuda { k, v } = &cache.data else { panic!("a cache of the GPU") };
            let block_words = num_words / num_layers / num_blocks;
            for (buffer, old) in [(k, old_k), (v, old_v)] {
                let new = buffer.read::<u32>(num_words).expect("the op ran");
                for (place, block) in new.chunks(block_words).enumerate() {
                    let from = match place % num_blocks {
                        6 => place - 6,
                        1 => place + 4,
                        3 => place - 3,
                        _ => place,
                    };
                    let expected = &old[from * block_words..(from + 1) * block_words];
                    assert!(block == expected, "block {place}, {num_kv_heads} x {head_dim}");
                }
            }
        }
    }
}
