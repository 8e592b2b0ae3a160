//! One head of one text by tiles of bf16, which q, K, V and weights are rounded to.
//!
//! Sums are in steps of 32 inputs, or of 32 positions from the first of the text on: what is
//! outside of a step counts as zeros. So a text's bits are those of the text alone, however many
//! queries go together.

use crate::gemm::next_panel;
use crate::gemm::tiles::{RowTiles, TileProduct};
use crate::gemm::words::{WordRows, narrow, room, room_len};
use crate::shared_rows::SharedRows;
use vllm_batch_device::Tensor;
use vllm_batch_device::simd::tiles::{
    BLOCK_TILES, STEP_WORDS, TILE_COLUMNS, TILE_ROWS, TileUnit, tile_stride,
};
use vllm_batch_device::simd::{Isa, dispatch};

use super::softmax::{Queries, Softmax};
use super::{EncoderAttentionShape, grow};

/// Queries that share every panel of K and V: as many as go through one at once.
const MAX_QUERIES: usize = BLOCK_TILES * TILE_ROWS;

/// A step's positions are a panel's.
const _: () = assert!(2 * STEP_WORDS == TILE_COLUMNS);

/// Buffers of a thread.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    /// Panels of positions: (panels, words of head_dim, [`TILE_COLUMNS`])
    keys: Vec<u32>,
    /// Panels of columns: (panels, words of positions, [`TILE_COLUMNS`])
    values: Vec<u32>,
    /// A key, or two positions' values.
    row: Vec<u32>,
    /// Values of two positions by turns.
    by_turns: Vec<f32>,
    /// Queries or weights as words.
    rows: Vec<u32>,
    /// (queries, positions), then weights.
    scores: Vec<f32>,
    /// (queries, columns)
    sums: Vec<f32>,
}

impl Workspace {
    /// Makes room for a text of `len` tokens; what is there is lost.
    pub(super) fn reserve(&mut self, len: usize, head_dim: usize) {
        let (positions, columns) = (padded(len), padded(head_dim));
        grow(&mut self.keys, positions * head_dim.div_ceil(2));
        grow(&mut self.values, positions / 2 * columns);
        grow(&mut self.row, columns);
        grow(&mut self.by_turns, 2 * columns);
        let num_words = positions.max(head_dim).div_ceil(2);
        grow(&mut self.rows, room_len(MAX_QUERIES, tile_stride(num_words)));
        grow(&mut self.scores, MAX_QUERIES * positions);
        grow(&mut self.sums, MAX_QUERIES * columns);
    }
}

/// Positions or columns in whole panels.
fn padded(num: usize) -> usize {
    num.next_multiple_of(TILE_COLUMNS)
}

/// Attention of one head from the tokens `first..first + num_queries` to `first..first + len`.
pub(super) struct TilePass<'a> {
    pub qkv: &'a Tensor,
    pub shape: EncoderAttentionShape<'a>,
    pub head: usize,
    pub first: usize,
    pub num_queries: usize,
    pub len: usize,
    pub isa: Isa,
    pub unit: TileUnit,
    pub out: SharedRows,
}

impl TilePass<'_> {
    pub(super) fn run(&self, workspace: &mut Workspace) {
        self.pack(workspace);
        for query in (0..self.num_queries).step_by(MAX_QUERIES) {
            let num = MAX_QUERIES.min(self.num_queries - query);
            let Self { shape, head, len, .. } = *self;
            let queries = Queries { shape, head, len, first: query, num, is_coarse: true };
            let tiles = RowTiles::new(self.unit, (0, num));
            let mut totals = [0.0; MAX_QUERIES];
            self.score(queries, &tiles, workspace);
            let softmax = Softmax {
                queries,
                seen: queries.seen(TILE_COLUMNS),
                scores: &mut workspace.scores[..num * padded(len)],
                stride: padded(len),
                totals: &mut totals[..num],
            };
            dispatch(self.isa, softmax);
            self.weigh(queries, &tiles, workspace);
            self.write(queries, &totals, workspace);
        }
    }

    /// Rounds K and V of the head into panels; what is past the last position or column is zero.
    fn pack(&self, workspace: &mut Workspace) {
        let head_dim = self.shape.heads.head_dim;
        let (num_words, columns) = (head_dim.div_ceil(2), padded(head_dim));
        let (k_start, v_start) = self.shape.key_and_value_of(self.head);
        let num_positions = padded(self.len);
        let Workspace { keys, values, row, by_turns, .. } = workspace;
        for position in 0..num_positions {
            let key = &mut row[..num_words];
            match position < self.len {
                true => {
                    let of_token = self.qkv.row(self.first + position);
                    narrow(&of_token[k_start..k_start + head_dim], key);
                }
                false => key.fill(0),
            }
            let panel = position / TILE_COLUMNS * num_words * TILE_COLUMNS;
            let places = keys[panel + position % TILE_COLUMNS..].iter_mut().step_by(TILE_COLUMNS);
            places.zip(key).for_each(|(place, word)| *place = *word);
        }
        by_turns[..2 * columns].fill(0.0);
        for pair in 0..num_positions / 2 {
            for of_two in 0..2 {
                let places = by_turns[of_two..].iter_mut().step_by(2);
                if 2 * pair + of_two >= self.len {
                    places.take(head_dim).for_each(|place| *place = 0.0);
                    continue;
                }
                let of_token = self.qkv.row(self.first + 2 * pair + of_two);
                let value = &of_token[v_start..v_start + head_dim];
                places.zip(value).for_each(|(place, value)| *place = *value);
            }
            narrow(&by_turns[..2 * columns], &mut row[..columns]);
            for (panel, words) in row[..columns].chunks_exact(TILE_COLUMNS).enumerate() {
                let at = (panel * num_positions / 2 + pair) * TILE_COLUMNS;
                values[at..at + TILE_COLUMNS].copy_from_slice(words);
            }
        }
    }

    /// scores (queries, positions) = q Kᵀ of what is seen.
    fn score(&self, queries: Queries<'_>, tiles: &RowTiles, workspace: &mut Workspace) {
        let head_dim = self.shape.heads.head_dim;
        let (num_words, positions) = (head_dim.div_ceil(2), padded(self.len));
        let stride = tile_stride(num_words);
        let Workspace { keys, rows, scores, .. } = workspace;
        let words = room(rows, queries.num, stride);
        for (query, words) in words.chunks_exact_mut(stride).take(queries.num).enumerate() {
            let of_token = self.qkv.row(self.first + queries.first + query);
            let (words, rest) = words.split_at_mut(num_words);
            narrow(&of_token[self.head * head_dim..][..head_dim], words);
            rest.fill(0);
        }
        let panel_len = num_words * TILE_COLUMNS;
        for position in queries.seen(TILE_COLUMNS).step_by(TILE_COLUMNS) {
            let keys = &keys[position / TILE_COLUMNS * panel_len..][..panel_len];
            let scores =
                &mut scores[position..(queries.num - 1) * positions + position + TILE_COLUMNS];
            let product = TileProduct {
                x: WordRows { words, stride },
                words: keys,
                first_word: 0,
                is_first: true,
                bias: None,
                next: next_panel(keys.as_ptr(), panel_len, false),
                out: (scores.as_mut_ptr(), positions),
            };
            // SAFETY: the slice of the scores reaches a panel's width in the last row.
            unsafe { tiles.run(self.isa, &product) };
        }
    }

    /// sums (queries, columns) = weights V of what is seen.
    fn weigh(&self, queries: Queries<'_>, tiles: &RowTiles, workspace: &mut Workspace) {
        let (columns, positions) = (padded(self.shape.heads.head_dim), padded(self.len));
        let seen = queries.seen(TILE_COLUMNS);
        let num_words = seen.len() / 2;
        let stride = tile_stride(num_words);
        let Workspace { values, rows, scores, sums, .. } = workspace;
        let words = room(rows, queries.num, stride);
        let weights = scores.chunks_exact(positions).take(queries.num);
        for (weights, words) in weights.zip(words.chunks_exact_mut(stride)) {
            narrow(&weights[seen.clone()], &mut words[..num_words]);
        }
        let panel_len = positions / 2 * TILE_COLUMNS;
        for panel in 0..columns / TILE_COLUMNS {
            let start = panel * panel_len + seen.start / 2 * TILE_COLUMNS;
            let values = &values[start..start + num_words * TILE_COLUMNS];
            let at = panel * TILE_COLUMNS;
            let sums = &mut sums[at..(queries.num - 1) * columns + at + TILE_COLUMNS];
            let product = TileProduct {
                x: WordRows { words, stride },
                words: values,
                first_word: 0,
                is_first: true,
                bias: None,
                next: next_panel(values.as_ptr(), panel_len, false),
                out: (sums.as_mut_ptr(), columns),
            };
            // SAFETY: the slice of the sums reaches a panel's width in the last row.
            unsafe { tiles.run(self.isa, &product) };
        }
    }

    /// out = sums / totals.
    fn write(&self, queries: Queries<'_>, totals: &[f32], workspace: &mut Workspace) {
        let head_dim = self.shape.heads.head_dim;
        let sums = workspace.sums.chunks_exact_mut(padded(head_dim)).zip(totals);
        for (r, (sums, total)) in sums.take(queries.num).enumerate() {
            let factor = 1.0 / total;
            let values = &mut sums[..head_dim];
            values.iter_mut().for_each(|value| *value *= factor);
            let token = self.first + queries.first + r;
            // SAFETY: this item alone writes this head of its tokens.
            unsafe { self.out.put((token, self.head * head_dim), values) };
        }
    }
}
