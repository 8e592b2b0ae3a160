//! Scores to weights.

use crate::batch::Batch;
use crate::gemm::words::narrow_in_place;
use crate::soft_cap::capped;
use vllm_batch_device::kv_cache::KV_GROUP_TOKENS;
use vllm_batch_device::simd::{Kernel, Vector};

use super::super::AttentionShape;
use super::by_tiles::STEP_POSITIONS;

/// The numbers of a vector's lanes; it takes as many as it has.
const LANE_INDICES: [f32; KV_GROUP_TOKENS] =
    [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// The positions that consecutive tokens of a sequence attend to, and where their scores are kept:
/// from `base`, a panel's first position, with `stride` scores to a row.
#[derive(Clone, Copy)]
pub(super) struct Attended<'a> {
    pub base: usize,
    /// First position of the first token; the others begin there too.
    pub start: usize,
    /// The end of those of the last token.
    pub end: usize,
    pub stride: usize,
    /// Query heads of a token.
    pub num_heads: usize,
    /// Where the positions of each token end.
    pub batch: &'a Batch,
    /// The first of the tokens in the batch.
    pub first_token: usize,
}

/// scores = e^(score - max), 0 outside the positions of the row; totals are their sums. Both are
/// those of the tokens alone.
pub(super) struct Softmax<'a> {
    pub shape: AttentionShape<'a>,
    pub first_head: usize,
    pub attended: Attended<'a>,
    pub scores: &'a mut [f32],
    pub totals: &'a mut [f32],
    /// Weights become words of two bf16, in whole steps of tiles; what they are rounded to is why
    /// the exponential may be coarse.
    pub as_words: bool,
}

impl Kernel for Softmax<'_> {
    /// Rows of a token go together, a few at a time, so that none waits for its own largest and
    /// sum.
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let Attended { num_heads, base, batch, first_token, .. } = self.attended;
        for token in 0..self.totals.len() / num_heads {
            let len = self.shape.attended_end(batch, first_token + token) as usize - base;
            let (mut row, end) = (token * num_heads, (token + 1) * num_heads);
            // SAFETY: dispatched for this CPU.
            unsafe {
                while row + 4 <= end {
                    self.rows::<V, 4>(row, len);
                    row += 4;
                }
                match end - row {
                    3 => self.rows::<V, 3>(row, len),
                    2 => self.rows::<V, 2>(row, len),
                    1 => self.rows::<V, 1>(row, len),
                    _ => {}
                }
            }
        }
    }
}

impl Softmax<'_> {
    /// R rows over `len` positions from the base on: scaled, capped, biased, and then weights. Sums
    /// run over a multiple of 16, lane by lane, so a row's do not depend on the others. A sink is
    /// added to the whole sum: how the positions are cut does not touch it.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn rows<V: Vector, const R: usize>(&mut self, row: usize, len: usize) {
        let Attended { base, start, end, stride, num_heads, .. } = self.attended;
        let head = self.first_head + row % num_heads;
        let (start, num_positions) = (start - base, end - base);
        let padded = len.next_multiple_of(KV_GROUP_TOKENS);
        let scores = &mut self.scores[row * stride..][..R * stride];
        // SAFETY: the caller's promise.
        let mut max = unsafe { [V::splat(f32::NEG_INFINITY); R] };
        let sum: [V; R];
        // SAFETY: a row has room for 16 scores behind the last position, and vectors have 16 lanes
        // at most, a divisor of 16.
        unsafe {
            let at =
                |scores: &mut [f32], r: usize, i: usize| scores.as_mut_ptr().add(r * stride + i);
            let scale = V::splat(self.shape.scale);
            // Nothing but the scale changes scores, and no order: they are scaled when they are
            // taken, and need not be written before.
            let only_scales = self.shape.soft_cap.is_none()
                && self.shape.alibi.is_none()
                && self.shape.scale > 0.0;
            for r in 0..R {
                // What is not attended to counts as what is, until the largest is known.
                let some = scores[r * stride + start];
                fill_around::<V>(&mut scores[r * stride..][..stride], (start, len), some);
            }
            for i in (0..padded).step_by(V::LANES) {
                for (r, max) in max.iter_mut().enumerate() {
                    let ptr = at(scores, r, i);
                    let mut score = V::load(ptr).mul(scale);
                    if !only_scales {
                        score = self.shape.soft_cap.map_or(score, |cap| capped(score, cap));
                        score.store(ptr);
                    }
                    *max = max.max(score);
                }
            }
            for (r, max) in max.iter_mut().enumerate() {
                let row = &mut scores[r * stride..][..stride];
                fill_around::<V>(row, (start, len), f32::NEG_INFINITY);
                if let Some(slopes) = self.shape.alibi {
                    let slope = slopes.host()[head + r];
                    *max = add_bias(&mut row[..padded], slope, len - 1);
                }
                *max = V::splat(max.largest());
            }
            let factor = only_scales.then_some(scale);
            let weights = Weights { stride, padded, factor, is_coarse: self.as_words };
            sum = weights.of_scores(scores, max);
            let end = match self.as_words {
                true => num_positions.next_multiple_of(STEP_POSITIONS),
                false => num_positions,
            };
            for i in (padded..end).step_by(V::LANES) {
                for r in 0..R {
                    V::splat(0.0).store(at(scores, r, i));
                }
            }
            if self.as_words {
                scores.chunks_exact_mut(stride).for_each(|row| narrow_in_place(&mut row[..end]));
            }
        }
        for r in 0..R {
            // SAFETY: as above.
            unsafe {
                self.totals[row + r] = sum[r].sum();
                if let Some(sinks) = self.shape.sinks {
                    let sink = V::splat(sinks.host()[head + r]);
                    self.totals[row + r] += sink.sub(max[r]).exp().largest();
                }
            }
        }
    }
}

/// Constants that turn scores into weights.
struct Weights<V> {
    /// From a row of scores to the next.
    stride: usize,
    /// Positions, whole vectors of them.
    padded: usize,
    /// Factor of the scores, if they are not scaled yet.
    factor: Option<V>,
    /// They are rounded to bf16.
    is_coarse: bool,
}

impl<V: Vector> Weights<V> {
    /// e^(score - max) of R rows, in the place of the scores; gives their sums.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`, and rows have so many positions.
    #[inline(always)]
    unsafe fn of_scores<const R: usize>(&self, scores: &mut [f32], max: [V; R]) -> [V; R] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = [V::splat(0.0); R];
            for i in (0..self.padded).step_by(V::LANES) {
                for (r, sum) in sum.iter_mut().enumerate() {
                    let ptr = scores.as_mut_ptr().add(r * self.stride + i);
                    let score = V::load(ptr);
                    let score = match self.factor {
                        Some(factor) => score.mul(factor),
                        None => score,
                    };
                    let exponent = score.sub(max[r]);
                    let weight = match self.is_coarse {
                        true => exponent.coarse_exp(),
                        false => exponent.exp(),
                    };
                    weight.store(ptr);
                    *sum = sum.add(weight);
                }
            }
            sum
        }
    }
}

/// scores[i] += slope * (i - own), where `own` is the index of the query's own position. Gives the
/// largest, lane by lane.
///
/// # Safety
/// The CPU has the instructions of `V`; the scores are whole groups of 16.
#[inline(always)]
unsafe fn add_bias<V: Vector>(scores: &mut [f32], slope: f32, own: usize) -> V {
    // SAFETY: the caller's promise; vectors have 16 lanes at most, a divisor of 16.
    unsafe {
        let (lanes, slope) = (V::load(LANE_INDICES.as_ptr()), V::splat(slope));
        let mut largest = V::splat(f32::NEG_INFINITY);
        for (i, chunk) in scores.chunks_exact_mut(V::LANES).enumerate() {
            // Integers below 2^24, so exact wherever the scores begin.
            let distance = lanes.add(V::splat((i * V::LANES) as f32 - own as f32));
            let score = distance.mul_add(slope, V::load(chunk.as_ptr()));
            score.store(chunk.as_mut_ptr());
            largest = largest.max(score);
        }
        largest
    }
}

/// Sets what is before `start`, and 16 scores from `end` on.
///
/// # Safety
/// The CPU has the instructions of `V`.
#[inline(always)]
unsafe fn fill_around<V: Vector>(row: &mut [f32], (start, end): (usize, usize), value: f32) {
    if start > 0 {
        row[..start].fill(value);
    }
    for chunk in row[end..][..KV_GROUP_TOKENS].chunks_exact_mut(V::LANES) {
        // SAFETY: the caller's promise.
        unsafe { V::splat(value).store(chunk.as_mut_ptr()) };
    }
}
