//! rotary_and_cache on the CPU, in every kernel set.

use super::*;
use crate::batch::Batch;
use vllm_batch_base::config::DType;
use vllm_batch_device::KvCache;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

/// q and k are rotated and v is not, and the cache holds what k and v then are.
#[test]
fn only_q_and_k_are_rotated_and_k_and_v_are_where_their_slots_are() {
    let heads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 6 };
    let mut table = RotaryTable::new(vec![1.0, 0.25], 1.0);
    table.extend_to(1000);
    let width = 8 * 6;
    let values: Vec<f32> = (0..3 * width).map(|i| (i as f32 * 0.37).sin()).collect();
    let batch =
        Batch { positions: vec![0, 777, 5], slot_mapping: vec![17, 3, 40], ..Batch::default() };
    for isa in Isa::all_available() {
        let device = Device::cpu_with_isa(2, isa);
        let shape = KvCacheShape {
            // The first layer is another.
            layers: [(2, 10), (3, 6)]
                .map(|(num, head_dim)| KvHeads { num, head_dim, v_dim: head_dim })
                .into(),
            num_blocks: 3,
            block_size: 16,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let mut cache = KvCache::new(shape, DType::Float32);
        let [of_k, of_v] = cache.layer_ranges(1);
        let shape = cache.shape.layer(1);
        let mut qkv = Tensor::from_vec(values.clone(), width);
        let step = Step::on_host(&batch);
        rotary_and_cache(&device, (&mut qkv, heads), Some(&table), step, cache.layer_mut(1));
        let mut rotated = Tensor::from_vec(values.clone(), width);
        rotate(&device, &mut rotated, heads, &table, step);
        assert_eq!(rotated.values(), qkv.values(), "{isa:?}: the rotation alone");
        let KvData::Float32 { k, v } = &cache.data else { panic!("f32 was asked for") };
        for row in 0..3 {
            let mut expected = values[row * width..(row + 1) * width].to_vec();
            rotate_heads(&mut expected[..6 * 6], 6, table.row(batch.positions[row]));
            for (got, expected) in qkv.row(row).iter().zip(&expected) {
                assert!((got - expected).abs() < 1e-6, "{isa:?} row {row}");
            }
            assert_eq!(qkv.row(row)[36..], values[row * width + 36..(row + 1) * width]);
            let slot = batch.slot_mapping[row] as usize;
            let (block, offset) = (slot / 16, slot % 16);
            for (head, d) in (0..2).flat_map(|head| (0..6).map(move |d| (head, d))) {
                let index = block * 3 + head;
                let in_k = d * shape.k_panel_width() + offset % shape.k_panel_width();
                let panel = offset / shape.k_panel_width() * 6 * shape.k_panel_width();
                let got = k[of_k.start + index * shape.k_len() + panel + in_k];
                assert_eq!(got, qkv.row(row)[24 + head * 6 + d], "{isa:?} K of row {row}");
                let in_v = index * shape.v_len() + offset * shape.panel_width + d;
                let got = v[of_v.start + in_v];
                assert_eq!(got, qkv.row(row)[36 + head * 6 + d], "{isa:?} V of row {row}");
            }
        }
        let num_written = k.iter().chain(v.iter()).filter(|value| **value != 0.0).count();
        assert_eq!(num_written, 3 * 2 * 6 * 2, "{isa:?}: and nothing else is written");
    }
}
