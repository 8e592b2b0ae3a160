//! linear_by_head: a matrix of its own for each attention head.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::ops::{Columns, HeadMatrices, linear_by_head};

use crate::cuda_ops::pair::{Pair, in_every_dtype, rounded};

/// Heads, outputs, inputs; gaps between runs of x and of the output; rows.
type Case = ((usize, usize, usize), (usize, usize), usize);

fn check(pair: &Pair, ((num_heads, n, k), (x_gap, out_gap), num_rows): Case) {
    let values = SourceMatrix::random(num_heads * n, k, 5, 1.0).to_vec();
    let value = |head, row, column| rounded(values[(head * n + row) * k + column], pair.dtype);
    let shape = (num_heads, n, k);
    let matrices = pair
        .on_both(|device| HeadMatrices::pack(device, pair.dtype, shape, value).expect("memory"));
    let columns = |gap: usize, width: usize| Columns {
        start: gap,
        stride: width + gap,
        num: num_heads,
        width,
    };
    let (from, to) = (columns(x_gap, k), columns(out_gap, n));
    let x = pair.values(num_rows, x_gap + num_heads * (k + x_gap), 6, 1.0);
    let old = pair.values(num_rows, out_gap + num_heads * (n + out_gap), 7, 1.0);
    let what = format!("linear_by_head, {num_heads} of ({n}, {k}), gaps {x_gap} and {out_gap}");
    pair.check(&what, num_rows, 2e-6 * k as f32, &|device, rows| {
        let x = x.activations(device, rows);
        let mut out = old.activations(device, rows);
        linear_by_head(device, (&x, from), matrices.of(device), (&mut out, to));
        vec![out]
    });
}

#[test]
fn linear_by_head_plain_takes_any_width() {
    let cases = [((3, 5, 7), (1, 2), 17), ((2, 33, 12), (8, 0), 33), ((5, 24, 12), (8, 8), 1)];
    in_every_dtype(920, |pair| cases.into_iter().for_each(|case| check(pair, case)));
    // Whole chunks, which in the other types are for the matrix units.
    let Some(pair) = Pair::open(DType::Float32, 930, None) else { return };
    check(&pair, ((2, 40, 72), (8, 8), 16));
}

/// 16, 64 or 128 rows a block: what is alone has the bits that it has among others.
#[test]
fn linear_by_head_16x64_and_linear_by_head_64x128_and_linear_by_head_128x128_agree() {
    let shapes = [((3, 24, 8), (0, 8)), ((2, 136, 72), (16, 3)), ((2, 64, 200), (8, 0))];
    for (seed, dtype) in [(940, DType::BFloat16), (941, DType::Float16)] {
        let Some(pair) = Pair::open(dtype, seed, None) else { return };
        for ((shape, gaps), num_rows) in shapes.into_iter().zip([15, 33, 129]) {
            check(&pair, (shape, gaps, num_rows));
        }
    }
}
