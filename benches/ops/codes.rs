//! Products with weights that stay codes, beside those of plain weights of the same shape.

use std::fmt;

use divan::Bencher;
use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::matrix::{
    CodeKind, CodedMatrix, Levels, RowScales, SUPER_GROUP, Scales,
};
use vllm_batch::engine::base::matrix::{QuantizedMatrix, SourceMatrix, SourceValues};
use vllm_batch::engine::ops::linear::LinearWeight;

use super::{DEVICE, time_layers};
use made_up::MadeUp;

#[path = "../../src/engine/ops/linear/codes/tests/made_up.rs"]
mod made_up;

/// A layer of a model of some 1B weights.
const N: usize = 8192;
const K: usize = 2048;

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
        name => MadeUp::matrix(&kind(name), (N, K), true),
    };
    // Enough of them that no cache holds all: as a model's layers, each is read from memory.
    let load = || LinearWeight::load(&DEVICE, dtype, &[source.clone()].into(), None);
    let weights: Vec<_> = (0..8).map(|_| load().expect("the CPU has room")).collect();
    time_layers(bencher, &weights, m, (N, K));
}

#[divan::bench(args = cases())]
fn f32(bencher: Bencher, case: Case) {
    run(bencher, DType::Float32, case);
}

#[divan::bench(args = cases())]
fn bf16(bencher: Bencher, case: Case) {
    run(bencher, DType::BFloat16, case);
}
