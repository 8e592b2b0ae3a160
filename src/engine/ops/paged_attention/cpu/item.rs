//! One item of attention: scores, softmax, weighted sum.

use crate::engine::device::kv_cache::{KV_GROUP_TOKENS, KvLayerShape};
use crate::engine::device::simd::{Kernel, Vector, dispatch};
use crate::engine::device::tensor::SharedMut;
use crate::engine::ops::gemm::panel::PanelElement;
use crate::engine::ops::gemm::{MAX_INPUTS, PanelProduct, Tiling, Widened};

use super::softmax::Softmax;
use super::{Item, Task};

/// Scores between rows: softmax fills so many behind a row's last one, and rows of some lengths
/// would else all lie in the same sets of the cache.
const SCORE_PADDING: usize = KV_GROUP_TOKENS;

/// Buffers of a thread, for the rows of one item.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// (rows, head_dim)
    queries: Vec<f32>,
    /// (rows, positions and padding), then weights.
    scores: Vec<f32>,
    /// (rows, v_width) weighted values.
    values: Vec<f32>,
    /// (rows) sums of the weights.
    totals: Vec<f32>,
}

impl Workspace {
    /// Makes room for `num_rows` rows and `num_scores` scores; what is there is lost.
    pub(super) fn reserve(&mut self, num_rows: usize, num_scores: usize, kv: &KvLayerShape) {
        let grow = |buffer: &mut Vec<f32>, len: usize| {
            if buffer.len() < len {
                buffer.resize(len.next_power_of_two(), 0.0);
            }
        };
        grow(&mut self.queries, num_rows * kv.head_dim);
        grow(&mut self.scores, num_scores);
        grow(&mut self.values, num_rows * kv.v_width());
        grow(&mut self.totals, num_rows);
    }
}

/// Scores that a row takes up, over positions up to the last one, at most.
pub(super) fn score_stride(num_positions: usize, kv: &KvLayerShape) -> usize {
    num_positions.next_multiple_of(kv.panel_width) + kv.panel_width + SCORE_PADDING
}

pub(super) struct ItemTask<'a, E> {
    pub task: Task<'a>,
    pub item: Item,
    /// What this thread most likely takes next.
    pub next: Option<Item>,
    pub k: &'a [E],
    pub v: &'a [E],
    pub out: SharedMut<f32>,
}

/// The positions that an item's rows attend to, and where their scores are kept: from `base`, a
/// panel's first position, with `stride` scores to a row.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub base: usize,
    /// First position of the first row; the others begin there too, or are alone.
    pub start: usize,
    /// Positions of the first and the last token.
    pub first: usize,
    pub last: usize,
    pub stride: usize,
    /// Query heads of a token.
    pub num_heads: usize,
}

impl Span {
    fn new<E>(task: &ItemTask<'_, E>) -> Self {
        let Task { batch, shape, kv, .. } = task.task;
        let token = task.item.token as usize;
        let first = batch.positions[token] as usize;
        let last = first + task.item.num_tokens as usize - 1;
        let start = shape.sliding_window.map_or(0, |window| (last + 1).saturating_sub(window));
        let base = start - start % kv.panel_width.max(KV_GROUP_TOKENS);
        let stride = (last + 1 - base).next_multiple_of(kv.panel_width) + SCORE_PADDING;
        Self { base, start, first, last, stride, num_heads: task.item.num_heads as usize }
    }

    fn num_rows(&self) -> usize {
        (self.last + 1 - self.first) * self.num_heads
    }
}

/// Some rows of an item.
#[derive(Clone, Copy)]
struct Rows<'a> {
    first: usize,
    end: usize,
    tiling: &'a Tiling,
}

impl<E: PanelElement> ItemTask<'_, E> {
    pub(super) fn run(&self, workspace: &mut Workspace) {
        let span = Span::new(self);
        let isa = self.task.cpu.isa;
        let mut widened = Widened::new();
        self.gather_queries(workspace);
        self.score(span, workspace, &mut widened);
        let Workspace { scores, totals, .. } = workspace;
        let (shape, first_head) = (self.task.shape, self.item.first_head as usize);
        dispatch(isa, Softmax { shape, first_head, span, scores, totals });
        self.weigh(span, workspace, &mut widened);
        self.write(span, workspace);
    }

    /// Columns of the item's query heads in a row of heads of this width.
    fn columns(&self, head_width: usize) -> std::ops::Range<usize> {
        let start = self.item.first_head as usize * head_width;
        start..start + self.item.num_heads as usize * head_width
    }

    fn gather_queries(&self, workspace: &mut Workspace) {
        let columns = self.columns(self.task.kv.head_dim);
        for (index, out) in workspace
            .queries
            .chunks_exact_mut(columns.len())
            .take(self.item.num_tokens as usize)
            .enumerate()
        {
            let row = self.task.qkv.row(self.item.token as usize + index);
            out.copy_from_slice(&row[columns.clone()]);
        }
    }

    /// Index of a position's block, in units of (block, head), for an item's KV head.
    fn block_index(&self, item: Item, position: usize) -> usize {
        let kv = self.task.kv;
        let block = self.task.batch.block_table(item.seq as usize)[position / kv.block_size];
        block as usize * kv.num_kv_heads + item.kv_head as usize
    }

    /// The V that belongs to a panel of K, to prefetch.
    fn values_of(&self, position: usize) -> (*const u8, usize) {
        let kv = self.task.kv;
        let panels = kv.block_size / kv.k_panel_width();
        let len = kv.v_len() / panels;
        let start = self.block_index(self.item, position) * kv.v_len();
        let part = position % kv.block_size / kv.k_panel_width();
        let values = &self.v[start + part * len..start + (part + 1) * len];
        (values.as_ptr().cast(), size_of_val(values))
    }

    /// The K that the next item needs from the block of a position, to prefetch: part `part.0` of
    /// `part.1`.
    fn next_keys(&self, position: usize, part: (usize, usize)) -> (*const u8, usize) {
        let kv = self.task.kv;
        let Some(item) = self.next else { return (self.k.as_ptr().cast(), 0) };
        if position >= self.task.batch.seq_lens[item.seq as usize] as usize {
            return (self.k.as_ptr().cast(), 0);
        }
        let len = kv.k_len() / part.1;
        let start = self.block_index(item, position) * kv.k_len() + part.0 * len;
        let keys = &self.k[start..start + len];
        (keys.as_ptr().cast(), size_of_val(keys))
    }

    /// scores (rows, positions) = q Kᵀ, a panel of positions at a time.
    fn score(&self, span: Span, workspace: &mut Workspace, widened: &mut Widened) {
        let kv = self.task.kv;
        let (width, head_dim) = (kv.k_panel_width(), kv.head_dim);
        let num_rows = span.num_rows();
        let queries = &workspace.queries[..num_rows * head_dim];
        let tiling = Tiling::new::<E>(self.task.cpu.isa, width < kv.panel_width, num_rows);
        for position in (span.base..=span.last).step_by(width) {
            let panel = position % kv.block_size / width;
            let panel_len = head_dim.next_multiple_of(2) * width;
            let start = self.block_index(self.item, position) * kv.k_len() + panel * panel_len;
            let at = position - span.base;
            let scores = &mut workspace.scores[at..(num_rows - 1) * span.stride + at + width];
            let keys = &self.k[start..start + panel_len];
            for first in (0..head_dim).step_by(MAX_INPUTS) {
                let num_inputs = MAX_INPUTS.min(head_dim - first);
                let product = PanelProduct {
                    tiling: &tiling,
                    x: (queries[first..].as_ptr(), head_dim),
                    weights: keys[first * width..].as_ptr(),
                    inputs: (0, num_inputs),
                    out: (scores.as_mut_ptr(), span.stride),
                    is_first: first == 0,
                    bias: std::ptr::null(),
                    next: Some(self.values_of(position)),
                    brings_rows: false,
                };
                // SAFETY: queries are (rows, head_dim), the panel holds all of head_dim, and the
                // slice of the scores reaches a panel's width in the last row. The device was made
                // for this CPU.
                unsafe { product.run(widened) };
            }
        }
    }

    /// values (rows, v_width) = weights V. All rows take the positions of the last token: where a
    /// row does not attend, its weight is zero and changes no sum but the sign of a zero. A value
    /// that is not finite would get into such rows, so then what is past the first token's
    /// position is taken for each token by itself.
    fn weigh(&self, span: Span, workspace: &mut Workspace, widened: &mut Widened) {
        let width = self.task.kv.v_width();
        let num_rows = span.num_rows();
        workspace.values[..num_rows * width].fill(0.0);
        let end = span.last + 1;
        // Even, since that is where a product may start over.
        let common = (span.first + 1) & !1;
        if span.first == span.last || self.are_finite(common, end) {
            self.weigh_rows((0, num_rows), (span.start, end), span, workspace, widened);
            return;
        }
        self.weigh_rows((0, num_rows), (span.start, common), span, workspace, widened);
        for token in 0..=span.last - span.first {
            let rows = (token * span.num_heads, (token + 1) * span.num_heads);
            let positions = (common, span.first + token + 1);
            self.weigh_rows(rows, positions, span, workspace, widened);
        }
    }

    /// Whether all values of some positions are finite; the first is even.
    fn are_finite(&self, mut position: usize, end: usize) -> bool {
        let kv = self.task.kv;
        let mut sum = 0.0;
        while position < end {
            let (offset, run) = (position % kv.block_size, self.run_in_block(position, end));
            let block = self.block_index(self.item, position) * kv.v_len();
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

    /// Positions up to `end` that lie in the block of this one.
    fn run_in_block(&self, position: usize, end: usize) -> usize {
        let block_size = self.task.kv.block_size;
        (block_size - position % block_size).min(end - position)
    }

    /// values += weights V for some rows and positions.
    fn weigh_rows(
        &self,
        (row, end_row): (usize, usize),
        positions: (usize, usize),
        span: Span,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        let tiling = Tiling::new::<E>(self.task.cpu.isa, false, end_row - row);
        let rows = Rows { first: row, end: end_row, tiling: &tiling };
        if tiling.keeps() {
            self.weigh_joined(rows, positions, span, workspace, widened);
            return;
        }
        let (mut position, end) = positions;
        while position < end {
            let run = self.run_in_block(position, end).min(MAX_INPUTS - 1);
            for panel in 0..self.num_value_panels() {
                let product = self.values_product(rows, (position, run), panel, span, workspace);
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
        span: Span,
        workspace: &mut Workspace,
        widened: &mut Widened,
    ) {
        while position < end {
            let first_input = position % 2;
            let base = position - first_input;
            let end = end.min(base + MAX_INPUTS);
            for panel in 0..self.num_value_panels() {
                let mut product = self.values_product(rows, (position, 1), panel, span, workspace);
                let mut at = position;
                while at < end {
                    let run = self.run_in_block(at, end);
                    let piece = self.values_product(rows, (at, run), panel, span, workspace);
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
    fn num_value_panels(&self) -> usize {
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
        span: Span,
        workspace: &mut Workspace,
    ) -> PanelProduct<'t, E> {
        let kv = self.task.kv;
        let (width, v_width) = (kv.panel_width, kv.v_width());
        let num_rows = rows.end - rows.first;
        let is_odd = position % 2;
        let first = position - is_odd;
        let x = rows.first * span.stride + first - span.base;
        let weights = &workspace.scores[x..x + (num_rows - 1) * span.stride + is_odd + run];
        let block = self.block_index(self.item, position) * kv.v_len();
        let start = block + (panel * kv.block_size + first % kv.block_size) * width;
        let panel_len = (is_odd + run).next_multiple_of(2) * width;
        let at = rows.first * v_width + panel * width;
        let values = &mut workspace.values[at..at + (num_rows - 1) * v_width + width];
        PanelProduct {
            tiling: rows.tiling,
            x: (weights.as_ptr(), span.stride),
            weights: self.v[start..start + panel_len].as_ptr(),
            inputs: (is_odd, is_odd + run),
            out: (values.as_mut_ptr(), v_width),
            is_first: false,
            bias: std::ptr::null(),
            next: Some(self.next_keys(position, (panel, self.num_value_panels()))),
            brings_rows: false,
        }
    }

    /// out = values / totals. A zero loses its sign: see `weigh`.
    fn write(&self, span: Span, workspace: &mut Workspace) {
        let (v_dim, v_width) = (self.task.kv.v_dim, self.task.kv.v_width());
        let width = self.task.shape.num_heads * v_dim;
        let first_column = self.columns(v_dim).start;
        let Workspace { values, totals, .. } = workspace;
        let values = &mut values[..span.num_rows() * v_width];
        dispatch(self.task.cpu.isa, Normalize { values: &mut *values, v_width, totals });
        for (row, values) in values.chunks_exact(v_width).enumerate() {
            let token = self.item.token as usize + row / span.num_heads;
            let column = first_column + row % span.num_heads * v_dim;
            // SAFETY: this item alone writes these heads of its tokens.
            let out = unsafe { self.out.slice(token * width + column, v_dim) };
            out.copy_from_slice(&values[..v_dim]);
        }
    }
}

/// Each row of values by its total, as a product with the reciprocal.
struct Normalize<'a> {
    values: &'a mut [f32],
    v_width: usize,
    totals: &'a [f32],
}

impl Kernel for Normalize<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for (row, total) in self.values.chunks_exact_mut(self.v_width).zip(self.totals) {
            // SAFETY: dispatched for this CPU; rows are whole panels.
            unsafe {
                let factor = V::splat(1.0 / total);
                for chunk in row.chunks_exact_mut(V::LANES) {
                    let value = V::load(chunk.as_ptr()).add(V::splat(0.0));
                    value.mul(factor).store(chunk.as_mut_ptr());
                }
            }
        }
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
