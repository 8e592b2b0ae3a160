//! rotary_and_cache and rotate: q and k as on the CPU; K and V in their slots and nowhere else.

mod norms;

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::QkvHeads;
use vllm_batch::engine::device::kv_cache::{KvCacheShape, KvData, KvHeads, StateShape};
use vllm_batch::engine::device::{Device, KvCache, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{RotaryTable, Step, rotary_and_cache, rotate};

use crate::cuda_ops::pair::{CLOSE, Pair, Rows, in_every_dtype, step_inputs, to_bits};

const NUM_BLOCKS: usize = 12;
const MAX_MODEL_LEN: usize = 600;

struct Case {
    heads: QkvHeads,
    /// 0: nothing is rotated.
    rotary_dim: usize,
    factor: f32,
    /// K and V heads of the cache.
    cache_heads: usize,
    block_size: usize,
    num_rows: usize,
}

/// Every width of heads whole and with a rest that is as wide as chunks are, and is not.
fn cases() -> Vec<Case> {
    // (num_heads, num_kv_heads, head_dim), rotary_dim, factor, block_size, num_rows
    let cases = [
        ((1, 1, 64), 64, 1.0, 16, 1),
        ((3, 1, 16), 16, 1.0, 16, 129),
        ((8, 2, 32), 32, 1.25, 32, 33),
        ((7, 1, 128), 128, 1.0, 16, 17),
        ((4, 4, 64), 64, 1.0, 48, 16),
        ((4, 2, 12), 12, 1.0, 16, 15),
        ((12, 12, 64), 0, 1.0, 16, 2),
        ((4, 2, 80), 32, 1.0, 16, 17),
        ((4, 1, 80), 20, 1.0, 16, 15),
        ((7, 3, 128), 64, 0.75, 16, 33),
        ((5, 2, 12), 4, 1.0, 16, 16),
        ((2, 2, 128), 96, 1.0, 32, 3),
    ];
    let case = |((num_heads, num_kv_heads, head_dim), rotary_dim, factor, block_size, num_rows)| {
        let heads = QkvHeads { num_heads, num_kv_heads, head_dim };
        // Every other cache has room for the heads of a wider layer.
        let cache_heads = num_kv_heads + num_rows % 2;
        Case { heads, rotary_dim, factor, cache_heads, block_size, num_rows }
    };
    cases.into_iter().map(case).collect()
}

impl Case {
    /// Axes of the pairs of every second case, in the two ways that models share them out.
    fn axes(&self) -> Vec<u8> {
        let half = self.rotary_dim / 2;
        match self.num_rows % 4 {
            1 => (0..half).map(|pair| (pair % 3) as u8).collect(),
            3 => (0..half).map(|pair| (3 * pair / half) as u8).collect(),
            _ => Vec::new(),
        }
    }

    /// Every third case has columns of others behind v.
    fn width(&self) -> usize {
        let beside = [24, 0, 0][self.num_rows % 3];
        (self.heads.num_heads + 2 * self.heads.num_kv_heads) * self.heads.head_dim + beside
    }

    fn cache(&self, device: &Device, dtype: DType) -> KvCache {
        let head_dim = self.heads.head_dim;
        let heads = KvHeads { num: self.cache_heads, head_dim, v_dim: head_dim };
        let shape = KvCacheShape {
            layers: vec![heads; 2],
            num_blocks: NUM_BLOCKS,
            block_size: self.block_size,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        KvCache::on_device(device, shape, dtype).expect("memory")
    }

    fn table(&self, device: &Device) -> RotaryTable {
        let inv_freq = |i| 10000f32.powf(-2.0 * i as f32 / self.rotary_dim as f32);
        let inv_freq = (0..self.rotary_dim / 2).map(inv_freq).collect();
        let mut table = RotaryTable::new(inv_freq, self.factor).with_axes(self.axes());
        table.reach(device, MAX_MODEL_LEN).expect("memory");
        table
    }

    /// The slots of rows: any, but each its own.
    fn batch(&self, rows: &[usize]) -> Batch {
        let num_slots = NUM_BLOCKS * self.block_size;
        let slot = |(index, _): (usize, &usize)| ((index * 29 + 3) % num_slots) as u32;
        let position = |row: usize| (row * 211 % MAX_MODEL_LEN) as u32;
        // Tokens of images among those of text.
        let on_axes = |row: &usize| match row % 3 {
            0 => [position(*row); 3],
            _ => [*row, row + 1, 3 * row].map(position),
        };
        let axes = match self.axes().is_empty() {
            true => Vec::new(),
            false => rows.iter().map(on_axes).collect(),
        };
        Batch {
            input_ids: vec![0; rows.len()],
            positions: rows.iter().map(|row| position(*row)).collect(),
            axes,
            slot_mapping: rows.iter().enumerate().map(slot).collect(),
            query_start_loc: vec![0],
            ..Batch::default()
        }
    }
}

/// K and V of one layer of a GPU, element by element.
fn layer(cache: &KvCache, dtype: DType, layer: usize) -> [Vec<u32>; 2] {
    let KvData::Cuda { k, v } = &cache.data else { panic!("a cache of the GPU") };
    let read = |buffer: &vllm_batch::engine::device::cuda::DeviceBuffer| -> Vec<u32> {
        let num_values = buffer.bytes() / dtype.size_bytes();
        let values: Vec<u32> = match dtype {
            DType::Float32 => buffer.read::<u32>(num_values).expect("the op ran"),
            DType::BFloat16 | DType::Float16 => {
                let halves = buffer.read::<u16>(num_values).expect("the op ran");
                halves.into_iter().map(u32::from).collect()
            }
        };
        values[layer * num_values / 2..(layer + 1) * num_values / 2].to_vec()
    };
    [read(k), read(v)]
}

/// What the layer must hold, given the rows of qkv after the op.
fn expected_layer(case: &Case, pair: &Pair, qkv: &[f32], batch: &Batch) -> [Vec<u32>; 2] {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = case.heads;
    let len = NUM_BLOCKS * case.cache_heads * case.block_size * head_dim;
    let mut layers = [vec![0u32; len], vec![0u32; len]];
    for (row, slot) in qkv.chunks(case.width()).zip(&batch.slot_mapping) {
        let (block, offset) = (*slot as usize / case.block_size, *slot as usize % case.block_size);
        for head in 0..num_kv_heads {
            let to = ((block * case.cache_heads + head) * case.block_size + offset) * head_dim;
            for (which, layer) in layers.iter_mut().enumerate() {
                let from = (num_heads + which * num_kv_heads + head) * head_dim;
                let values = row[from..from + head_dim].iter();
                let bits = values.map(|value| element_bits(*value, pair.dtype));
                layer[to..to + head_dim].copy_from_slice(&bits.collect::<Vec<_>>());
            }
        }
    }
    layers
}

fn element_bits(value: f32, dtype: DType) -> u32 {
    match dtype {
        DType::Float32 => value.to_bits(),
        DType::BFloat16 => u32::from(half::bf16::from_f32(value).to_bits()),
        DType::Float16 => u32::from(half::f16::from_f32(value).to_bits()),
    }
}

/// Calls `op` on rows of qkv and an empty cache; both as they are then.
fn on_rows(
    (pair, case): (&Pair, &Case),
    values: &Rows,
    (device, rows): (&Device, &[usize]),
    op: impl FnOnce(&mut Tensor, Step<'_>, &mut KvCache),
) -> (Tensor, KvCache) {
    let batch = case.batch(rows);
    let mut inputs = step_inputs(device, &batch);
    let step = inputs.step(device, &batch);
    let mut qkv = values.activations(device, rows);
    // As in a step: rows that pad it have no slot.
    qkv.resize_rows(step.num_rows());
    let mut cache = case.cache(device, pair.dtype);
    op(&mut qkv, step, &mut cache);
    qkv.set_num_rows(rows.len());
    (qkv, cache)
}

fn check(pair: &Pair, case: &Case) {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = case.heads;
    let what = format!("rotary_and_cache, {:?}, {} rotated", case.heads, case.rotary_dim);
    let values: Rows = pair.values(case.num_rows, case.width(), 50, 2.0);
    let tables = (case.rotary_dim > 0).then(|| pair.on_both(|device| case.table(device)));
    pair.check(&what, case.num_rows, CLOSE, &|device, rows| {
        let batch = case.batch(rows);
        let table = tables.as_ref().map(|tables| tables.of(device));
        let (qkv, cache) = on_rows((pair, case), &values, (device, rows), |qkv, step, cache| {
            rotary_and_cache(device, (qkv, case.heads), table, step, cache.layer_mut(1));
        });
        if let Device::Cuda(_) = device {
            let after = device.read(&qkv).expect("the op ran");
            let expected = expected_layer(case, pair, &after, &batch);
            for (got, expected) in layer(&cache, pair.dtype, 1).iter().zip(&expected) {
                // What is beyond is room that narrow heads leave.
                let (written, beyond) = got.split_at(expected.len());
                assert!(written == expected, "{what}: the cache");
                assert!(beyond.iter().all(|bits| *bits == 0), "{what}: beyond the layer");
            }
            let other = layer(&cache, pair.dtype, 0);
            assert!(other.iter().flatten().all(|bits| *bits == 0), "{what}: another layer");
            let start = (num_heads + num_kv_heads) * head_dim;
            for (row, got) in rows.iter().zip(after.chunks(case.width())) {
                let before = &values.values[row * case.width()..(row + 1) * case.width()];
                assert_eq!(to_bits(&got[start..]), to_bits(&before[start..]), "{what}: v stays");
            }
        }
        vec![qkv]
    });
}

#[test]
fn rotary_and_cache_rotates_and_writes_each_slot() {
    in_every_dtype(500, |pair| cases().iter().for_each(|case| check(pair, case)));
}

#[test]
fn rotate_is_the_rotation_of_rotary_and_cache() {
    in_every_dtype(510, |pair| {
        for case in cases().iter().filter(|case| case.rotary_dim > 0) {
            let what = format!("rotate, {:?}, {} rotated", case.heads, case.rotary_dim);
            let values = pair.values(case.num_rows, case.width(), 51, 2.0);
            let tables = pair.on_both(|device| case.table(device));
            pair.check(&what, case.num_rows, CLOSE, &|device, rows| {
                let (place, table) = ((pair, case), tables.of(device));
                let (alone, _) = on_rows(place, &values, (device, rows), |qkv, step, _| {
                    rotate(device, qkv, case.heads, table, step);
                });
                let (both, _) = on_rows(place, &values, (device, rows), |qkv, step, cache| {
                    let (qkv, cache) = ((qkv, case.heads), cache.layer_mut(1));
                    rotary_and_cache(device, qkv, Some(table), step, cache);
                });
                vec![alone, both]
            });
        }
    });
}
