//! Products with weights that stay codes, beside those of plain weights of the same shape.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use vllm_batch::engine::config::DType;
use vllm_batch::engine::device::Tensor;
use vllm_batch::engine::ops::linear::codes::{CodeKind, CodedMatrix, Levels, RowScales, Scales};
use vllm_batch::engine::ops::linear::{
    LinearWeight, QuantizedMatrix, SourceMatrix, SourceValues, linear,
};

use super::{DEVICE, random};

/// A layer of a model of some 1B weights.
const N: usize = 8192;
const K: usize = 2048;

/// Codes of nothing in particular: what products cost does not depend on them.
#[derive(Debug)]
struct MadeUp(CodeKind);

impl QuantizedMatrix for MadeUp {
    fn read_row(&self, _: usize, _: Range<usize>, out: &mut [f32]) {
        out.fill(0.5);
    }

    fn codes(&self) -> Option<&dyn CodedMatrix> {
        Some(self)
    }
}

impl CodedMatrix for MadeUp {
    fn kind(&self) -> CodeKind {
        self.0.clone()
    }

    fn read_codes(&self, row: usize, columns: Range<usize>, out: &mut [u8]) {
        let mask = ((1u32 << self.0.bits) - 1) as u8;
        for (column, code) in columns.zip(out) {
            *code = (row * 31 + column * 7) as u8 & mask & 0x7e;
        }
    }

    fn read_scales(&self, _: usize, out: RowScales<'_>) {
        // 1 in float16 and in bfloat16, or a small integer.
        let scale = match self.0.scales {
            Scales::Float16 => 0x3c00,
            Scales::BFloat16 => 0x3f80,
            Scales::Float32 => 1f32.to_bits(),
            Scales::Table(_) | Scales::Super { .. } => 3,
        };
        out.scales.fill(scale);
        out.offsets.fill(if self.0.levels == Levels::Minima { scale } else { 8 });
        out.supers.fill(0x2c00);
        out.super_minima.fill(0x2c00);
    }
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    m: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {N}x{K} M={}", self.name, self.m)
    }
}

/// Names as of GGUF's blocks, and what of other formats is unlike these.
fn kind(name: &str) -> CodeKind {
    let zero = |zero| Levels::Integers { zero };
    let inner = |signed| Scales::Super { signed };
    let (bits, levels, group, scales) = match name {
        "Q4_0" => (4, zero(8), 32, Scales::Float16),
        "Q4_1" => (4, Levels::Minima, 32, Scales::Float16),
        "Q4_K" => (4, Levels::Minima, 32, inner(false)),
        "Q5_K" => (5, Levels::Minima, 32, inner(false)),
        "Q6_K" => (6, zero(32), 16, inner(true)),
        "Q8_0" => (8, zero(128), 32, Scales::Float16),
        "GPTQ" => (4, Levels::Zeros, 128, Scales::Float16),
        "FP8" => (8, Levels::Float8, 128, Scales::Float32),
        name => panic!("no kind {name}"),
    };
    CodeKind { bits, levels, group, scales }
}

fn cases() -> impl Iterator<Item = Case> {
    let names = ["plain", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "GPTQ", "FP8"];
    names.into_iter().flat_map(|name| [1, 4, 64, 512].map(|m| Case { name, m }))
}

fn run(bencher: Bencher, dtype: DType, Case { name, m }: Case) {
    let source = match name {
        "plain" => SourceMatrix::random(N, K, 1, 1.0),
        name => {
            let values = SourceValues::Quantized(Arc::new(MadeUp(kind(name))));
            SourceMatrix::new(N, K, values)
        }
    };
    // Enough of them that no cache holds all: as a model's layers, each is read from memory.
    let load = || LinearWeight::load(&DEVICE, dtype, &[source.clone()].into(), None);
    let weights: Vec<_> = (0..8).map(|_| load().expect("the CPU has room")).collect();
    let x = random(m, K, 2);
    let mut out = Tensor::zeros(m, N);
    let mut layers = weights.iter().cycle();
    bencher
        .counter(ItemsCount::new(2 * m * N * K))
        .counter(BytesCount::new(weights[0].num_bytes() + 4 * m * (N + K)))
        .bench_local(|| {
            if let Some(weight) = layers.next() {
                linear(&DEVICE, &x, weight, &mut out);
            }
        });
}

#[divan::bench(args = cases())]
fn f32(bencher: Bencher, case: Case) {
    run(bencher, DType::Float32, case);
}

#[divan::bench(args = cases())]
fn bf16(bencher: Bencher, case: Case) {
    run(bencher, DType::BFloat16, case);
}
