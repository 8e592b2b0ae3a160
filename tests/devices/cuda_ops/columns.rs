//! copy_columns, gate_columns and gate_heads.

use vllm_batch::engine::device::Precision;
use vllm_batch::engine::ops::{Columns, Gate, copy_columns, gate_columns, gate_heads};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{CLOSE, in_every_dtype};

#[test]
fn copy_columns_moves_runs_and_leaves_the_rest() {
    // (width of a row, start, stride) of both, runs, width of a run: whole chunks and others.
    let cases = [
        ((320, 64, 128), (576, 0, 288), 2, 64),
        ((40, 8, 16), (64, 16, 24), 2, 8),
        ((41, 3, 7), (50, 1, 9), 5, 6),
        ((4096, 0, 4096), (4104, 8, 4096), 1, 4096),
        ((72, 8, 12), (72, 0, 16), 3, 12),
        ((16, 0, 16), (17, 1, 16), 1, 16),
        ((640, 0, 5), (640, 0, 5), 128, 5),
    ];
    in_every_dtype(380, |pair| {
        for ((from, to, num, width), num_rows) in cases.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, from.0, 38, 2.0);
            let old = pair.values(num_rows, to.0, 39, 2.0);
            let columns = |(_, start, stride)| Columns { start, stride, num, width };
            let (from, to) = (columns(from), columns(to));
            pair.check(&format!("copy_columns {from:?}"), num_rows, 0.0, &|device, rows| {
                let mut out = old.activations(device, rows);
                copy_columns(device, (&x.activations(device, rows), from), (&mut out, to));
                vec![out]
            });
        }
    });
}

#[test]
fn gate_columns_multiplies_by_every_kind_of_gate() {
    // (width, width of a row of gates, first column): whole chunks and others.
    let cases = [(64, 192, 64), (40, 41, 1), (7, 30, 16), (4096, 8192, 4096), (8, 24, 4)];
    in_every_dtype(390, |pair| {
        for ((width, gates_width, start), num_rows) in cases.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, width, 40, 2.0);
            let gates = pair.values(num_rows, gates_width, 41, 6.0);
            for gate in [Gate::Plain, Gate::Sigmoid, Gate::Silu, Gate::Softplus] {
                let what = format!("gate_columns {gate:?}, width {width}");
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut x = x.on(device, rows, Precision::Activation);
                    gate_columns(device, &mut x, (&gates.activations(device, rows), start), gate);
                    vec![x]
                });
            }
        }
    });
}

#[test]
fn gate_heads_multiplies_heads_by_their_gates() {
    // (heads, width of a head, width of a row of gates, first gate)
    let cases = [(4, 16, 70, 66), (3, 20, 63, 60), (7, 6, 49, 1), (32, 128, 32, 0), (1, 8, 3, 2)];
    in_every_dtype(400, |pair| {
        for ((num_heads, head_dim, gates_width, start), num_rows) in cases.into_iter().zip(NUM_ROWS)
        {
            let x = pair.values(num_rows, num_heads * head_dim, 42, 2.0);
            let gates = pair.values(num_rows, gates_width, 43, 6.0);
            for gate in [Gate::Sigmoid, Gate::Softplus] {
                let what = format!("gate_heads {gate:?}, {num_heads} of {head_dim}");
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut x = x.on(device, rows, Precision::Activation);
                    let gates = gates.activations(device, rows);
                    gate_heads(device, &mut x, (&gates, start), (gate, head_dim));
                    vec![x]
                });
            }
        }
    });
}
