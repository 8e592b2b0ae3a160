//! text_maxima: the CPU's numbers, however many rows come at a time.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::QkvHeads;
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{StepInputs, TextLimits, text_maxima};

use crate::cuda_ops::pair::{Pair, output, to_bits};

/// First tokens of texts, and the end.
const STARTS: [u32; 6] = [0, 1, 20, 21, 64, 131];

/// The maxima of made-up numbers, with a NaN among them, so many rows at a time.
fn maxima(pair: &Pair, device: &Device, (width, rows_at_a_time): (usize, usize)) -> Vec<u32> {
    let num_rows = *STARTS.last().unwrap() as usize;
    let num_texts = STARTS.len() - 1;
    let mut values = pair.values(num_rows, width, 41, 8.0).values;
    values[70 * width + width / 2] = f32::NAN;
    let limits =
        TextLimits { max_num_tokens: num_rows, max_num_texts: num_texts, ..TextLimits::default() };
    let heads = QkvHeads { num_heads: 1, num_kv_heads: 1, head_dim: 16 };
    let mut inputs = StepInputs::of_texts(device, heads, limits).expect("memory");
    let zeros = vec![0; num_rows];
    let batch = Batch {
        input_ids: zeros.clone(),
        positions: zeros.clone(),
        token_types: zeros,
        query_start_loc: STARTS.to_vec(),
        ..Batch::default()
    };
    let step = inputs.step(device, &batch);
    let mut largest = output(device, num_texts, width, Precision::Full);
    for first in (0..num_rows).step_by(rows_at_a_time) {
        let end = num_rows.min(first + rows_at_a_time);
        let x = &values[first * width..end * width];
        let x = device.upload_as(x, width, Precision::Full).expect("memory");
        text_maxima(device, (&x, first), step.text_starts(), &mut largest);
    }
    to_bits(&device.read(&largest).expect("the op ran"))
}

#[test]
fn text_maxima_are_those_of_the_cpu() {
    let Some(pair) = Pair::open(DType::Float32, 95, None) else {
        return;
    };
    for width in [1, 255, 700] {
        let expected = maxima(&pair, &pair.cpu, (width, 131));
        assert_eq!(expected.iter().filter(|bits| f32::from_bits(**bits).is_nan()).count(), 1);
        for rows_at_a_time in [1, 19, 64, 131] {
            let got = maxima(&pair, &pair.gpu, (width, rows_at_a_time));
            assert!(got == expected, "{width} words, {rows_at_a_time} rows at a time");
        }
    }
}
