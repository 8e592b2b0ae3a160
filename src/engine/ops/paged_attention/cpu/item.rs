//! One item of attention: scores, softmax, weighted sum.

use crate::gemm::Widened;
use crate::gemm::panel::PanelElement;
use crate::shared_rows::SharedRows;
use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::pages::Pages;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::tiles::TileUnit;
use vllm_batch_device::simd::{Kernel, Vector, dispatch};

use super::Task;
use super::by_tiles::TileRoom;
use super::plan::{Group, Item, Piece, Plan, Span};
use super::softmax::{Attended, Softmax};

/// Buffers of a thread, for the rows of one item.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// (rows, head_dim)
    pub queries: Vec<f32>,
    /// (rows, positions and padding), from a page on. Weights take their place, of f32, or as words
    /// of two bf16 in the first half of their row.
    pub scores: Pages<f32>,
    /// (rows, v_width) weighted values.
    pub values: Vec<f32>,
    /// (rows) sums of the weights.
    pub totals: Vec<f32>,
    pub tiles: TileRoom,
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
        if self.scores.len() < num_scores {
            self.scores = Pages::zeroed_huge(num_scores.next_power_of_two());
        }
        grow(&mut self.values, num_rows * kv.v_width());
        grow(&mut self.totals, num_rows);
    }
}

/// The rows are (tokens of the group, heads of the item).
pub(super) struct ItemTask<'a, E> {
    pub task: Task<'a>,
    pub plan: &'a Plan,
    pub item: Item,
    /// Item that this thread most likely takes next.
    pub next: Option<Item>,
    pub k: &'a [E],
    pub v: &'a [E],
    pub out: SharedRows,
}

/// A span of an item, and what the next item has in its place: it is brought meanwhile.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub span: &'a Span,
    /// With the KV head.
    pub next: Option<(&'a Span, u32)>,
}

impl<E: PanelElement> ItemTask<'_, E> {
    pub(super) fn run(&self, workspace: &mut Workspace) {
        let group = self.plan.group(self.item);
        let mut widened = Widened::new();
        match self.tiles().is_some() {
            true => self.narrow_queries(group, workspace),
            false => self.gather_queries(group, workspace),
        }
        for part in self.parts(group) {
            self.score(part, group, workspace, &mut widened);
        }
        for piece in self.plan.pieces(group) {
            self.softmax(piece, group, workspace);
        }
        let num_values = group.num_tokens as usize * self.num_heads() * self.task.kv.v_width();
        workspace.values[..num_values].fill(0.0);
        for part in self.parts(group) {
            self.weigh(part, group, workspace, &mut widened);
        }
        self.write(group, workspace);
    }

    /// The spans, upward for every row.
    fn parts(&self, group: Group) -> impl Iterator<Item = Part<'_>> {
        let (plan, next) = (self.plan, self.next);
        let of_next = next.map_or(&[][..], |next| plan.spans(plan.group(next)));
        plan.spans(group).iter().enumerate().map(move |(index, span)| {
            let next = next.and_then(|next| Some((of_next.get(index)?, next.kv_head)));
            Part { span, next }
        })
    }

    /// Query heads of the item.
    pub(super) fn num_heads(&self) -> usize {
        self.item.num_heads as usize
    }

    /// First row of some tokens of the group, and the end of their rows.
    pub(super) fn rows_of(&self, (token, end): (u32, u32)) -> (usize, usize) {
        (token as usize * self.num_heads(), end as usize * self.num_heads())
    }

    /// Tiles that multiply its rows, if any.
    pub(super) fn tiles(&self) -> Option<TileUnit> {
        self.task.cpu.isa.bf16_products().tiles_of(E::DTYPE)
    }

    /// Columns of the item's query heads in a row of heads of this width.
    pub(super) fn columns(&self, head_width: usize) -> std::ops::Range<usize> {
        let start = self.item.first_head as usize * head_width;
        start..start + self.num_heads() * head_width
    }

    fn gather_queries(&self, group: Group, workspace: &mut Workspace) {
        let columns = self.columns(self.task.kv.head_dim);
        for piece in self.plan.pieces(group) {
            let out = &mut workspace.queries[piece.at as usize * columns.len()..];
            for (token, out) in (piece.tokens()).zip(out.chunks_exact_mut(columns.len())) {
                out.copy_from_slice(&self.task.qkv.row(token)[columns.clone()]);
            }
        }
    }

    /// Index of a position's block, in units of (block, head).
    pub(super) fn block_index(&self, seq: u32, kv_head: u32, position: usize) -> usize {
        let kv = self.task.kv;
        let block = self.task.batch.block_table(seq as usize)[position / kv.block_size];
        block as usize * kv.num_kv_heads + kv_head as usize
    }

    /// Scores of a piece's rows become weights.
    fn softmax(&self, piece: &Piece, group: Group, workspace: &mut Workspace) {
        let [start, end, base, stride] =
            [piece.start, piece.last_end, group.base, group.stride].map(|n| n as usize);
        let attended = Attended {
            base,
            start,
            end,
            stride,
            num_heads: self.num_heads(),
            batch: self.task.batch,
            first_token: piece.token as usize,
        };
        let (row, end) = self.rows_of((piece.at, piece.at + piece.num_tokens));
        let Workspace { scores, totals, .. } = workspace;
        let softmax = Softmax {
            shape: self.task.shape,
            first_head: self.item.first_head as usize,
            attended,
            scores: &mut scores[row * stride..end * stride],
            totals: &mut totals[row..end],
            as_words: self.tiles().is_some(),
        };
        dispatch(self.task.cpu.isa, softmax);
    }

    /// out = values / totals. A zero loses its sign: see `weigh`.
    fn write(&self, group: Group, workspace: &mut Workspace) {
        let (v_dim, v_width) = (self.task.kv.v_dim, self.task.kv.v_width());
        let first_column = self.columns(v_dim).start;
        let (_, num_rows) = self.rows_of((0, group.num_tokens));
        let Workspace { values, totals, .. } = workspace;
        let values = &mut values[..num_rows * v_width];
        dispatch(self.task.cpu.isa, Normalize { values: &mut *values, v_width, totals });
        for piece in self.plan.pieces(group) {
            let (row, end) = self.rows_of((piece.at, piece.at + piece.num_tokens));
            let values = values[row * v_width..end * v_width].chunks_exact(v_width);
            for (row, values) in values.enumerate() {
                let token = piece.token as usize + row / self.num_heads();
                let column = first_column + row % self.num_heads() * v_dim;
                // SAFETY: this item alone writes these heads of its tokens.
                unsafe { self.out.put((token, column), &values[..v_dim]) };
            }
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
