//! The two products of attention: scores of rows by panels of K, and rows of weights by V.
//!
//! `score` and `weigh_rows`, with their twins in `by_tiles`, are the only places that know the
//! arithmetic; what rows and positions they are given changes no bit.

use crate::gemm::panel::PanelElement;
use crate::gemm::{MAX_INPUTS, PanelProduct, Tiling, Widened};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};

use super::by_tiles::STEP_POSITIONS;
use super::item::{ItemTask, Part, Workspace};
use super::plan::{Group, Span};

/// Some rows of an item, and where their weights and values lie.
#[derive(Clone, Copy)]
struct Rows<'a> {
    first: usize,
    end: usize,
    group: Group,
    tiling: &'a Tiling,
}

impl<E: PanelElement> ItemTask<'_, E> {
    /// scores (rows, positions) = q Kᵀ of a span, a panel of positions at a time.
    pub(super) fn score(
        &self,
        part: Part<'_>,
        group: Group,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        if let Some(unit) = self.tiles() {
            return self.score_by_tiles(unit, part, group, workspace);
        }
        let kv = self.task.kv;
        let (width, head_dim, stride) = (kv.k_panel_width(), kv.head_dim, group.stride as usize);
        let (row, end_row) = self.rows_of(part.span.tokens);
        let queries = &workspace.queries[row * head_dim..end_row * head_dim];
        let tiling = Tiling::new::<E>(self.task.cpu.isa, width < kv.panel_width, end_row - row);
        let (start, end) = (part.span.start as usize, part.span.end as usize);
        // A window may begin anywhere; all other spans begin with a panel.
        let start = start - start % width;
        for position in (start..end).step_by(width) {
            let keys = self.keys_of(part.span.seq, position);
            let at = position - group.base as usize;
            let scores =
                &mut workspace.scores[row * stride + at..(end_row - 1) * stride + at + width];
            for first in (0..head_dim).step_by(MAX_INPUTS) {
                let num_inputs = MAX_INPUTS.min(head_dim - first);
                let product = PanelProduct {
                    tiling: &tiling,
                    x: (queries[first..].as_ptr(), head_dim),
                    weights: keys[first * width..].as_ptr(),
                    inputs: (0, num_inputs),
                    out: (scores.as_mut_ptr(), stride),
                    is_first: first == 0,
                    bias: std::ptr::null(),
                    next: Some(self.values_of(part.span, position)),
                    brings_rows: false,
                };
                // SAFETY: queries are (rows, head_dim), the panel holds all of head_dim, and the
                // slice of the scores reaches a panel's width in the last row. The device was made
                // for this CPU.
                unsafe { product.run(widened) };
            }
        }
    }

    /// values (rows, v_width) += weights V of a span. All rows take the positions of the last
    /// token: where a row does not attend, its weight is zero and changes no sum but the sign of a
    /// zero. A value that is not finite would get into such rows, so then what is past the first
    /// token's position is taken for each token by itself.
    pub(super) fn weigh(
        &self,
        part: Part<'_>,
        group: Group,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        let span = part.span;
        let [start, common, end] = [span.start, span.common, span.end].map(|n| n as usize);
        let tokens = (span.tokens, group);
        // Where a product may start over: between pairs, or between steps of tiles.
        let cut = match self.tiles() {
            Some(_) => (common - common % STEP_POSITIONS).max(start),
            None => common & !1,
        };
        if common == end || self.are_finite(span, cut & !1, end) {
            self.weigh_rows(tokens, (start, end), part, workspace, widened);
            return;
        }
        self.weigh_rows(tokens, (start, cut), part, workspace, widened);
        // Such a span is of one piece.
        let Some(piece) = self.plan.pieces(group).iter().find(|piece| piece.at == span.tokens.0)
        else {
            unreachable!("a span with an end for each token is of one piece");
        };
        for (token, in_batch) in (span.tokens.0..span.tokens.1).zip(piece.tokens()) {
            let end = self.task.shape.attended_end(self.task.batch, in_batch) as usize;
            let tokens = ((token, token + 1), group);
            self.weigh_rows(tokens, (cut, end), part, workspace, widened);
        }
    }

    /// Whether all values of some positions are finite; the first is even.
    fn are_finite(&self, span: &Span, mut position: usize, end: usize) -> bool {
        let kv = self.task.kv;
        let mut sum = 0.0;
        while position < end {
            let (offset, run) = (position % kv.block_size, self.run_in_block(position, end));
            let block = self.block_index(span.seq, self.item.kv_head, position) * kv.v_len();
            for panel in (0..kv.v_len()).step_by(kv.block_size * kv.panel_width) {
                let start = block + panel + offset * kv.panel_width;
                let len = run.next_multiple_of(2) * kv.panel_width;
                let values = &self.v[start..start + len];
                dispatch(self.task.cpu.isa, SumOfZeros { values, sum: &mut sum });
            }
            position += run;
        }
        sum == 0.0
    }

    /// The panel of K that has a position of a sequence.
    pub(super) fn keys_of(&self, seq: u32, position: usize) -> &[E] {
        let kv = self.task.kv;
        let width = kv.k_panel_width();
        let panel_len = kv.head_dim.next_multiple_of(2) * width;
        let start = self.block_index(seq, self.item.kv_head, position) * kv.k_len();
        &self.k[start + position % kv.block_size / width * panel_len..][..panel_len]
    }

    /// Positions up to `end` that lie in the block of this one.
    pub(super) fn run_in_block(&self, position: usize, end: usize) -> usize {
        let block_size = self.task.kv.block_size;
        (block_size - position % block_size).min(end - position)
    }

    /// values += weights V for the rows of some tokens and some positions of a span.
    fn weigh_rows(
        &self,
        (tokens, group): ((u32, u32), Group),
        positions: (usize, usize),
        part: Part<'_>,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        if let Some(unit) = self.tiles() {
            return self.weigh_by_tiles(unit, (tokens, group), positions, part, workspace);
        }
        let (first, end) = self.rows_of(tokens);
        let tiling = Tiling::new::<E>(self.task.cpu.isa, false, end - first);
        let rows = Rows { first, end, group, tiling: &tiling };
        if tiling.keeps() {
            self.weigh_joined(rows, positions, part, workspace, widened);
            return;
        }
        let (mut position, end) = positions;
        while position < end {
            let run = self.run_in_block(position, end).min(MAX_INPUTS - 1);
            for panel in 0..self.num_value_panels() {
                let product = self.values_product(rows, (position, run), panel, part, workspace);
                // SAFETY: see `values_product`.
                unsafe { product.run(widened) };
            }
            position += run;
        }
    }

    /// As `weigh_rows`, for rows that share what is widened: up to `MAX_INPUTS` positions at once.
    fn weigh_joined(
        &self,
        rows: Rows<'_>,
        (mut position, end): (usize, usize),
        part: Part<'_>,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        while position < end {
            let first_input = position % 2;
            let base = position - first_input;
            let end = end.min(base + MAX_INPUTS);
            for panel in 0..self.num_value_panels() {
                let mut product = self.values_product(rows, (position, 1), panel, part, workspace);
                let mut at = position;
                while at < end {
                    let run = self.run_in_block(at, end);
                    let piece = self.values_product(rows, (at, run), panel, part, workspace);
                    // SAFETY: see `values_product`.
                    unsafe { piece.run_piece(widened, at - at % 2 - base) };
                    at += run;
                }
                product.inputs = (first_input, end - base);
                // SAFETY: see `values_product`; these are the positions of all pieces.
                unsafe { product.run_joined(widened) };
            }
            position = end;
        }
    }

    /// Panels of V's columns.
    pub(super) fn num_value_panels(&self) -> usize {
        self.task.kv.v_width() / self.task.kv.panel_width
    }

    /// Some rows' weights of `run` positions of a block, by a panel of their values. It is safe to
    /// run: the slices reach the last position of the last row, of the panel and of the values, and
    /// the device was made for this CPU.
    fn values_product<'t>(
        &self,
        rows: Rows<'t>,
        (position, run): (usize, usize),
        panel: usize,
        part: Part<'_>,
        workspace: &mut Workspace,
    ) -> PanelProduct<'t, E> {
        let kv = self.task.kv;
        let (width, v_width, stride) = (kv.panel_width, kv.v_width(), rows.group.stride as usize);
        let num_rows = rows.end - rows.first;
        let is_odd = position % 2;
        let first = position - is_odd;
        let x = rows.first * stride + first - rows.group.base as usize;
        let weights = &workspace.scores[x..x + (num_rows - 1) * stride + is_odd + run];
        let block = self.block_index(part.span.seq, self.item.kv_head, position) * kv.v_len();
        let start = block + (panel * kv.block_size + first % kv.block_size) * width;
        let panel_len = (is_odd + run).next_multiple_of(2) * width;
        let at = rows.first * v_width + panel * width;
        let values = &mut workspace.values[at..at + (num_rows - 1) * v_width + width];
        PanelProduct {
            tiling: rows.tiling,
            x: (weights.as_ptr(), stride),
            weights: self.v[start..start + panel_len].as_ptr(),
            inputs: (is_odd, is_odd + run),
            out: (values.as_mut_ptr(), v_width),
            is_first: false,
            bias: std::ptr::null(),
            next: Some(self.next_keys(part, position, panel)),
            brings_rows: false,
        }
    }

    /// The V that belongs to a panel of K, to prefetch.
    pub(super) fn values_of(&self, span: &Span, position: usize) -> (*const u8, usize) {
        let kv = self.task.kv;
        let panels = kv.block_size / kv.k_panel_width();
        let len = kv.v_len() / panels;
        let start = self.block_index(span.seq, self.item.kv_head, position) * kv.v_len();
        let part = position % kv.block_size / kv.k_panel_width();
        let values = &self.v[start + part * len..start + (part + 1) * len];
        (values.as_ptr().cast(), size_of_val(values))
    }

    /// The K that the next item needs from the block of a position, to prefetch: the part that a
    /// panel of V stands for.
    pub(super) fn next_keys(
        &self,
        part: Part<'_>,
        position: usize,
        panel: usize,
    ) -> (*const u8, usize) {
        let kv = self.task.kv;
        let next = part.next.filter(|(span, _)| position < span.end as usize);
        let Some((span, kv_head)) = next else { return (self.k.as_ptr().cast(), 0) };
        let len = kv.k_len() / self.num_value_panels();
        let start = self.block_index(span.seq, kv_head, position) * kv.k_len() + panel * len;
        let keys = &self.k[start..start + len];
        (keys.as_ptr().cast(), size_of_val(keys))
    }
}

/// sum += 0 * values: zero if they are all finite, else NaN.
struct SumOfZeros<'a, E> {
    /// Pairs of rows of a panel.
    values: &'a [E],
    sum: &'a mut f32,
}

impl<E: PanelElement> Kernel for SumOfZeros<'_, E> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU; rows of a panel are two vectors.
        unsafe {
            let zero = V::splat(0.0);
            let mut sums = [zero; 2];
            for pair in self.values.chunks_exact(4 * V::LANES) {
                for row in [E::load_row(pair.as_ptr()), E::load_odd_row(pair.as_ptr())] {
                    let row: [V; 2] = row;
                    sums = [row[0].mul_add(zero, sums[0]), row[1].mul_add(zero, sums[1])];
                }
            }
            *self.sum += sums[0].add(sums[1]).sum();
        }
    }
}
