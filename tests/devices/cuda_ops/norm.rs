//! add_norm, norm_in_place, norm_heads.

use vllm_batch::engine::base::layers::{Heads, NormKind};
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::{NormWeight, add_norm, norm_heads, norm_in_place};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{Both, CLOSE, Pair, in_every_dtype, output};

const KINDS: [(NormKind, bool); 3] =
    [(NormKind::Rms, false), (NormKind::Layer, true), (NormKind::Layer, false)];

fn weights(pair: &Pair, width: usize, (kind, has_bias): (NormKind, bool)) -> Both<NormWeight> {
    pair.on_both(|device: &Device| {
        let vector = |seed| {
            let values = pair.values(1, width, seed, 1.5).values;
            device.upload(values, width).expect("memory")
        };
        NormWeight { kind, eps: 1e-5, weight: vector(20), bias: has_bias.then(|| vector(21)) }
    })
}

#[test]
fn add_norm_adds_then_normalizes() {
    in_every_dtype(200, |pair| {
        // One row is wider than a block's registers.
        for (width, num_rows) in [9000, 4096, 1000, 96, 48, 64, 16].into_iter().zip(NUM_ROWS) {
            for (index, kind) in KINDS.into_iter().enumerate() {
                let norm = weights(pair, width, kind);
                let residual = pair.values(num_rows, width, 22, 2.0);
                let delta = pair.values(num_rows, width, 23, 1.0);
                let has_delta = index != 1;
                let what = format!("add_norm {kind:?}, width {width}, delta {has_delta}");
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut residual = residual.on(device, rows, Precision::Full);
                    let delta = has_delta.then(|| delta.activations(device, rows));
                    let mut out = output(device, rows.len(), width, Precision::Activation);
                    add_norm(device, &mut residual, delta.as_ref(), norm.of(device), &mut out);
                    vec![residual, out]
                });
            }
        }
    });
}

#[test]
fn norm_in_place_takes_both_precisions() {
    in_every_dtype(210, |pair| {
        for (width, num_rows) in [4096, 9000, 576, 1000, 48, 96, 16].into_iter().zip(NUM_ROWS) {
            for precision in [Precision::Full, Precision::Activation] {
                for kind in KINDS {
                    let norm = weights(pair, width, kind);
                    let x = pair.values(num_rows, width, 24, 2.0);
                    let what = format!("norm_in_place {kind:?}, width {width}, {precision:?}");
                    pair.check(&what, num_rows, CLOSE, &|device, rows| {
                        let mut x = x.on(device, rows, precision);
                        norm_in_place(device, &mut x, norm.of(device));
                        vec![x]
                    });
                }
            }
        }
    });
}

#[test]
fn norm_heads_normalizes_each_head_and_leaves_the_rest() {
    let cases = [
        (7, 64, 33),
        (1, 128, 17),
        (8, 16, 129),
        (3, 32, 16),
        (2, 12, 15),
        (33, 96, 2),
        (2, 512, 1),
        // Norms over the full width.
        (1, 4096, 15),
        (1, 5120, 2),
        (1, 9000, 3),
    ];
    in_every_dtype(220, |pair| {
        for (num_heads, head_dim, num_rows) in cases {
            for (kind, is_shared) in
                KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)])
            {
                let norm =
                    weights(pair, if is_shared { head_dim } else { num_heads * head_dim }, kind);
                let start = 2 * head_dim;
                let width = start + num_heads * head_dim + 24;
                let x = pair.values(num_rows, width, 25, 2.0);
                let what = format!(
                    "norm_heads {kind:?}, {num_heads} heads of {head_dim}, shared: {is_shared}"
                );
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut x = x.activations(device, rows);
                    let heads = Heads { start, num_heads, head_dim };
                    norm_heads(device, &mut x, heads, norm.of(device));
                    vec![x]
                });
            }
        }
    });
}
