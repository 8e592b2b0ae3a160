//! The CPU against a naive loop; the same bits however a sequence is computed.

use std::ops::Range;

use super::super::Step;
use super::super::rotary_and_cache;
use super::*;
use crate::batch::Batch;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::{QkvHeads, Reach, alibi_slopes};
use vllm_batch_base::matrix::SourceMatrix;
use vllm_batch_device::KvCache;
use vllm_batch_device::kv_cache::{KvCacheShape, KvHeads, StateShape};
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::Isa;

const NUM_HEADS: usize = 6;

struct Case<'a> {
    isa: Isa,
    dtype: DType,
    head_dim: usize,
    v_dim: usize,
    /// K and V heads of the cache; a layer may have fewer.
    num_kv_heads: usize,
    block_size: usize,
    shape: AttentionShape<'a>,
    /// Tokens that attend to all of theirs, of every sequence that has them.
    images: &'a [Range<usize>],
    /// Edit of random q, k and v.
    edit: fn(&Case<'_>, &mut [f32]),
}

impl Case<'_> {
    fn new(num_kv_heads: usize, head_dim: usize) -> Self {
        let shape = AttentionShape {
            num_heads: NUM_HEADS,
            num_kv_heads,
            scale: 0.3,
            soft_cap: None,
            reach: Reach::All,
            is_causal: false,
            alibi: None,
            sinks: None,
        };
        let isa = Isa::detect();
        let (dtype, block_size) = (DType::Float32, 16);
        Self {
            isa,
            dtype,
            head_dim,
            v_dim: head_dim,
            num_kv_heads,
            block_size,
            shape,
            images: &[],
            edit: |_, _| {},
        }
    }

    fn width(&self) -> usize {
        (self.shape.num_heads + self.num_kv_heads) * self.head_dim + self.num_kv_heads * self.v_dim
    }

    fn heads(&self) -> QkvHeads {
        let Self { num_kv_heads, head_dim, .. } = *self;
        QkvHeads { num_heads: self.shape.num_heads, num_kv_heads, head_dim }
    }

    /// Where what a token of a sequence of so many attends to ends.
    fn attended_end(&self, token: usize, num_tokens: usize) -> usize {
        let image = self.images.iter().find(|image| image.contains(&token));
        image.map_or(token + 1, |image| image.end.min(num_tokens))
    }

    /// Where a chunk ends that should end here: not inside of an image.
    fn chunk_end(&self, end: usize) -> usize {
        let inside = |image: &&Range<usize>| image.start < end && end < image.end;
        self.images.iter().find(inside).map_or(end, |image| image.end)
    }

    /// (num_tokens, width) of one sequence.
    fn qkv(&self, num_tokens: usize, seed: u64) -> Vec<f32> {
        let mut qkv = SourceMatrix::random(num_tokens, self.width(), seed, 1.5).to_vec();
        (self.edit)(self, &mut qkv);
        qkv
    }

    /// Attention outputs of sequences of these lengths, computed in chunks of `chunk` tokens;
    /// the sequences' blocks are interleaved and all later steps share a batch.
    fn run(&self, lens: &[usize], chunk: usize) -> Vec<Vec<f32>> {
        let device = Device::cpu_with_isa(2, self.isa);
        let own = KvHeads { num: self.num_kv_heads, head_dim: self.head_dim, v_dim: self.v_dim };
        let kv = KvCacheShape {
            layers: vec![KvHeads { num: 1, head_dim: 4, v_dim: 4 }, own],
            num_blocks: 120,
            block_size: self.block_size,
            states: StateShape::default(),
            panel_width: device.kv_panel_width(),
        };
        let mut cache = KvCache::new(kv, self.dtype);
        let mut scratch = AttentionScratch::default();
        let rows: Vec<_> = lens.iter().enumerate().map(|(s, &n)| self.qkv(n, s as u64)).collect();
        let mut outs = vec![Vec::new(); lens.len()];
        let longest = *lens.iter().max().unwrap();
        for first in (0..longest).step_by(chunk) {
            let mut batch =
                Batch { query_start_loc: vec![0], max_blocks_per_seq: 30, ..Batch::default() };
            let mut values = Vec::new();
            let mut seqs = Vec::new();
            for (seq, &len) in lens.iter().enumerate() {
                let end = self.chunk_end(first + chunk).min(len);
                let first = self.chunk_end(first);
                if first >= end {
                    continue;
                }
                let table: Vec<u32> = (0..30).map(|b| b * 4 + seq as u32).collect();
                for position in first..end {
                    batch.positions.push(position as u32);
                    if !self.images.is_empty() {
                        batch.attended_ends.push(self.attended_end(position, len) as u32);
                    }
                    let block = table[position / self.block_size] as usize;
                    let slot = block * self.block_size + position % self.block_size;
                    batch.slot_mapping.push(slot as u32);
                    batch.input_ids.push(0);
                }
                batch.query_start_loc.push(batch.positions.len() as u32);
                batch.seq_lens.push(end as u32);
                batch.block_tables.extend(table);
                values.extend_from_slice(&rows[seq][first * self.width()..end * self.width()]);
                seqs.push((seq, end - first));
            }
            let mut qkv = Tensor::from_vec(values, self.width());
            let (input, step) = ((&mut qkv, self.heads()), Step::on_host(&batch));
            rotary_and_cache(&device, input, None, step, cache.layer_mut(1));
            let mut out = Tensor::zeros(qkv.num_rows(), self.shape.num_heads * self.v_dim);
            paged_attention(
                &device,
                (&qkv, Step::on_host(&batch)),
                cache.layer(1),
                self.shape,
                &mut scratch,
                &mut out,
            );
            let mut row = 0;
            for (seq, num_tokens) in seqs {
                (row..row + num_tokens).for_each(|r| outs[seq].extend_from_slice(out.row(r)));
                row += num_tokens;
            }
        }
        outs
    }

    fn reference(&self, num_tokens: usize, seed: u64) -> Vec<f64> {
        let qkv = self.qkv(num_tokens, seed);
        let (hd, width) = (self.head_dim, self.width());
        let at = |token: usize, column: usize| f64::from(qkv[token * width + column]);
        let (first_k, first_v) =
            (self.shape.num_heads * hd, (self.shape.num_heads + self.num_kv_heads) * hd);
        let mut out = Vec::new();
        for token in 0..num_tokens {
            for head in 0..self.shape.num_heads {
                let kv_head = head / (self.shape.num_heads / self.shape.num_kv_heads);
                let start = self.shape.reach.first(token);
                let weight = |position: usize| {
                    let dot =
                        |d| at(token, head * hd + d) * at(position, first_k + kv_head * hd + d);
                    let score = (0..hd).map(dot).sum::<f64>() * f64::from(self.shape.scale);
                    let cap = self.shape.soft_cap.map(f64::from);
                    let score = cap.map_or(score, |cap| cap * (score / cap).tanh());
                    let slope = self.shape.alibi.map_or(0.0, |slopes| slopes.host()[head]);
                    (score - f64::from(slope) * (token as f64 - position as f64)).exp()
                };
                let weights: Vec<f64> =
                    (start..self.attended_end(token, num_tokens)).map(weight).collect();
                let sink = self.shape.sinks.map(|sinks| f64::from(sinks.host()[head]).exp());
                let sum = weights.iter().sum::<f64>() + sink.unwrap_or(0.0);
                out.extend((0..self.v_dim).map(|d| {
                    let column = first_v + kv_head * self.v_dim + d;
                    let value = |(i, w): (usize, &f64)| w * at(start + i, column);
                    weights.iter().enumerate().map(value).sum::<f64>() / sum
                }));
            }
        }
        out
    }

    /// Queries, weights, K and V are rounded to bf16 where tiles multiply them.
    fn check(&self, lens: &[usize], chunk: usize) {
        let tolerance = if self.dtype == DType::Float32 { 2e-5 } else { 0.03 };
        for (seq, out) in self.run(lens, chunk).into_iter().enumerate() {
            for (got, expected) in out.iter().zip(self.reference(lens[seq], seq as u64)) {
                let difference = (f64::from(*got) - expected).abs();
                assert!(difference < tolerance, "{:?} {lens:?}: {difference}", self.isa);
            }
        }
    }
}

#[test]
fn agrees_with_a_naive_loop_for_every_grouping_width_and_path() {
    for isa in Isa::all_available() {
        for (num_kv_heads, head_dim) in [(6, 16), (3, 20), (2, 64), (1, 40)] {
            for dtype in [DType::Float32, DType::BFloat16] {
                let case = Case { isa, dtype, ..Case::new(num_kv_heads, head_dim) };
                case.check(&[1, 16, 17, 70], 100);
                case.check(&[33, 5], 7);
            }
        }
    }
}

#[test]
fn v_may_have_another_width_than_k() {
    for isa in Isa::all_available() {
        for (num_kv_heads, head_dim, v_dim) in [(1, 40, 32), (1, 20, 8), (3, 16, 50)] {
            for dtype in [DType::Float32, DType::BFloat16] {
                let case = Case { isa, dtype, v_dim, ..Case::new(num_kv_heads, head_dim) };
                case.check(&[1, 16, 17, 70], 100);
                case.check(&[33, 5], 7);
            }
        }
    }
}

#[test]
fn heads_of_a_token_may_be_shared_out() {
    let sinks = of_heads((0..40).map(|head| head as f32 / 8.0 - 2.0).collect());
    for isa in Isa::all_available() {
        for (num_kv_heads, reach) in
            [(1, Reach::All), (2, Reach::Window(21)), (2, Reach::Chunk(21))]
        {
            let mut case = Case { isa, v_dim: 8, ..Case::new(num_kv_heads, 12) };
            case.shape = AttentionShape {
                num_heads: 40,
                reach,
                is_causal: false,
                sinks: Some(&sinks),
                ..case.shape
            };
            case.check(&[33, 5], 7);
            let whole = case.run(&[33], 33);
            assert_eq!(bits(&case.run(&[33], 1)[0]), bits(&whole[0]), "{isa:?}");
        }
    }
}

#[test]
fn windows_chunks_and_soft_caps_are_applied() {
    let both = [1, 5, 16, 40].map(|len| [Reach::Window(len), Reach::Chunk(len)]);
    for reach in both.into_iter().flatten() {
        let mut case = Case::new(3, 32);
        case.shape.reach = reach;
        case.shape.soft_cap = Some(1.5);
        case.check(&[60, 3], 60);
    }
}

#[test]
fn a_causal_layer_passes_over_images() {
    let images = [2..9, 9..12, 30..69];
    let plain = Case::new(1, 24);
    let mut case = Case { images: &images, ..Case::new(1, 24) };
    case.shape.is_causal = true;
    assert_eq!(bits(&case.run(&[75], 75)[0]), bits(&plain.run(&[75], 75)[0]));
}

#[test]
fn tokens_of_an_image_attend_to_all_of_it() {
    let images = [2..9, 9..12, 30..69];
    for isa in Isa::all_available() {
        for (num_kv_heads, window) in [(3, None), (1, None), (2, Some(5)), (2, Some(64))] {
            for dtype in [DType::Float32, DType::BFloat16] {
                let mut case = Case { isa, dtype, images: &images, ..Case::new(num_kv_heads, 24) };
                case.shape.reach = Reach::of_window(window);
                case.check(&[1, 5, 11, 70, 75], 100);
                let whole = case.run(&[75], 75).remove(0);
                for (lens, chunk) in [(&[75, 70][..], 1), (&[75, 12], 7), (&[75, 75], 33)] {
                    assert_eq!(bits(&case.run(lens, chunk)[0]), bits(&whole), "{isa:?} {chunk}");
                }
                // What is not finite reaches those alone that attend to it.
                case.edit = |case, qkv| qkv[34 * case.width() - 1] = f32::NAN;
                let out = case.run(&[75], 75).remove(0);
                let row = case.shape.num_heads * case.v_dim;
                let is_nan = |token: &usize| out[token * row..][..row].iter().any(|v| v.is_nan());
                let first = (0..75).find(is_nan);
                let clean = bits(&out[..30 * row]);
                assert_eq!((first, clean), (Some(30), bits(&whole[..30 * row])), "{isa:?}");
            }
        }
    }
}

/// Steep and flat slopes, of which no two are the same.
fn slopes() -> WeightValues {
    of_heads(alibi_slopes(NUM_HEADS, 8.0).into_iter().map(|slope| 20.0 * slope).collect())
}

/// Sinks that take nearly nothing, some, nearly all and all of the softmax.
fn sinks() -> WeightValues {
    of_heads(vec![-100.0, -1.5, 0.0, 2.5, 9.0, 200.0])
}

fn of_heads(values: Vec<f32>) -> WeightValues {
    WeightValues::on_device(&Device::cpu(Some(1)), values).unwrap()
}

#[test]
fn biases_fall_with_the_distance_by_each_heads_slope() {
    let slopes = slopes();
    for isa in Isa::all_available() {
        for (num_kv_heads, soft_cap, reach) in [
            (6, None, Reach::All),
            (2, Some(1.5), Reach::All),
            (1, None, Reach::Window(21)),
            (3, Some(1.5), Reach::Window(5)),
            (3, Some(1.5), Reach::Chunk(19)),
        ] {
            let mut case = Case { isa, ..Case::new(num_kv_heads, 24) };
            case.shape = AttentionShape {
                soft_cap,
                reach,
                is_causal: false,
                alibi: Some(&slopes),
                ..case.shape
            };
            case.check(&[1, 16, 17, 70], 100);
            case.check(&[33, 5], 7);
        }
    }
}

#[test]
fn sinks_take_their_share_of_each_heads_softmax() {
    let (sinks, slopes) = (sinks(), slopes());
    for isa in Isa::all_available() {
        for (num_kv_heads, soft_cap, reach, alibi) in [
            (6, None, Reach::All, None),
            (2, Some(1.5), Reach::All, Some(&slopes)),
            (1, None, Reach::Window(21), None),
            (3, None, Reach::Window(5), Some(&slopes)),
        ] {
            let mut case = Case { isa, ..Case::new(num_kv_heads, 24) };
            let sinks = Some(&sinks);
            case.shape = AttentionShape { soft_cap, reach, alibi, sinks, ..case.shape };
            case.check(&[1, 16, 17, 70], 100);
            case.check(&[33, 5], 7);
        }
    }
}

#[test]
fn a_layer_may_have_fewer_kv_heads_than_the_cache() {
    for (num_kv_heads, of_cache) in [(1, 2), (2, 3), (3, 6), (1, 6)] {
        let mut case = Case::new(of_cache, 24);
        case.shape.num_kv_heads = num_kv_heads;
        case.check(&[1, 16, 17, 70], 100);
        case.check(&[33, 5], 7);
    }
}

#[test]
fn bits_do_not_depend_on_chunks_neighbours_or_block_size() {
    let (slopes, sinks) = (slopes(), sinks());
    for isa in Isa::all_available() {
        for (dtype, reach, alibi, sinks) in [
            (DType::Float32, Reach::All, None, None),
            (DType::Float32, Reach::All, Some(&slopes), Some(&sinks)),
            (DType::BFloat16, Reach::Window(21), None, Some(&sinks)),
            (DType::BFloat16, Reach::Window(21), Some(&slopes), None),
            (DType::Float32, Reach::Chunk(21), None, None),
            (DType::BFloat16, Reach::Chunk(37), None, None),
            (DType::Float16, Reach::All, None, None),
        ] {
            let mut case = Case { isa, dtype, v_dim: 20, ..Case::new(2, 24) };
            case.shape = AttentionShape { reach, alibi, sinks, ..case.shape };
            let whole = case.run(&[75], 75).remove(0);
            for (block_size, chunk) in [(16, 1), (32, 7), (48, 32), (16, 75)] {
                let other = Case { block_size, ..case };
                assert_eq!(
                    other.run(&[75, 40, 80], chunk)[0],
                    whole,
                    "{isa:?} {block_size} {chunk}"
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_where_more_positions_are_cut_than_one_product_takes() {
    for isa in Isa::all_available() {
        for dtype in [DType::Float32, DType::BFloat16, DType::Float16] {
            let case = Case { isa, dtype, block_size: 48, ..Case::new(1, 8) };
            let whole = case.run(&[1100], 1100).remove(0);
            for chunk in [1, 550] {
                assert_eq!(bits(&case.run(&[1100], chunk)[0]), bits(&whole), "{isa:?} {dtype:?}");
            }
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn values_that_are_not_finite_reach_no_row_that_does_not_attend_to_them() {
    const POISONED: usize = 40;
    let all = Isa::all_available().into_iter();
    for (isa, dtype) in all.flat_map(|isa| [(isa, DType::Float32), (isa, DType::BFloat16)]) {
        let sound = Case { isa, dtype, ..Case::new(2, 24) };
        let poisoned = Case {
            edit: |case, qkv| {
                let v = &mut qkv[POISONED * case.width()..][..case.width()][(NUM_HEADS + 2) * 24..];
                v.fill(f32::INFINITY);
                v[5] = f32::NAN;
            },
            ..sound
        };
        let expected = sound.run(&[75], 75).remove(0);
        let width = NUM_HEADS * 24;
        for chunk in [75, 32, 7, 1] {
            let out = poisoned.run(&[75], chunk).remove(0);
            let (before, after) = out.split_at(POISONED * width);
            assert_eq!(bits(before), bits(&expected[..before.len()]), "{isa:?} {chunk}");
            assert!(after.iter().all(|value| !value.is_finite()), "{isa:?} {chunk}");
        }
    }
}

#[test]
fn the_sign_of_a_zero_does_not_depend_on_chunks() {
    for isa in Isa::all_available() {
        // Token 1 attends to 0 and to a product that underflows; those behind it have values of 1.
        let edit = |case: &Case<'_>, qkv: &mut [f32]| {
            for (token, row) in qkv.chunks_exact_mut(case.width()).enumerate() {
                let (qk, v) = row.split_at_mut(2 * NUM_HEADS * 16);
                qk.fill(if token == 0 { 10.0 } else { 0.1 });
                v.fill([0.0, -1e-45, 1.0][token.min(2)]);
            }
        };
        for dtype in [DType::Float32, DType::BFloat16] {
            let case = Case { isa, dtype, edit, ..Case::new(NUM_HEADS, 16) };
            let alone = case.run(&[20], 1).remove(0);
            assert_eq!(bits(&alone), bits(&case.run(&[20], 20)[0]), "{isa:?} {dtype:?}");
            assert!(bits(&alone[16 * NUM_HEADS..][..16 * NUM_HEADS]).iter().all(|bits| *bits == 0));
        }
    }
}
