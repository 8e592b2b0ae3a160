//! norm_rotary_and_cache and norm_and_rotate: as on the CPU, and to the bit what the norms of heads
//! and rotary_and_cache do one after the other.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::{NormKind, QkvHeads};
use vllm_batch::engine::device::kv_cache::KvData;
use vllm_batch::engine::device::{Device, KvCache, Tensor};
use vllm_batch::engine::ops::{
    HeadTransform, NormWeight, Step, norm_and_rotate, norm_heads, norm_rotary_and_cache,
    rotary_and_cache,
};

use super::{Case, on_rows};
use crate::cuda_ops::pair::{Both, CLOSE, Pair, in_every_dtype};

/// Norms that a model has.
#[derive(Clone, Copy, Debug)]
struct Norms {
    kind: NormKind,
    has_bias: bool,
    /// Each head has its own weights.
    are_own: bool,
    /// Of q, of k, of v.
    of: [bool; 3],
}

const fn norms(kind: NormKind, of: [bool; 3]) -> Norms {
    Norms { kind, has_bias: false, are_own: false, of }
}

/// As Qwen3 and Gemma 3, Cohere, StableLM and Gemma 4 have them, and q alone.
const NORMS: [Norms; 5] = [
    norms(NormKind::Rms, [true, true, false]),
    Norms { are_own: true, ..norms(NormKind::Layer, [true, true, false]) },
    Norms { has_bias: true, are_own: true, ..norms(NormKind::Layer, [true, true, false]) },
    norms(NormKind::Rms, [true, true, true]),
    Norms { has_bias: true, ..norms(NormKind::Layer, [true, false, false]) },
];

/// Heads of as many chunks as lanes and of fewer, of parts of chunks, with halves that are no whole
/// chunks, rotated in part and not at all; wider than one pass takes.
fn cases() -> Vec<Case> {
    let cases = [
        ((7, 1, 128), 128, 17),
        ((4, 2, 256), 256, 16),
        ((5, 2, 64), 64, 33),
        ((20, 4, 32), 32, 3),
        ((2, 1, 16), 16, 129),
        ((4, 2, 80), 80, 15),
        ((3, 3, 80), 20, 16),
        ((4, 2, 96), 48, 2),
        ((5, 2, 12), 4, 15),
        ((4, 1, 12), 12, 1),
        ((6, 2, 64), 0, 4),
        ((3, 1, 264), 264, 2),
    ];
    let case = |((num_heads, num_kv_heads, head_dim), rotary_dim, num_rows)| {
        let heads = QkvHeads { num_heads, num_kv_heads, head_dim };
        let cache_heads = num_kv_heads + num_rows % 2;
        Case { heads, rotary_dim, factor: 1.0, cache_heads, block_size: 16, num_rows }
    };
    cases.into_iter().map(case).collect()
}

type OfHeads = [Option<Both<NormWeight>>; 3];

fn weights(pair: &Pair, heads: QkvHeads, norms: Norms) -> OfHeads {
    let num_heads = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads];
    let of = |index: usize| {
        let width = if norms.are_own { num_heads[index] } else { 1 } * heads.head_dim;
        pair.on_both(|device| {
            let vector = |seed| {
                let values = pair.values(1, width, seed + index as u64, 1.5).values;
                device.upload(values, width).expect("memory")
            };
            let bias = norms.has_bias.then(|| vector(64));
            NormWeight { kind: norms.kind, eps: 1e-5, weight: vector(61), bias }
        })
    };
    [0, 1, 2].map(|index| norms.of[index].then(|| of(index)))
}

/// What is rotated was rounded before, so the CPU's differ by two roundings of values of up to 5.
fn slack(dtype: DType) -> f32 {
    match dtype {
        DType::Float32 => CLOSE,
        DType::BFloat16 => 4.0 * 0.5f32.powi(8),
        DType::Float16 => 4.0 * 0.5f32.powi(11),
    }
}

/// What is in the cache, all of it.
fn contents(cache: &KvCache) -> [Vec<u8>; 2] {
    let KvData::Cuda { k, v } = &cache.data else { return [Vec::new(), Vec::new()] };
    [k, v].map(|buffer| buffer.read::<u8>(buffer.bytes()).expect("the op ran"))
}

fn check(pair: &Pair, case: &Case, norms: Norms) {
    let heads = case.heads;
    let what = format!("norm_rotary_and_cache, {heads:?}, {} rotated, {norms:?}", case.rotary_dim);
    let of_heads = weights(pair, heads, norms);
    let tables = (case.rotary_dim > 0).then(|| pair.on_both(|device| case.table(device)));
    let values = pair.values(case.num_rows, case.width(), 60, 2.0);
    let on_rows = |on: (&Device, &[usize]), op: &dyn Fn(&mut Tensor, Step<'_>, &mut KvCache)| {
        on_rows((pair, case), &values, on, op)
    };
    pair.check(&what, case.num_rows, slack(pair.dtype), &|device, rows| {
        let weights = [0, 1, 2].map(|index| of_heads[index].as_ref().map(|norm| norm.of(device)));
        let rotary = tables.as_ref().map(|tables| tables.of(device));
        let all = HeadTransform { norms: weights, rotary };
        let (together, cached) = on_rows((device, rows), &|qkv, step, cache| {
            norm_rotary_and_cache(device, (qkv, heads), all, step, cache.layer_mut(1));
        });
        let (apart, expected) = on_rows((device, rows), &|qkv, step, cache| {
            for (norm, heads) in weights.into_iter().zip([heads.q(), heads.k(), heads.v()]) {
                norm.into_iter().for_each(|norm| norm_heads(device, qkv, heads, norm));
            }
            rotary_and_cache(device, (qkv, heads), rotary, step, cache.layer_mut(1));
        });
        assert_eq!(contents(&cached), contents(&expected), "{what}: the cache");
        // Without a cache, as a layer that reads another one's K and V.
        let (alone, _) = on_rows((device, rows), &|qkv, step, _| {
            let without_v = HeadTransform { norms: [weights[0], weights[1], None], ..all };
            norm_and_rotate(device, (qkv, heads), without_v, step);
        });
        let start = heads.q_width() + heads.kv_width();
        let bits = |tensor: &Tensor, len| -> Vec<u32> {
            let values = device.read(tensor).expect("the op ran");
            let rows = values.chunks(case.width());
            rows.flat_map(|row| row[..len].iter().map(|value| value.to_bits())).collect()
        };
        assert_eq!(bits(&together, case.width()), bits(&apart, case.width()), "{what}: apart");
        assert_eq!(bits(&alone, start), bits(&apart, start), "{what}: without a cache");
        vec![together]
    });
}

#[test]
fn norm_rotary_and_cache_has_the_bits_of_its_parts() {
    in_every_dtype(520, |pair| {
        for case in cases() {
            NORMS.into_iter().for_each(|norms| check(pair, &case, norms));
        }
    });
}
