//! The two products of attention by tiles of bf16: queries and weights are rounded to bf16, K and V
//! are taken as the cache has them.
//!
//! Sums over positions are in steps of 32, which begin at multiples of 32 whatever a row's first
//! position is: what is outside counts as zeros, and a step of zeros changes no sum but the sign of
//! a zero. So a row's bits are those of the row alone, however its positions are cut into spans.

use crate::gemm::panel::PanelElement;
use crate::gemm::tiles::{RowTiles, StepsProduct, TileProduct};
use crate::gemm::words::{WordRows, as_words, narrow, room, room_len};
use vllm_batch_base::config::DType;
use vllm_batch_device::kv_cache::KvLayerShape;
use vllm_batch_device::simd::tiles::{PANEL_STEP, STEP_WORDS, TILE_COLUMNS, TileUnit, tile_stride};

use super::item::{ItemTask, Part, Workspace};
use super::plan::Group;

/// Positions of a step.
pub(super) const STEP_POSITIONS: usize = 2 * STEP_WORDS;

/// Positions whose V is found at a time.
const CHUNK: usize = 512;

/// Buffers of a thread.
#[derive(Debug, Default)]
pub(super) struct TileRoom {
    /// Rows of queries, as words of two bf16.
    queries: Vec<u32>,
    /// A panel of K in whole rows of columns, or what is joined of V.
    panel: Vec<u32>,
}

impl TileRoom {
    /// Makes room for `num_rows` rows; what is there is lost.
    pub(super) fn reserve(&mut self, num_rows: usize, kv: &KvLayerShape) {
        let num_words = kv.head_dim.div_ceil(2);
        let queries = room_len(num_rows, tile_stride(num_words));
        if self.queries.len() < queries {
            self.queries.resize(queries.next_power_of_two(), 0);
        }
        let panel = (num_words.max(CHUNK / 2)).next_multiple_of(STEP_WORDS) * TILE_COLUMNS;
        if self.panel.len() < panel {
            self.panel.resize(panel, 0);
        }
    }
}

/// Elements of two bytes as words of two of them.
fn pairs<E: PanelElement>(values: &[E]) -> &[u32] {
    assert_eq!(E::DTYPE, DType::BFloat16);
    as_words(values)
}

impl<E: PanelElement> ItemTask<'_, E> {
    /// Rounds the queries of the group.
    pub(super) fn narrow_queries(&self, group: Group, workspace: &mut Workspace) {
        let head_dim = self.task.kv.head_dim;
        let num_words = head_dim.div_ceil(2);
        let stride = tile_stride(num_words);
        let (_, num_rows) = self.rows_of((0, group.num_tokens));
        let columns = self.columns(head_dim);
        let words = room(&mut workspace.tiles.queries, num_rows, stride);
        for piece in self.plan.pieces(group) {
            let (first, end) = self.rows_of((piece.at, piece.at + piece.num_tokens));
            let rows = words[first * stride..end * stride].chunks_exact_mut(stride);
            let heads = piece
                .tokens()
                .flat_map(|token| self.task.qkv.row(token)[columns.clone()].chunks_exact(head_dim));
            for (query, words) in heads.zip(rows) {
                let (words, rest) = words.split_at_mut(num_words);
                narrow(query, words);
                rest.fill(0);
            }
        }
    }

    /// As `score`.
    pub(super) fn score_by_tiles(
        &self,
        unit: TileUnit,
        part: Part<'_>,
        group: Group,
        workspace: &mut Workspace,
    ) {
        let kv = self.task.kv;
        let (width, stride) = (kv.k_panel_width(), group.stride as usize);
        let (row, end_row) = self.rows_of(part.span.tokens);
        let Workspace { scores, tiles: TileRoom { queries, panel: spread }, .. } = workspace;
        let num_words = kv.head_dim.div_ceil(2);
        let word_stride = tile_stride(num_words);
        let (_, num_rows) = self.rows_of((0, group.num_tokens));
        let words = &room(queries, num_rows, word_stride)[row * word_stride..];
        let x = WordRows { words, stride: word_stride };
        let tiles = RowTiles::new(unit, (0, end_row - row));
        let (start, end) = (part.span.start as usize, part.span.end as usize);
        for position in (start - start % width..end).step_by(width) {
            let keys = pairs(self.keys_of(part.span.seq, position));
            let keys = match width == TILE_COLUMNS {
                true => keys,
                false => {
                    let spread = &mut spread[..num_words * TILE_COLUMNS];
                    spread_columns(keys, width, spread);
                    &*spread
                }
            };
            let at = position - group.base as usize;
            // Columns behind a narrower panel's are those of the next one, or padding.
            let scores = &mut scores[row * stride + at..(end_row - 1) * stride + at + TILE_COLUMNS];
            let product = TileProduct {
                x,
                words: keys,
                first_word: 0,
                is_first: true,
                bias: None,
                next: self.values_of(part.span, position),
                out: (scores.as_mut_ptr(), stride),
            };
            // SAFETY: the slice of the scores reaches a panel's width in the last row.
            unsafe { tiles.run(self.task.cpu.isa, &product) };
        }
    }

    /// As `weigh_rows`.
    pub(super) fn weigh_by_tiles(
        &self,
        unit: TileUnit,
        (tokens, group): ((u32, u32), Group),
        (start, end): (usize, usize),
        part: Part<'_>,
        workspace: &mut Workspace,
    ) {
        let (v_width, stride) = (self.task.kv.v_width(), group.stride as usize);
        let (first, end_row) = self.rows_of(tokens);
        let Workspace { scores, values, tiles: TileRoom { panel: joined, .. }, .. } = workspace;
        let tiles = RowTiles::new(unit, (0, end_row - first));
        let x = WordRows { words: &as_words(scores)[first * stride..], stride };
        let mut position = start - start % STEP_POSITIONS;
        while position < end {
            let until = (position + CHUNK).min(end);
            let num_steps = (until - position).div_ceil(STEP_POSITIONS);
            let joined = &mut joined[..num_steps * PANEL_STEP];
            for panel in 0..self.num_value_panels() {
                let of_seq = (part.span.seq, panel);
                let steps = self.steps_of_values(of_seq, (start.max(position), until), joined);
                let from = first * v_width + panel * TILE_COLUMNS;
                let to = (end_row - 1) * v_width + (panel + 1) * TILE_COLUMNS;
                let product = StepsProduct {
                    x,
                    first_word: (position - group.base as usize) / 2,
                    steps: &steps[..num_steps],
                    next: self.next_keys(part, position, panel),
                    out: (values[from..to].as_mut_ptr(), v_width),
                };
                // SAFETY: the slice reaches a panel's width in the last row, and steps are whole.
                unsafe { tiles.run_steps(self.task.cpu.isa, &product) };
            }
            position = until;
        }
    }

    /// Where V of some positions of a sequence is, of each step: in the cache, or what has not all
    /// of its positions, or lies in several blocks, joined. At most [`CHUNK`] positions.
    fn steps_of_values(
        &self,
        (seq, panel): (u32, usize),
        (start, end): (usize, usize),
        joined: &mut [u32],
    ) -> [*const u32; CHUNK / STEP_POSITIONS] {
        let kv = self.task.kv;
        let base = start - start % STEP_POSITIONS;
        let mut steps = [std::ptr::null(); _];
        let joined = joined.chunks_exact_mut(PANEL_STEP);
        for ((index, step), joined) in steps.iter_mut().enumerate().zip(joined) {
            let first = base + index * STEP_POSITIONS;
            let behind = first + STEP_POSITIONS;
            let lies_together = kv.block_size.is_multiple_of(STEP_POSITIONS);
            *step = match lies_together && start <= first && behind <= end {
                true => {
                    let block = self.block_index(seq, self.item.kv_head, first) * kv.v_len();
                    let row = panel * kv.block_size + first % kv.block_size;
                    pairs(&self.v[block + row * TILE_COLUMNS..][..2 * PANEL_STEP]).as_ptr()
                }
                false => {
                    self.join_values((seq, panel), (start.max(first), end.min(behind)), joined);
                    joined.as_ptr()
                }
            };
        }
        steps
    }

    /// V of some positions of a sequence, as a whole step: (words, columns) of a panel. What is
    /// outside is zero.
    fn join_values(
        &self,
        (seq, panel): (u32, usize),
        (start, end): (usize, usize),
        joined: &mut [u32],
    ) {
        let kv = self.task.kv;
        let base = start - start % STEP_POSITIONS;
        let mut position = start - start % 2;
        joined[..(position - base) / 2 * TILE_COLUMNS].fill(0);
        while position < end {
            let run = self.run_in_block(position, end);
            let block = self.block_index(seq, self.item.kv_head, position) * kv.v_len();
            let first = block + (panel * kv.block_size + position % kv.block_size) * TILE_COLUMNS;
            let num = run.next_multiple_of(2) * TILE_COLUMNS;
            let from = pairs(&self.v[first..first + num]);
            joined[(position - base) / 2 * TILE_COLUMNS..][..from.len()].copy_from_slice(from);
            position += run;
        }
        clear_before(joined, start - base);
        let num_whole = (end - base) / 2 * TILE_COLUMNS;
        let (words, rest) = joined[num_whole..].split_at_mut(TILE_COLUMNS * ((end - base) % 2));
        // The second of the last two positions is behind the end.
        words.iter_mut().for_each(|word| *word &= 0xffff);
        rest.fill(0);
    }
}

/// The first `num` rows of [`TILE_COLUMNS`] values are zeros; words are of two rows.
fn clear_before(words: &mut [u32], num: usize) {
    let (whole, rest) = words.split_at_mut(num / 2 * TILE_COLUMNS);
    whole.fill(0);
    if num % 2 == 1 {
        rest[..TILE_COLUMNS].iter_mut().for_each(|word| *word &= 0xffff_0000);
    }
}

/// (words, width) as (words, [`TILE_COLUMNS`]); columns that are not there are zeros.
fn spread_columns(words: &[u32], width: usize, spread: &mut [u32]) {
    let rows = spread.chunks_exact_mut(TILE_COLUMNS);
    for (from, to) in words.chunks_exact(width).zip(rows) {
        to[..width].copy_from_slice(from);
        to[width..].fill(0);
    }
}
