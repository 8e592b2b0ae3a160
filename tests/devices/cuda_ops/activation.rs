//! activate and activate_and_mul, all kinds.

use vllm_batch::engine::base::layers::Activation;
use vllm_batch::engine::device::Precision;
use vllm_batch::engine::ops::{activate, activate_and_mul};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{CLOSE, in_every_dtype, output};

pub fn kinds() -> [Activation; 8] {
    [
        Activation::Silu,
        Activation::ScaledSilu(1.3),
        Activation::QuickGelu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::Relu,
        Activation::Relu2,
        Activation::xielu(0.3, -0.7, 0.5, -1e-6),
    ]
}

#[test]
fn activate_in_place() {
    in_every_dtype(400, |pair| {
        for (width, num_rows) in [4096, 1000, 96, 13, 576, 64, 16].into_iter().zip(NUM_ROWS) {
            for kind in kinds() {
                let x = pair.values(num_rows, width, 40, 9.0);
                let what = format!("activate {kind:?}, width {width}");
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut x = x.activations(device, rows);
                    activate(device, kind, &mut x);
                    vec![x]
                });
            }
        }
    });
}

#[test]
fn activate_and_mul_takes_gate_then_up() {
    in_every_dtype(410, |pair| {
        for (width, num_rows) in [4096, 1000, 96, 13, 576, 64, 16].into_iter().zip(NUM_ROWS) {
            for kind in kinds() {
                let gate_up = pair.values(num_rows, 2 * width, 41, 4.0);
                let what = format!("activate_and_mul {kind:?}, width {width}");
                pair.check(&what, num_rows, CLOSE, &|device, rows| {
                    let mut out = output(device, rows.len(), width, Precision::Activation);
                    activate_and_mul(device, kind, &gate_up.activations(device, rows), &mut out);
                    vec![out]
                });
            }
        }
    });
}
