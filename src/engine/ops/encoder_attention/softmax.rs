//! Scores of a query to weights.

use std::ops::Range;

use vllm_batch_device::simd::{Kernel, Vector};

use super::super::soft_cap::capped;
use super::EncoderAttentionShape;

/// Queries of a head, one behind the other, of a text of `len` tokens.
#[derive(Clone, Copy)]
pub(super) struct Queries<'a> {
    pub shape: EncoderAttentionShape<'a>,
    pub head: usize,
    pub len: usize,
    /// The first one's position.
    pub first: usize,
    pub num: usize,
    /// Weights are rounded to bf16 where they are used.
    pub is_coarse: bool,
}

impl Queries<'_> {
    /// What some of them attend to, in whole panels of so many positions.
    pub(super) fn seen(&self, panel_width: usize) -> Range<usize> {
        let shape = self.shape;
        let end = shape.seen(self.first + self.num - 1).end.min(self.len);
        let start = shape.seen(self.first).start;
        start / panel_width * panel_width..end.next_multiple_of(panel_width)
    }

    /// Scores of query r over the positions `seen`, whole vectors of them, to weights
    /// e^(score - max), which are 0 where the query does not look; gives their sum.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    pub(super) unsafe fn softmax<V: Vector>(
        &self,
        r: usize,
        seen: &Range<usize>,
        scores: &mut [f32],
    ) -> f32 {
        let (len, EncoderAttentionShape { scale, soft_cap, bias, .. }) = (self.len, self.shape);
        let query = self.first + r;
        let bias = bias.map(|bias| &bias.of_query(self.head, query, len)[seen.start..]);
        // SAFETY: the caller's promise; scores are whole vectors, and a bias has as many values.
        unsafe {
            let factor = V::splat(scale);
            for (index, chunk) in scores.chunks_exact_mut(V::LANES).enumerate() {
                let mut score = V::load(chunk.as_ptr()).mul(factor);
                if let Some(cap) = soft_cap {
                    score = capped(score, cap);
                }
                if let Some(bias) = bias {
                    score = score.add(V::load(bias[index * V::LANES..][..V::LANES].as_ptr()));
                }
                score.store(chunk.as_mut_ptr());
            }
            let own = self.shape.seen(query);
            scores[..own.start - seen.start].fill(f32::NEG_INFINITY);
            scores[own.end.min(len) - seen.start..].fill(f32::NEG_INFINITY);
            let mut max = V::splat(f32::NEG_INFINITY);
            for chunk in scores.chunks_exact(V::LANES) {
                max = max.max(V::load(chunk.as_ptr()));
            }
            let (max, mut sum) = (V::splat(max.largest()), V::splat(0.0));
            for chunk in scores.chunks_exact_mut(V::LANES) {
                let exponent = V::load(chunk.as_ptr()).sub(max);
                let weight = match self.is_coarse {
                    true => exponent.coarse_exp(),
                    false => exponent.exp(),
                };
                weight.store(chunk.as_mut_ptr());
                sum = sum.add(weight);
            }
            sum.sum()
        }
    }
}

/// The same for all of them, whose scores lie so far apart, from position 0 on.
pub(super) struct Softmax<'a> {
    pub queries: Queries<'a>,
    pub seen: Range<usize>,
    pub scores: &'a mut [f32],
    pub stride: usize,
    pub totals: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let rows = self.scores.chunks_exact_mut(self.stride).zip(self.totals);
        for (r, (scores, total)) in rows.enumerate() {
            // SAFETY: dispatched for this CPU.
            *total =
                unsafe { self.queries.softmax::<V>(r, &self.seen, &mut scores[self.seen.clone()]) };
        }
    }
}
