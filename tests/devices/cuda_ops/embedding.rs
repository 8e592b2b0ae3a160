//! embedding, add_rows_of, gather_rows, and rows of images; made-up weights.

use vllm_batch::engine::base::matrix::{SourceMatrix, SourceValues};
use vllm_batch::engine::device::{Device, Precision, Tensor};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    LinearWeight, MixedRows, PatchScratch, QkvHeads, add_mixed_rows, add_rows, add_rows_of,
    embedding, gather_rows, group_attention, mean_rows, patch_values, replace_rows,
};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{CLOSE, Pair, Rows, in_every_dtype, output, step_inputs};

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

#[test]
fn widen_and_copies_replace_rows_where_they_go() {
    in_every_dtype(130, |pair| {
        for (width, num_rows) in [16, 48, 1000, 4096, 6, 576, 64].into_iter().zip(NUM_ROWS) {
            let given = pair.values(num_rows, width, 5, 2.0);
            let before = pair.values(num_rows, width, 6, 2.0);
            let what = format!("replace_rows and add_rows, width {width}");
            pair.check(&what, num_rows, 0.0, &|device, rows| {
                let from = given.activations(device, rows);
                let whole = given.on(device, rows, Precision::Full);
                let of = |precision| before.on(device, rows, precision);
                let mut widened = of(Precision::Full);
                let mut outs = vec![of(Precision::Activation), of(Precision::Full)];
                for (row, of_all) in rows.iter().enumerate() {
                    // The last row of all stays.
                    if of_all + 1 < num_rows {
                        let one = |from: &Tensor, out: &mut Tensor| {
                            replace_rows(device, from.rows_from(row), out.rows_from_mut(row), 1);
                        };
                        one(&from, &mut widened);
                        one(&from, &mut outs[0]);
                        one(&whole, &mut outs[1]);
                    }
                }
                let mut sum = of(Precision::Full);
                add_rows(device, from.rows_from(0), sum.rows_from_mut(0), rows.len());
                outs.extend([widened, sum]);
                outs
            });
        }
    });
}

#[test]
fn mean_rows_and_add_mixed_rows_are_those_of_the_cpu() {
    in_every_dtype(140, |pair| {
        for (width, num_rows) in [16, 48, 300, 1152].into_iter().zip(NUM_ROWS) {
            let x = pair.values(num_rows * 4, width, 7, 2.0);
            let what = format!("mean_rows, width {width}");
            pair.check(&what, num_rows, CLOSE, &|device, rows| {
                let of_row = |row: &usize| 4 * row..4 * row + 4;
                let four: Vec<usize> = rows.iter().flat_map(of_row).collect();
                let x = x.on(device, &four, Precision::Full);
                let mut out = output(device, rows.len(), width, Precision::Full);
                mean_rows(device, &x, &mut out);
                vec![out]
            });
            let (table, before) =
                (pair.values(VOCAB_SIZE, width, 8, 2.0), pair.values(num_rows, width, 9, 2.0));
            let tables =
                pair.on_both(|device| device.upload(table.values.clone(), width).expect("memory"));
            let what = format!("add_mixed_rows, width {width}");
            pair.check(&what, num_rows, CLOSE, &|device, rows| {
                let part = |row: usize, part: usize| {
                    (id_of(row + 11 * part), (row * 7 % 9 + part) as f32 / 12.0)
                };
                let mut mixed = MixedRows::default();
                // Of one row, of two, .. and of 16.
                for row in rows {
                    mixed.push((0..=row % 16).map(|at| part(*row, at)));
                }
                mixed.upload(device).expect("memory");
                let mut out = before.on(device, rows, Precision::Full);
                add_mixed_rows(device, &mixed, tables.of(device), &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn patch_values_are_the_numbers_of_bytes() {
    let number = |band: usize, byte: usize| (band as f32 + 1.0) * (byte as f32 - 99.5) / 77.0;
    let tables = [0, 1, 2].map(|band| std::array::from_fn(|byte| number(band, byte)));
    in_every_dtype(150, |pair| {
        for ((side, num_frames), num_rows) in
            [(14, 1), (16, 2), (7, 3), (2, 1)].into_iter().zip(NUM_ROWS)
        {
            let len = 3 * side * side;
            let what = format!("patch_values, {side} pixels, {num_frames} frames");
            pair.check(&what, num_rows, 0.0, &|device, rows| {
                let bytes = |row: &usize| {
                    let row = *row;
                    (0..len).map(move |i| ((row * 131 + i * 31) % 256) as u8)
                };
                let samples: Vec<u8> = rows.iter().flat_map(bytes).collect();
                let scratch = PatchScratch::new(device, samples.len()).expect("memory");
                let mut out = output(device, rows.len(), len * num_frames, Precision::Activation);
                let samples = (&samples[..], &scratch);
                patch_values(device, samples, (&tables, num_frames), &mut out);
                vec![out]
            });
        }
    });
}

#[test]
fn group_attention_of_few_rows_is_that_of_the_cpu() {
    in_every_dtype(150, |pair| {
        for (heads, num_rows) in [(2, 1, 16), (4, 2, 12), (16, 16, 72), (3, 3, 130)]
            .map(|(num_heads, num_kv_heads, head_dim)| QkvHeads {
                num_heads,
                num_kv_heads,
                head_dim,
            })
            .into_iter()
            .zip(NUM_ROWS)
        {
            let (width, kv_width) = (heads.q_width(), 2 * heads.kv_width());
            let (q, kv) =
                (pair.values(num_rows, width, 11, 2.0), pair.values(VOCAB_SIZE, kv_width, 12, 2.0));
            let all: Vec<usize> = (0..VOCAB_SIZE).collect();
            let what = format!("group_attention, {heads:?}");
            pair.check(&what, num_rows, CLOSE, &|device, rows| {
                let mut groups = MixedRows::default();
                // Of one row, of two, .. and of 64.
                for row in rows {
                    let size = [1, 2, 4, 9, 64][row % 5];
                    groups.push((0..size).map(|at| (id_of(row + 11 * at), 0.25)));
                }
                groups.upload(device).expect("memory");
                let (q, kv) = (q.activations(device, rows), kv.activations(device, &all));
                let mut out = output(device, rows.len(), width, Precision::Activation);
                group_attention(device, &groups, (&q, &kv), heads, &mut out);
                vec![out]
            });
        }
    });
}
