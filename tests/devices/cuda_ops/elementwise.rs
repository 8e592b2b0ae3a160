//! add, scale, clamp, scale_by_position, scale_columns, copy, fill_zero, soft_cap, softmax_rows;
//! another width of a tensor.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::Heads;
use vllm_batch::engine::device::{Device, Precision, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    WeightValues, add, clamp, copy, fill_zero, scale, scale_by_position, scale_columns, soft_cap,
    softmax_rows,
};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{CLOSE, Pair, in_every_dtype, output, step_inputs};

const WIDTHS: [usize; 7] = [4096, 1000, 7, 16, 48, 576, 64];

#[test]
fn add_is_exact_in_f32() {
    in_every_dtype(300, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let residual = pair.values(num_rows, width, 30, 2.0);
            let delta = pair.values(num_rows, width, 31, 2.0);
            pair.check(&format!("add, width {width}"), num_rows, 0.0, &|device, rows| {
                let mut residual = residual.on(device, rows, Precision::Full);
                add(device, &mut residual, &delta.activations(device, rows));
                vec![residual]
            });
        }
    });
}

#[test]
fn add_activations_rounds_once() {
    in_every_dtype(305, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, width, 30, 2.0);
            let delta = pair.values(num_rows, width, 31, 2.0);
            pair.check(&format!("add_activations, {width}"), num_rows, 0.0, &|device, rows| {
                let mut x = x.activations(device, rows);
                add(device, &mut x, &delta.activations(device, rows));
                vec![x]
            });
        }
    });
}

/// An op in place, in both precisions.
fn check_in_place(seed: u64, what: &str, op: impl Fn(&Device, &mut Tensor)) {
    in_every_dtype(seed, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            for precision in [Precision::Full, Precision::Activation] {
                let x = pair.values(num_rows, width, 35, 2.0);
                let what = format!("{what}, width {width}, {precision:?}");
                pair.check(&what, num_rows, 1e-7, &|device, rows| {
                    let mut x = x.on(device, rows, precision);
                    op(device, &mut x);
                    vec![x]
                });
            }
        }
    });
}

#[test]
fn scale_and_scale_activations_multiply_with_one_rounding() {
    check_in_place(340, "scale", |device, x| scale(device, x, 0.3));
}

#[test]
fn clamp_and_clamp_activations_bound_both_signs() {
    // Between two values of the narrow dtypes.
    check_in_place(350, "clamp", |device, x| clamp(device, x, 1.1));
}

#[test]
fn scale_by_position_reaches_the_heads_and_no_more() {
    // (first column, heads, width of a head, rows)
    let cases = [(0, 32, 128, 17), (64, 3, 64, 129), (7, 2, 12, 15), (0, 1, 16, 1), (8, 5, 80, 33)];
    in_every_dtype(360, |pair| {
        for (start, num_heads, head_dim, num_rows) in cases {
            let heads = Heads { start, num_heads, head_dim };
            let width = start + num_heads * head_dim + 24;
            let x = pair.values(num_rows, width, 36, 2.0);
            pair.check(
                &format!("scale_by_position {heads:?}"),
                num_rows,
                CLOSE,
                &|device, rows| {
                    let batch = Batch {
                        input_ids: vec![0; rows.len()],
                        positions: rows.iter().map(|row| (row * 211 % 600) as u32).collect(),
                        slot_mapping: vec![0; rows.len()],
                        query_start_loc: vec![0],
                        ..Batch::default()
                    };
                    let mut inputs = step_inputs(device, &batch);
                    let step = inputs.step(device, &batch);
                    let mut x = x.activations(device, rows);
                    let original = (1.0, 64.0);
                    scale_by_position(device, &mut x, heads, step.positions(), 0.1, original);
                    vec![x]
                },
            );
        }
    });
}

#[test]
fn scale_columns_multiplies_each_column_by_its_factor() {
    in_every_dtype(380, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, width, 38, 2.0);
            let factors = pair.values(1, width, 39, 2.0).values;
            let factors = pair.on_both(|device| {
                WeightValues::on_device(device, factors.clone()).expect("memory")
            });
            pair.check(&format!("scale_columns, {width}"), num_rows, 1e-7, &|device, rows| {
                let mut x = x.activations(device, rows);
                scale_columns(device, &mut x, factors.of(device));
                vec![x]
            });
        }
    });
}

#[test]
fn convert_copies_with_one_rounding() {
    in_every_dtype(310, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let mut x = pair.values(num_rows, width, 32, 2.0);
            // Between two values of the dtype.
            x.values.iter_mut().for_each(|value| *value *= 1.001_37);
            pair.check(&format!("convert, width {width}"), num_rows, 1e-7, &|device, rows| {
                let mut out = output(device, rows.len(), width, Precision::Activation);
                copy(device, &x.on(device, rows, Precision::Full), &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn fill_zero_reaches_the_last_value() {
    in_every_dtype(320, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            for precision in [Precision::Full, Precision::Activation] {
                let x = pair.values(num_rows, width, 33, 2.0);
                pair.check(&format!("fill_zero, width {width}"), num_rows, 0.0, &|device, rows| {
                    let mut x = x.on(device, rows, precision);
                    fill_zero(device, &mut x, rows.len());
                    vec![x]
                });
            }
        }
    });
}

/// An op that has a value of the step in its launch, and not in a buffer.
#[test]
fn a_launch_that_changes_from_step_to_step_is_caught() {
    let Some(pair) = Pair::open(DType::BFloat16, 335, None) else { return };
    if crate::gpu::is_real() {
        return println!("SKIP: a real GPU replays and compares nothing");
    }
    let gpu = &pair.gpu;
    let caught = |cap_of: &dyn Fn(usize) -> f32| {
        let mut x = pair.values(2, 40, 34, 100.0).on(gpu, &[0, 1], Precision::Full);
        let key = Some(cap_of(1).to_bits() as usize);
        let mut step = |i| gpu.record_or_replay(key, &mut || soft_cap(gpu, cap_of(i), &mut x));
        // Once as it is, recorded, replayed.
        (0..3).for_each(&mut step);
        gpu.check()
    };
    caught(&|_| 30.0).expect("every step is like the others");
    let error = caught(&|step| 20.0 + step as f32).unwrap_err().to_string();
    assert!(error.contains("of soft_cap has changed"), "{error}");
}

#[test]
fn soft_cap_bounds_logits() {
    in_every_dtype(330, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, width, 34, 100.0);
            pair.check(&format!("soft_cap, width {width}"), num_rows, CLOSE, &|device, rows| {
                let mut x = x.on(device, rows, Precision::Full);
                soft_cap(device, 30.0, &mut x);
                vec![x]
            });
        }
    });
}

#[test]
fn softmax_rows_are_those_of_the_cpu() {
    in_every_dtype(340, |pair| {
        for (width, num_rows) in WIDTHS.into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows, width, 35, 5.0);
            pair.check(
                &format!("softmax_rows, width {width}"),
                num_rows,
                CLOSE,
                &|device, rows| {
                    let mut x = x.activations(device, rows);
                    softmax_rows(device, &mut x);
                    vec![x]
                },
            );
        }
    });
}

#[test]
fn another_width_of_a_tensor_is_other_rows_of_its_memory() {
    in_every_dtype(370, |pair| {
        for (width, num_rows) in [(48, 129), (96, 33), (7, 17)] {
            let x = pair.values(num_rows, width, 37, 2.0);
            pair.check(&format!("another width, {width}"), num_rows, 0.0, &|device, rows| {
                let mut out = output(device, rows.len(), 96, Precision::Activation);
                out.reshape(rows.len(), width);
                copy(device, &x.on(device, rows, Precision::Full), &mut out);
                vec![out]
            });
        }
    });
}
