//! The ops of a decoder step, one at a time, in the shapes of SmolLM-135M and Qwen2.5-0.5B.
//!
//!     cargo bench --bench ops                                all of them, well under a minute
//!     cargo bench --bench ops -- linear::bf16 --max-time 2   some of them, longer
//!
//! An `item` is a floating point operation, so `Gitem/s` reads GFLOP/s; bytes are those that the op
//! must move at least once. Weights and KV that fit the last-level cache stay there between
//! iterations: at M = 1 a model of many layers, which streams them from memory, is slower than
//! this.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::QkvHeads;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::device::{Device, Tensor};
use vllm_batch::engine::ops;
use vllm_batch::engine::ops::linear::LinearWeight;

mod attention;
mod codes;
mod sampling;

/// The machine as the engine uses it: one thread per physical core, the widest instructions.
static DEVICE: LazyLock<Device> = LazyLock::new(|| Device::cpu(None));

fn main() {
    println!("{} x{}", DEVICE.kernel_set(), DEVICE.num_threads());
    divan::Divan::default().max_time(Duration::from_millis(150)).config_with_args().main();
}

/// What the ops see of a model.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    hidden: usize,
    inner: usize,
    num_heads: usize,
    num_kv_heads: usize,
}

const HEAD_DIM: usize = 64;
const VOCAB_SIZE: usize = 49152;

/// Layers of a cache that a decode step writes one after the other.
const NUM_LAYERS: usize = 30;

const SMOL135: Shape =
    Shape { name: "smol135", hidden: 576, inner: 1536, num_heads: 9, num_kv_heads: 3 };
const QWEN05: Shape =
    Shape { name: "qwen05", hidden: 896, inner: 4864, num_heads: 14, num_kv_heads: 2 };

impl Shape {
    fn heads(self) -> QkvHeads {
        let Self { num_heads, num_kv_heads, .. } = self;
        QkvHeads { num_heads, num_kv_heads, head_dim: HEAD_DIM }
    }

    /// Width of a row of q, k and v.
    fn qkv(self) -> usize {
        (self.num_heads + 2 * self.num_kv_heads) * HEAD_DIM
    }
}

/// A tensor of values around 0.
fn random(num_rows: usize, width: usize, seed: u64) -> Tensor {
    Tensor::from_vec(SourceMatrix::random(num_rows, width, seed, 1.0).to_vec(), width)
}

/// Times products of `m` rows with layers (n, k), one after the other.
fn time_layers(bencher: Bencher, layers: &[LinearWeight], m: usize, (n, k): (usize, usize)) {
    let x = random(m, k, 2);
    let mut out = Tensor::zeros(m, n);
    let num_bytes = layers[0].num_bytes() + 4 * m * (n + k);
    let mut layers = layers.iter().cycle();
    bencher
        .counter(ItemsCount::new(2 * m * n * k))
        .counter(BytesCount::new(num_bytes))
        .bench_local(|| {
            if let Some(layer) = layers.next() {
                ops::linear(&DEVICE, &x, layer, &mut out);
            }
        });
}

mod linear {
    use super::*;
    #[derive(Clone, Copy)]
    struct Case {
        name: &'static str,
        layer: &'static str,
        n: usize,
        k: usize,
        m: usize,
    }

    impl fmt::Display for Case {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} {} {}x{} M={}", self.name, self.layer, self.n, self.k, self.m)
        }
    }

    fn cases() -> Vec<Case> {
        let mut cases = Vec::new();
        for shape in [SMOL135, QWEN05] {
            let Shape { name, hidden, inner, .. } = shape;
            let layers = [
                ("qkv", shape.qkv(), hidden),
                ("gate_up", 2 * inner, hidden),
                ("down", hidden, inner),
                ("lm_head", VOCAB_SIZE, hidden),
            ];
            for (layer, n, k) in layers {
                // Logits are computed for rows that sample only, never for a whole prompt; and the
                // two output layers differ in K alone.
                let is_output = layer == "lm_head";
                if is_output && name == QWEN05.name {
                    continue;
                }
                let ms = [1, 4, 64, 512].into_iter().filter(|&m| !(is_output && m == 512));
                cases.extend(ms.map(|m| Case { name, layer, n, k, m }));
            }
        }
        cases
    }

    fn run(bencher: Bencher, dtype: DType, case: Case) {
        let Case { n, k, m, .. } = case;
        let source = [SourceMatrix::random(n, k, 1, 1.0)].into();
        let weight = LinearWeight::load(&DEVICE, dtype, &source, None).expect("the CPU has room");
        time_layers(bencher, &[weight], m, (n, k));
    }

    #[divan::bench(args = cases())]
    fn f32(bencher: Bencher, case: Case) {
        run(bencher, DType::Float32, case);
    }

    #[divan::bench(args = cases())]
    fn bf16(bencher: Bencher, case: Case) {
        run(bencher, DType::BFloat16, case);
    }

    #[divan::bench(args = cases())]
    fn f16(bencher: Bencher, case: Case) {
        run(bencher, DType::Float16, case);
    }
}

/// Ops that read and write each element a few times: bytes are all that matters.
mod elementwise {
    use super::*;
    use vllm_batch::engine::base::layers::{Activation, NormKind};
    use vllm_batch::engine::ops::batch::Batch;
    use vllm_batch::engine::ops::{
        NormWeight, RotaryTable, Step, activate_and_mul, add_norm, rotary_and_cache,
    };

    #[derive(Clone, Copy)]
    struct Case {
        shape: Shape,
        m: usize,
    }

    impl fmt::Display for Case {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} M={}", self.shape.name, self.m)
        }
    }

    fn cases() -> impl Iterator<Item = Case> {
        [SMOL135, QWEN05].into_iter().flat_map(|shape| [1, 64, 512].map(|m| Case { shape, m }))
    }

    #[divan::bench(args = cases())]
    fn add_rms_norm(bencher: Bencher, Case { shape, m }: Case) {
        let width = shape.hidden;
        let weight = Tensor::from_vec(vec![1.0; width], width);
        let norm = NormWeight { kind: NormKind::Rms, eps: 1e-5, weight, bias: None };
        let (mut residual, delta) = (random(m, width, 1), random(m, width, 2));
        let mut out = Tensor::zeros(m, width);
        // residual read and written, delta read, out written
        bencher
            .counter(BytesCount::of_many::<f32>(4 * m * width))
            .bench_local(|| add_norm(&DEVICE, &mut residual, Some(&delta), &norm, &mut out));
    }

    #[divan::bench(args = cases())]
    fn rotary_and_cache_of_a_row(bencher: Bencher, Case { shape, m }: Case) {
        let inv_freq = |i: usize| 10_000f32.powf(-2.0 * i as f32 / HEAD_DIM as f32);
        let mut table = RotaryTable::new((0..HEAD_DIM / 2).map(inv_freq).collect(), 1.0);
        table.extend_to(1024);
        // A block for each token, and layer after layer, as in a decode step.
        let slot_mapping = (0..m as u32).map(|seq| 32 * seq + seq % 32).collect();
        let positions = (0..m as u32).collect();
        let batch = Batch { positions, slot_mapping, ..Batch::default() };
        let mut cache = super::attention::empty_cache(shape, (NUM_LAYERS, m), DType::BFloat16);
        let mut layers = (0..NUM_LAYERS).cycle();
        let mut qkv = random(m, shape.qkv(), 1);
        // q and k read and written, v read, k and v narrowed into the cache
        bencher.counter(BytesCount::of_many::<f32>(2 * m * shape.qkv())).bench_local(|| {
            let layer = cache.layer_mut(layers.next().unwrap_or(0));
            let (qkv, step) = ((&mut qkv, shape.heads()), Step::on_host(&batch));
            rotary_and_cache(&DEVICE, qkv, Some(&table), step, layer);
        });
    }

    #[divan::bench(args = cases())]
    fn silu_and_mul(bencher: Bencher, Case { shape, m }: Case) {
        let gate_up = random(m, 2 * shape.inner, 1);
        let mut out = Tensor::zeros(m, shape.inner);
        bencher
            .counter(BytesCount::of_many::<f32>(3 * m * shape.inner))
            .bench_local(|| activate_and_mul(&DEVICE, Activation::Silu, &gate_up, &mut out));
    }
}
