//! The op against its definition in f64, and rows alone against rows among others.

use half::bf16;
use vllm_batch_device::simd::InstructionSet;

use super::*;
use crate::batch::Batch;
use vllm_batch_base::split_mix::mix;
use vllm_batch_device::simd::Isa;

fn tensor(num_rows: usize, width: usize, seed: u64) -> Tensor {
    let value = |index: usize| (mix(seed + index as u64) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    Tensor::from_vec((0..num_rows * width).map(value).collect(), width)
}

/// In f64, straight from the definition.
fn expected(
    qkv: &Tensor,
    shape: EncoderAttentionShape<'_>,
    (first, len): (usize, usize),
) -> Vec<f64> {
    let QkvHeads { num_heads, num_kv_heads, head_dim } = shape.heads;
    let part = |token: usize, start: usize| &qkv.row(first + token)[start..start + head_dim];
    let mut out = Vec::new();
    for i in 0..len {
        for head in 0..num_heads {
            let kv = num_heads + head / (num_heads / num_kv_heads);
            let q = part(i, head * head_dim);
            let weight = |j: usize| {
                let k = part(j, kv * head_dim);
                let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let bias = shape.bias.map_or(0.0, |bias| bias.of_query(head, i, len)[j]);
                let is_seen = match j <= i {
                    true => shape.before.is_none_or(|before| i - j <= before),
                    false => shape.after.is_none_or(|after| j - i <= after),
                };
                let score = dot * f64::from(shape.scale);
                let cap = shape.soft_cap.map(f64::from);
                let score = cap.map_or(score, |cap| cap * (score / cap).tanh());
                if is_seen { (score + f64::from(bias)).exp() } else { 0.0 }
            };
            let weights: Vec<f64> = (0..len).map(weight).collect();
            let total: f64 = weights.iter().sum();
            for dim in 0..head_dim {
                let value = |j: usize| f64::from(part(j, (kv + num_kv_heads) * head_dim)[dim]);
                out.push((0..len).map(|j| weights[j] * value(j)).sum::<f64>() / total);
            }
        }
    }
    out
}

#[test]
fn each_row_is_the_definition_and_the_same_alone() {
    let bias = RelativeBias::new(4, 80, |head, distance| {
        0.1 * (head as f32 + 1.0) * (distance as f32 * 0.3).sin()
    });
    for (num_kv_heads, head_dim, (before, after), soft_cap, bias) in [
        (4, 8, (None, None), None, None),
        (2, 40, (Some(5), Some(5)), Some(1.5), None),
        (4, 64, (None, None), None, Some(&bias)),
        (1, 16, (None, Some(0)), None, Some(&bias)),
        (2, 24, (Some(36), Some(0)), Some(0.5), None),
    ] {
        let heads = QkvHeads { num_heads: 4, num_kv_heads, head_dim };
        let shape = EncoderAttentionShape { heads, scale: 0.7, soft_cap, before, after, bias };
        let lens = [1usize, 3, 33, 80, 16];
        let starts: Vec<u32> = lens
            .iter()
            .scan(0, |next, len| Some(std::mem::replace(next, *next + *len as u32)))
            .chain([lens.iter().sum::<usize>() as u32])
            .collect();
        let width = (4 + 2 * num_kv_heads) * head_dim;
        let qkv = tensor(lens.iter().sum(), width, 7);
        let rounded = qkv.values().iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
        let rounded = Tensor::from_vec(rounded, width);
        let mut by_tiles: Option<Vec<f32>> = None;
        for (isa, dtype) in Isa::all_available()
            .into_iter()
            .flat_map(|isa| [DType::Float32, DType::BFloat16].map(|dtype| (isa, dtype)))
        {
            let has_tiles = isa.bf16_products().tiles_of(dtype).is_some();
            // Weights are rounded to bf16, whose half a place is 2e-3 of them.
            let (taken, slack) = if has_tiles { (&rounded, 2e-3) } else { (&qkv, 2e-6) };
            let device = Device::cpu_with_isa(3, isa);
            let run = |qkv: &Tensor, starts: Vec<u32>| {
                let limits =
                    TextLimits { max_num_tokens: 200, max_num_texts: 5, ..TextLimits::default() };
                let scratch = EncoderScratch::new((&device, dtype), heads, limits);
                let mut scratch = scratch.expect("memory");
                let mut out = Tensor::zeros(qkv.num_rows(), 4 * head_dim);
                let batch = Batch { query_start_loc: starts, ..Batch::default() };
                let step = Step::on_host(&batch);
                encoder_attention(&device, (qkv, step), shape, &mut scratch, &mut out);
                out
            };
            let out = run(&qkv, starts.clone());
            for (row, &len) in lens.iter().enumerate() {
                let first = starts[row] as usize;
                let got = &out.values()[first * 4 * head_dim..][..len * 4 * head_dim];
                let expected = expected(taken, shape, (first, len));
                let is_close =
                    |(got, expected): (&f32, &f64)| (f64::from(*got) - expected).abs() < slack;
                assert!(got.iter().zip(&expected).all(is_close), "{isa:?}, a row of {len}");
                let alone = &qkv.values()[first * width..][..len * width];
                let alone = run(&Tensor::from_vec(alone.to_vec(), width), vec![0, len as u32]);
                assert_eq!(alone.values(), got, "{isa:?}, a row of {len} alone");
            }
            if has_tiles {
                let first = by_tiles.get_or_insert_with(|| out.values().to_vec());
                assert_eq!(first, out.values(), "{isa:?}: tiles have one answer");
            }
        }
    }
}

/// Tokens behind those that are seen have what a text of those alone would give their queries.
#[test]
fn tokens_that_are_not_seen_see_the_first_ones() {
    let heads = QkvHeads { num_heads: 4, num_kv_heads: 2, head_dim: 24 };
    let (before, after, bias) = (None, None, None);
    let shape = EncoderAttentionShape { heads, scale: 0.7, soft_cap: None, before, after, bias };
    let (lens, seen_lens) = ([40u32, 33, 8], [35u32, 33, 5]);
    let (width, out_width) = ((4 + 2 * 2) * 24, 4 * 24);
    let qkv = tensor(81, width, 7);
    for (isa, dtype) in Isa::all_available()
        .into_iter()
        .flat_map(|isa| [DType::Float32, DType::BFloat16].map(|dtype| (isa, dtype)))
    {
        let device = Device::cpu_with_isa(3, isa);
        let run = |qkv: &Tensor, starts: Vec<u32>, seen_lens: Vec<u32>| {
            let limits =
                TextLimits { max_num_tokens: 81, max_num_texts: 3, ..TextLimits::default() };
            let mut scratch = EncoderScratch::new((&device, dtype), heads, limits).expect("memory");
            let mut out = Tensor::zeros(qkv.num_rows(), out_width);
            let batch = Batch { query_start_loc: starts, seen_lens, ..Batch::default() };
            let step = Step::on_host(&batch);
            encoder_attention(&device, (qkv, step), shape, &mut scratch, &mut out);
            out
        };
        let out = run(&qkv, vec![0, 40, 73, 81], seen_lens.to_vec());
        let mut first = 0;
        for (len, seen) in lens.into_iter().zip(seen_lens).map(|(a, b)| (a as usize, b as usize)) {
            for query in 0..len {
                let mut alone = qkv.values()[first * width..][..seen * width].to_vec();
                let of_query = &qkv.values()[(first + query) * width..][..out_width];
                alone[..out_width].copy_from_slice(of_query);
                let alone = Tensor::from_vec(alone, width);
                let alone = run(&alone, vec![0, seen as u32], Vec::new());
                assert_eq!(alone.row(0), out.row(first + query), "{isa:?} {dtype:?}, {query}");
            }
            first += len;
        }
    }
}
