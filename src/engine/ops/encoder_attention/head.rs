//! One head of one row: K and V by panels, then a few queries at a time.

use std::ops::Range;

use crate::shared_rows::SharedRows;
use vllm_batch_device::Tensor;
use vllm_batch_device::simd::{Kernel, Vector};

use super::softmax::Queries;
use super::{EncoderAttentionShape, grow};

/// Queries that share every load of K and V.
const TILE: usize = 4;

/// Positions and columns are padded to so many: the widest panel, two vectors of 16.
const WIDEST_PANEL: usize = 32;

/// Buffers of a thread.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Panels of positions: (panels, head_dim, panel width)
    keys: Vec<f32>,
    /// Panels of columns: (panels, positions, panel width)
    values: Vec<f32>,
    /// (TILE, positions), then weights.
    scores: Vec<f32>,
    /// (TILE, columns)
    sums: Vec<f32>,
}

impl Workspace {
    /// Makes room for a row of `len` tokens; what is there is lost.
    pub(super) fn reserve(&mut self, len: usize, head_dim: usize) {
        let positions = len.next_multiple_of(WIDEST_PANEL);
        let columns = head_dim.next_multiple_of(WIDEST_PANEL);
        grow(&mut self.keys, positions * head_dim);
        grow(&mut self.values, positions * columns);
        grow(&mut self.scores, TILE * positions);
        grow(&mut self.sums, TILE * columns);
    }
}

/// Attention of one head from the tokens `first..first + num_queries` to `first..first + len`.
pub(super) struct HeadPass<'a> {
    pub qkv: &'a Tensor,
    pub shape: EncoderAttentionShape<'a>,
    pub head: usize,
    pub first: usize,
    pub num_queries: usize,
    pub len: usize,
    pub workspace: &'a mut Workspace,
    pub out: SharedRows,
}

impl Kernel for HeadPass<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(mut self) {
        let mut query = 0;
        // SAFETY: dispatched for this CPU.
        unsafe {
            self.pack::<V>();
            while query + TILE <= self.num_queries {
                self.queries::<V, TILE>(query);
                query += TILE;
            }
            while query < self.num_queries {
                self.queries::<V, 1>(query);
                query += 1;
            }
        }
    }
}

impl HeadPass<'_> {
    /// Copies K and V of the head into panels; what is past the last position or column is zero.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn pack<V: Vector>(&mut self) {
        let width = 2 * V::LANES;
        let head_dim = self.shape.heads.head_dim;
        let (k_start, v_start) = self.shape.key_and_value_of(self.head);
        let padded = self.len.next_multiple_of(width);
        let Workspace { keys, values, .. } = &mut *self.workspace;
        for position in 0..padded {
            let panel = &mut keys[position / width * width * head_dim..][..width * head_dim];
            let lane = position % width;
            if position >= self.len {
                panel[lane..].iter_mut().step_by(width).for_each(|key| *key = 0.0);
                continue;
            }
            let row = self.qkv.row(self.first + position);
            let key = &row[k_start..k_start + head_dim];
            for (out, key) in panel[lane..].iter_mut().step_by(width).zip(key) {
                *out = *key;
            }
            let value = &row[v_start..v_start + head_dim];
            for (panel, value) in value.chunks(width).enumerate() {
                let out = &mut values[(panel * self.len + position) * width..][..width];
                if value.len() == width {
                    // SAFETY: the caller's promise; both are two vectors.
                    unsafe { copy_pair::<V>(value.as_ptr(), out.as_mut_ptr()) };
                } else {
                    out[..value.len()].copy_from_slice(value);
                    out[value.len()..].fill(0.0);
                }
            }
        }
    }

    /// Attention of R queries from `query` on. How many there are changes no element.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn queries<V: Vector, const R: usize>(&mut self, query: usize) {
        let Self { shape, head, len, .. } = *self;
        let queries = Queries { shape, head, len, first: query, num: R, is_coarse: false };
        let width = 2 * V::LANES;
        let (seen, padded) = (queries.seen(width), len.next_multiple_of(width));
        // SAFETY: the caller's promise; what is seen is whole panels.
        unsafe {
            self.score::<V, R>(query, &seen);
            let mut totals = [0.0; R];
            for (r, total) in totals.iter_mut().enumerate() {
                let scores = &mut self.workspace.scores[r * padded..][seen.clone()];
                *total = queries.softmax::<V>(r, &seen, scores);
            }
            self.weigh::<V, R>(query, totals, &seen);
        }
    }

    /// scores (R, positions) = q Kᵀ of what is seen, summed over head_dim upward.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn score<V: Vector, const R: usize>(&mut self, query: usize, seen: &Range<usize>) {
        let (head_dim, width) = (self.shape.heads.head_dim, 2 * V::LANES);
        let padded = self.len.next_multiple_of(width);
        let queries: [&[f32]; R] = std::array::from_fn(|r| {
            &self.qkv.row(self.first + query + r)[self.head * head_dim..][..head_dim]
        });
        let Workspace { keys, scores, .. } = &mut *self.workspace;
        let scores = &mut scores[..R * padded];
        let keys = &keys[seen.start * head_dim..seen.end * head_dim];
        for (start, panel) in seen.clone().step_by(width).zip(keys.chunks_exact(width * head_dim)) {
            // SAFETY: the caller's promise; a panel has `width` keys for each of head_dim, and a
            // row of scores has room for whole panels.
            unsafe {
                let mut sums = [[V::splat(0.0); 2]; R];
                for (dim, keys) in panel.chunks_exact(width).enumerate() {
                    let low = V::load(keys.as_ptr());
                    let high = V::load(keys.as_ptr().add(V::LANES));
                    for (sum, query) in sums.iter_mut().zip(&queries) {
                        let q = V::splat(*query.get_unchecked(dim));
                        *sum = [q.mul_add(low, sum[0]), q.mul_add(high, sum[1])];
                    }
                }
                for (r, sum) in sums.iter().enumerate() {
                    let at = scores[r * padded + start..][..width].as_mut_ptr();
                    sum[0].store(at);
                    sum[1].store(at.add(V::LANES));
                }
            }
        }
    }

    /// out = weights V / totals, summed over positions upward.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`.
    #[inline(always)]
    unsafe fn weigh<V: Vector, const R: usize>(
        &mut self,
        query: usize,
        totals: [f32; R],
        seen: &Range<usize>,
    ) {
        let head_dim = self.shape.heads.head_dim;
        let (len, width) = (self.len, 2 * V::LANES);
        let padded = len.next_multiple_of(width);
        let columns = head_dim.next_multiple_of(width);
        let Workspace { values, scores, sums: of_rows, .. } = &mut *self.workspace;
        let seen = seen.start..seen.end.min(len);
        let weights: [&[f32]; R] = std::array::from_fn(|r| &scores[r * padded..][seen.clone()]);
        let of_rows = &mut of_rows[..R * columns];
        for (panel, values) in values.chunks_exact(len * width).take(columns / width).enumerate() {
            let values = &values[seen.start * width..seen.end * width];
            // SAFETY: the caller's promise; a panel has `width` values for each position, and a row
            // of sums has whole panels.
            unsafe {
                let mut sums = [[V::splat(0.0); 2]; R];
                for (position, values) in values.chunks_exact(width).enumerate() {
                    let low = V::load(values.as_ptr());
                    let high = V::load(values.as_ptr().add(V::LANES));
                    for (sum, weights) in sums.iter_mut().zip(&weights) {
                        let weight = V::splat(*weights.get_unchecked(position));
                        *sum = [weight.mul_add(low, sum[0]), weight.mul_add(high, sum[1])];
                    }
                }
                for (r, (sum, total)) in sums.iter().zip(totals).enumerate() {
                    let factor = V::splat(1.0 / total);
                    let at = of_rows[r * columns + panel * width..][..width].as_mut_ptr();
                    sum[0].mul(factor).store(at);
                    sum[1].mul(factor).store(at.add(V::LANES));
                }
            }
        }
        for (r, values) in of_rows.chunks_exact(columns).enumerate() {
            let place = (self.first + query + r, self.head * head_dim);
            // SAFETY: this item alone writes this head of its tokens.
            unsafe { self.out.put(place, &values[..head_dim]) };
        }
    }
}

/// Two vectors from one place to another: a call of the C library's copy takes longer.
///
/// # Safety
/// The CPU has the instructions of `V`, and there is room for two vectors at both places.
#[inline(always)]
unsafe fn copy_pair<V: Vector>(from: *const f32, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        V::load(from).store(to);
        V::load(from.add(V::LANES)).store(to.add(V::LANES));
    }
}
