//! embedding, add_rows_of, gather_rows; made-up weights.

use vllm_batch::engine::base::matrix::{SourceMatrix, SourceValues};
use vllm_batch::engine::device::{Device, Precision, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{LinearWeight, add_rows_of, embedding, gather_rows};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{Pair, Rows, in_every_dtype, output, step_inputs};

const VOCAB_SIZE: usize = 50;

/// The id of a row: all of the table, in no order.
fn id_of(row: usize) -> u32 {
    ((row * 37 + 49) % VOCAB_SIZE) as u32
}

fn table(pair: &Pair, values: &Rows, device: &Device) -> LinearWeight {
    let source = SourceMatrix::new(VOCAB_SIZE, values.width, SourceValues::Slice(&values.values));
    LinearWeight::load(device, pair.dtype, &[source].into(), None).expect("memory")
}

/// A batch in which every row has the id, the position and the wanted row of `id_of`.
fn batch(rows: &[usize]) -> Batch {
    let ids: Vec<u32> = rows.iter().map(|row| id_of(*row)).collect();
    Batch {
        input_ids: ids.clone(),
        positions: ids.clone(),
        slot_mapping: vec![0; rows.len()],
        query_start_loc: vec![0],
        logits_indices: ids,
        ..Batch::default()
    }
}

#[test]
fn embedding_rows_are_those_of_the_table() {
    in_every_dtype(100, |pair| {
        for (width, num_rows) in [16, 48, 64, 96, 576, 1000, 4096].into_iter().zip(NUM_ROWS) {
            for (precision, scale) in [
                (Precision::Full, None),
                (Precision::Full, Some(8.0)),
                (Precision::Activation, None),
            ] {
                let values = pair.values(VOCAB_SIZE, width, 1, 2.0);
                let tables = pair.on_both(|device| table(pair, &values, device));
                let what = format!("embedding, width {width}, scale {scale:?}, {precision:?}");
                pair.check(&what, num_rows, 0.0, &|device, rows| {
                    let batch = batch(rows);
                    let mut inputs = step_inputs(device, &batch);
                    let ids = inputs.step(device, &batch).input_ids();
                    let mut out = output(device, rows.len(), width, precision);
                    embedding(device, ids, tables.of(device), scale, &mut out);
                    vec![out]
                });
            }
        }
    });
}

#[test]
fn add_rows_of_positions_with_an_offset() {
    in_every_dtype(110, |pair| {
        for (width, num_rows) in [16, 48, 1000, 4096, 6, 576, 64].into_iter().zip(NUM_ROWS) {
            let added = pair.values(VOCAB_SIZE + 2, width, 2, 2.0);
            let tables =
                pair.on_both(|device| device.upload(added.values.clone(), width).expect("memory"));
            let x = pair.values(num_rows, width, 3, 2.0);
            pair.check(&format!("add_rows_of, width {width}"), num_rows, 0.0, &|device, rows| {
                let batch = batch(rows);
                let mut inputs = step_inputs(device, &batch);
                let positions = inputs.step(device, &batch).positions();
                let mut out = x.on(device, rows, Precision::Full);
                add_rows_of(device, positions, 2, tables.of(device), &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn gather_rows_takes_any_rows_of_any_type() {
    in_every_dtype(120, |pair| {
        for (width, num_rows) in [16, 4096, 1000, 96, 7, 576, 64].into_iter().zip(NUM_ROWS) {
            for precision in [Precision::Full, Precision::Activation] {
                let values = pair.values(VOCAB_SIZE, width, 4, 2.0);
                let all: Vec<usize> = (0..VOCAB_SIZE).collect();
                let x = pair.on_both(|device| values.on(device, &all, precision));
                let what = format!("gather_rows, width {width}, {precision:?}");
                pair.check(&what, num_rows, 0.0, &|device, rows| {
                    let batch = batch(rows);
                    let mut inputs = step_inputs(device, &batch);
                    let indices = inputs.step(device, &batch).logits_indices();
                    let mut out = output(device, rows.len(), width, precision);
                    gather_rows(device, x.of(device), indices, &mut out);
                    vec![out]
                });
            }
        }
    });
}

#[test]
fn random_fill_makes_the_weights_that_the_cpu_makes() {
    in_every_dtype(130, |pair| {
        for width in [16, 1000, 4095] {
            let rows: Vec<usize> = (0..VOCAB_SIZE).collect();
            let batch = Batch {
                input_ids: rows.iter().map(|row| *row as u32).collect(),
                positions: vec![0; VOCAB_SIZE],
                slot_mapping: vec![0; VOCAB_SIZE],
                query_start_loc: vec![0],
                ..Batch::default()
            };
            let values = |device: &Device| -> Vec<f32> {
                let source = SourceMatrix::random(VOCAB_SIZE, width, 7, 0.02);
                let table = LinearWeight::load(device, pair.dtype, &[source].into(), None);
                let mut inputs = step_inputs(device, &batch);
                let ids = inputs.step(device, &batch).input_ids();
                let mut out: Tensor = output(device, VOCAB_SIZE, width, Precision::Full);
                embedding(device, ids, &table.expect("memory"), None, &mut out);
                device.read(&out).expect("the op ran")
            };
            assert!(values(&pair.gpu) == values(&pair.cpu), "width {width}, {:?}", pair.dtype);
        }
    });
}
