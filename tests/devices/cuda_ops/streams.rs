//! Streams beside each other: every op of them against the CPU, and the gates that are kept.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::matrix::{SourceMatrix, SourceValues};
use vllm_batch::engine::device::Precision;
use vllm_batch::engine::ops::linear::LinearWeight;
use vllm_batch::engine::ops::{
    WeightValues, add_to_streams, correct_streams, keep_largest, mean_streams, mixing_weights,
    predict_streams, put_first_stream, set_stream, take_stream,
};

use crate::cuda_ops::pair::{CLOSE, in_every_dtype, output};

/// (width, streams, rows)
const SIZES: [(usize, usize, usize); 4] = [(64, 4, 9), (37, 3, 1), (2048, 4, 5), (1000, 2, 17)];

#[test]
fn mixing_weights_are_products_of_kinds() {
    in_every_dtype(1300, |pair| {
        for (width, num, num_rows) in SIZES {
            let matrices = pair.on_both(|device| {
                [(num, width, 1, 0.1), (num * num, num, 2, 0.5)].map(|(n, k, seed, scale)| {
                    let values = pair.values(n, k, seed, scale).values;
                    let rows = [SourceMatrix::new(n, k, SourceValues::Slice(&values))].into();
                    LinearWeight::load(device, DType::Float32, &rows, None).expect("memory")
                })
            });
            let x = pair.values(num_rows, width, 3, 1.0);
            pair.check("mixing_weights", num_rows, 4.0 * CLOSE, &|device, rows| {
                let [router, coefs] = matrices.of(device);
                let full = |width| output(device, rows.len(), width, Precision::Full);
                let (mut kinds, mut out) = (full(num), full(num * num));
                let x = x.activations(device, rows);
                mixing_weights(device, &x, (router, coefs), &mut kinds, &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn predict_streams_correct_streams_add_to_streams_and_mean_streams_agree_with_the_cpu() {
    in_every_dtype(1310, |pair| {
        for (width, num, num_rows) in SIZES {
            let streams = pair.values(num_rows, num * width, 4, 2.0);
            let (predicted, x) =
                (pair.values(num_rows, num * num, 5, 0.5), pair.values(num_rows, width, 6, 2.0));
            let corrected = pair.values(num_rows, num, 7, 0.5);
            pair.check("streams", num_rows, 4.0 * CLOSE, &|device, rows| {
                let full = |of: &crate::cuda_ops::pair::Rows| of.on(device, rows, Precision::Full);
                let mut streams = full(&streams);
                predict_streams(device, &mut streams, &full(&predicted));
                correct_streams(device, &mut streams, num - 1, (&full(&x), &full(&corrected)));
                add_to_streams(device, &mut streams, &x.activations(device, rows));
                let mut mean = output(device, rows.len(), width, Precision::Full);
                mean_streams(device, &streams, &mut mean);
                vec![streams, mean]
            });
        }
    });
}

#[test]
fn copy_stream_and_set_stream_go_to_their_place() {
    in_every_dtype(1320, |pair| {
        for (width, num, num_rows) in SIZES {
            let factors = pair.on_both(|device| {
                let values = pair.values(1, width, 8, 1.5).values;
                WeightValues::on_device(device, values).expect("memory")
            });
            let (x, y) =
                (pair.values(num_rows, width, 9, 2.0), pair.values(num_rows, width, 10, 0.3));
            pair.check("set_stream", num_rows, 4.0 * CLOSE, &|device, rows| {
                let full = |width| output(device, rows.len(), width, Precision::Full);
                let (mut streams, mut taken) = (full(num * width), full(width));
                put_first_stream(device, &x.on(device, rows, Precision::Full), &mut streams);
                for stream in 1..num {
                    set_stream(device, &mut streams, stream, &y.activations(device, rows));
                }
                take_stream(device, (&streams, 1), Some(factors.of(device)), &mut taken);
                vec![streams, taken]
            });
        }
    });
}

#[test]
fn keep_largest_leaves_the_other_columns() {
    in_every_dtype(1330, |pair| {
        for (width, _, num_rows) in SIZES {
            let x = pair.values(num_rows, width + 11, 11, 2.0);
            pair.check("keep_largest", num_rows, 4.0 * CLOSE, &|device, rows| {
                let mut x = x.activations(device, rows);
                keep_largest(device, &mut x, width, 0.7);
                vec![x]
            });
        }
    });
}
