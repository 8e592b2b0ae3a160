//! How long layers over codes take on a real GPU, beside the same layers in 16 bits. A line of JSON
//! for each, which `scripts/gpu-check` sets beside the floor.

use std::time::Instant;

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::{LinearWeight, linear};

use crate::cuda_ops::codes::{coded, kinds};
use crate::cuda_ops::pair::{Pair, output};
use crate::gpu;

/// (n, k) of the layers of Llama-3.1-8B: q, k and v; output of attention; gate and up; down.
const SHAPES: [(usize, usize); 4] = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)];
const NUM_ROWS: [usize; 6] = [1, 16, 64, 128, 256, 2048];
/// Weights in turn, so that none is in a cache when it is read again.
const BYTES_IN_TURN: usize = 256 << 20;

fn loaded(gpu: &Device, make: impl Fn() -> LinearWeight) -> Vec<LinearWeight> {
    let first = make();
    let num = BYTES_IN_TURN.div_ceil(first.num_bytes());
    let weights: Vec<_> = std::iter::once(first).chain((1..num).map(|_| make())).collect();
    gpu.finish_loading().expect("weights arrive");
    weights
}

/// Microseconds of one product. They are replayed as one graph: queued one by one, the shortest
/// would wait for the host.
fn microseconds(
    pair: &Pair,
    weights: &[LinearWeight],
    (n, k): (usize, usize),
    rows: usize,
    graph: usize,
) -> f64 {
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    let all: Vec<usize> = (0..rows).collect();
    let x = pair.values(rows, k, 63, 1.0).activations(&pair.gpu, &all);
    let mut out = output(&pair.gpu, rows, n, Precision::Activation);
    let num_rounds = 200usize.div_ceil(weights.len() * (1 + rows / 256));
    let mut run = |num_rounds: usize| {
        let started = Instant::now();
        for _ in 0..num_rounds {
            let mut queue = || {
                weights.iter().for_each(|weight| linear(&pair.gpu, &x, weight, &mut out));
            };
            pair.gpu.record_or_replay(Some(graph), &mut queue);
        }
        gpu.synchronize().expect("the device works");
        started.elapsed().as_secs_f64() * 1e6 / (num_rounds * weights.len()) as f64
    };
    run(2);
    run(num_rounds)
}

#[test]
fn codes_timed_on_a_gpu() {
    if !gpu::is_real() {
        return println!("SKIP: times are of a real GPU");
    }
    let pairs = [DType::BFloat16, DType::Float16].map(|dtype| Pair::open(dtype, 0, None));
    let [Some(bf16), Some(f16)] = pairs else { return };
    let mut graphs = 0..;
    let mut next_graph = || graphs.next().expect("no end");
    for shape in SHAPES {
        let (n, k) = shape;
        let plain = loaded(&bf16.gpu, || {
            let source = [SourceMatrix::random(n, k, 5, 0.02)].into();
            let weight = LinearWeight::load(&bf16.gpu, DType::BFloat16, &source, None);
            let weight = weight.expect("memory");
            let most = NUM_ROWS[NUM_ROWS.len() - 1];
            weight.prepare(&bf16.gpu, DType::BFloat16, most).expect("algorithms");
            weight
        });
        let in_16_bits =
            NUM_ROWS.map(|rows| microseconds(&bf16, &plain, shape, rows, next_graph()));
        for index in [0, 2, 3, 4, 5] {
            let (kind, dtype) = &kinds()[index];
            let pair = if *dtype == DType::Float16 { &f16 } else { &bf16 };
            let narrow = loaded(&pair.gpu, || {
                let source = [coded(kind, shape)].into();
                let weight = LinearWeight::load(&pair.gpu, *dtype, &source, None).expect("memory");
                let most = NUM_ROWS[NUM_ROWS.len() - 1];
                weight.prepare(&pair.gpu, *dtype, most).expect("algorithms");
                weight
            });
            for (rows, in_16_bits) in NUM_ROWS.into_iter().zip(in_16_bits) {
                let us = microseconds(pair, &narrow, shape, rows, next_graph());
                let bytes = narrow[0].num_bytes();
                let bits = kind.bits;
                println!(
                    "CODES {{\"kind\": {index}, \"bits\": {bits}, \"n\": {n}, \"k\": {k}, \
                     \"rows\": {rows}, \"bytes\": {bytes}, \"us\": {us:.2}, \
                     \"us_16_bits\": {in_16_bits:.2}}}"
                );
            }
        }
    }
}
