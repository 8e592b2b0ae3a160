//! Plan of attention: items, the rows of each, and the positions that rows share.
//!
//! A group is the query tokens of one sequence or of several that begin with the same blocks. It
//! has an item for each KV head, and the rows of an item are the group's tokens in the query heads
//! of that KV head. What they attend to is cut into spans: the positions that all sequences share
//! belong to all rows, those that some share to these, and what is behind to each by itself. So
//! every K and V is read once for all rows of an item that attend to it, and a row meets its
//! positions upward.

use std::ops::Range;

use crate::gemm::even_tile;
use vllm_batch_device::kv_cache::{KV_GROUP_TOKENS, KvLayerShape};
use vllm_batch_device::simd::tiles::TILE_ROWS;

use super::super::sharing::Sharing;
use super::Task;
use super::by_tiles::STEP_POSITIONS;

/// Rows of an item at most, but for those of one token: enough to share the widening of K and V.
const ITEM_ROWS: usize = 96;

/// Scores of an item at most, if it has several tokens: 4 MB for each thread.
const MAX_ITEM_SCORES: usize = 1 << 20;

/// Query tokens of a sequence in an item at most: all of them take the positions of the last one.
const MAX_ITEM_TOKENS: usize = 32;

/// Query heads of an item of one token at most: where many share a KV head, a token that is decoded
/// alone takes several threads.
const ITEM_HEADS: usize = 16;

/// Scores of an item of several sequences that stay in the L2 cache, 512 kB: they are written once
/// and read three times, while K and V go by.
const CACHED_SCORES: usize = 1 << 17;

/// Rows that several sequences' items have where they can, whatever becomes of the two rules
/// beside. With r rows a byte of f32 K or V takes r / 2 operations. A core of those measured does
/// some 5 operations in the time of a byte from memory, so 12 rows hide it, and 12 is the tallest
/// tile.
const MIN_SHARED_ROWS: usize = 12;

/// Items of a step for each thread that sequences are put together for: the last ones then leave
/// threads idle for a ninth of the time at most.
const ITEMS_PER_THREAD: usize = 8;

/// Sequences are put together where they share at least one part of so many of the longer one's
/// positions. Less saves little, and all scores of the group are in memory at once.
const SHARED_PART: usize = 4;

/// Scores between rows: softmax fills so many behind a row's last one, and rows of some lengths
/// would else all lie in the same sets of the cache.
const SCORE_PADDING: usize = KV_GROUP_TOKENS;

/// Scores that a row takes up, over so many positions.
fn score_stride(num_positions: usize, kv: &KvLayerShape) -> usize {
    num_positions.next_multiple_of(kv.panel_width) + SCORE_PADDING
}

/// Consecutive query tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub seq: u32,
    /// The first one in the flat axis.
    pub token: u32,
    pub num_tokens: u32,
    /// Tokens of the group before it.
    pub at: u32,
    /// First position that it attends to; tokens that begin elsewhere are not in it.
    pub start: u32,
    /// Where what the first and the last token attend to ends.
    pub first_end: u32,
    pub last_end: u32,
    /// Leading positions that it shares with the piece before, in blocks of both, if they are of
    /// one group.
    depth: u32,
}

impl Piece {
    /// Tokens of the group in the flat axis.
    pub(super) fn tokens(&self) -> Range<usize> {
        self.token as usize..(self.token + self.num_tokens) as usize
    }
}

/// Positions that some rows of an item attend to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Whose rows: these tokens of the group.
    pub tokens: (u32, u32),
    /// The sequence in whose blocks K and V are found.
    pub seq: u32,
    pub start: u32,
    pub end: u32,
    /// Up to here all rows attend to all positions. Behind, to those before their token's end.
    pub common: u32,
}

/// Tokens that are computed together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pieces: (u32, u32),
    spans: (u32, u32),
    pub num_tokens: u32,
    /// Scores of a row are kept from this position on, a panel's first.
    pub base: u32,
    /// Scores between rows.
    pub stride: u32,
}

/// A group for some query heads, which share one KV head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    group: u32,
    pub kv_head: u32,
    pub first_head: u32,
    pub num_heads: u32,
}

/// The items of a layer's attention.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pieces: Vec<Piece>,
    spans: Vec<Span>,
    groups: Vec<Group>,
    pub items: Vec<Item>,
    /// Most rows and scores of an item.
    pub max_rows: usize,
    pub max_scores: usize,
}

impl Plan {
    pub(super) fn group(&self, item: Item) -> Group {
        self.groups[item.group as usize]
    }

    pub(super) fn pieces(&self, group: Group) -> &[Piece] {
        &self.pieces[group.pieces.0 as usize..group.pieces.1 as usize]
    }

    /// Upward for every row.
    pub(super) fn spans(&self, group: Group) -> &[Span] {
        &self.spans[group.spans.0 as usize..group.spans.1 as usize]
    }

    /// Replaces the plan by that of a step's layer.
    pub(super) fn make(&mut self, task: &Task<'_>, sharing: &Sharing) {
        self.pieces.clear();
        self.spans.clear();
        self.groups.clear();
        self.items.clear();
        (self.max_rows, self.max_scores) = (0, 0);
        let mut end = 0;
        while end < sharing.len() {
            let first = end;
            end = (first + 1..sharing.len())
                .find(|place| shared_positions(task, sharing, *place) == 0)
                .unwrap_or(sharing.len());
            match end - first {
                1 => self.add_sequence(task, sharing.seq(first)),
                _ => self.add_sharing(task, sharing, first..end),
            }
        }
    }

    /// A sequence that shares nothing.
    fn add_sequence(&mut self, task: &Task<'_>, seq: usize) {
        let (start, end) = tokens_of(task, seq);
        let max_tokens = (max_rows(task, seq) / task.heads_per_kv()).clamp(1, MAX_ITEM_TOKENS);
        let mut token = start;
        while token < end {
            // Tokens that begin to attend at different positions have nothing to share.
            let alike = task.shape.reach.num_alike(task.batch.positions[token] as usize);
            let num_tokens = (end - token).min(max_tokens).min(alike.unwrap_or(max_tokens));
            self.add_piece(task, (seq, 0), token..token + num_tokens);
            self.close_group(task);
            token += num_tokens;
        }
    }

    /// Sequences that begin with the same blocks, each with the one before it.
    fn add_sharing(&mut self, task: &Task<'_>, sharing: &Sharing, places: Range<usize>) {
        let seqs = places.clone().map(|place| sharing.seq(place));
        let longest = seqs.clone().map(|seq| task.batch.seq_lens[seq]).max().unwrap_or(0);
        let num_tokens = seqs.map(|seq| tokens_of(task, seq)).map(|(start, end)| end - start);
        let num_tokens: usize = num_tokens.sum();
        let num_groups = num_tokens.div_ceil(shared_tokens(task, longest as usize));
        let max_tokens = num_tokens.div_ceil(num_groups);
        let mut num_tokens = 0;
        for place in places {
            let seq = sharing.seq(place);
            let (start, end) = tokens_of(task, seq);
            if num_tokens > 0 && num_tokens + end - start > max_tokens {
                self.close_group(task);
                num_tokens = 0;
            }
            let depth = match num_tokens {
                0 => 0,
                _ => shared_positions(task, sharing, place),
            };
            self.add_piece(task, (seq, depth), start..end);
            num_tokens += end - start;
        }
        self.close_group(task);
    }

    /// Tokens for the group that is open, of a sequence that shares so many positions with the
    /// piece before.
    fn add_piece(&mut self, task: &Task<'_>, (seq, depth): (usize, usize), tokens: Range<usize>) {
        let first_piece = self.groups.last().map_or(0, |group| group.pieces.1 as usize);
        let at = self.pieces[first_piece..].last().map_or(0, |piece| piece.at + piece.num_tokens);
        let last = task.batch.positions[tokens.start] as usize + tokens.len() - 1;
        self.pieces.push(Piece {
            seq: seq as u32,
            token: tokens.start as u32,
            num_tokens: tokens.len() as u32,
            at,
            start: match last < task.batch.prefix_len(seq) {
                true => 0,
                false => task.shape.reach.first(last) as u32,
            },
            first_end: task.shape.attended_end(task.batch, tokens.start),
            last_end: task.shape.attended_end(task.batch, tokens.end - 1),
            depth: depth as u32,
        });
    }

    /// The pieces that were added are a group, with its items.
    fn close_group(&mut self, task: &Task<'_>) {
        let (kv, heads_per_kv) = (task.kv, task.heads_per_kv());
        let first_piece = self.groups.last().map_or(0, |group| group.pieces.1 as usize);
        let first_span = self.spans.len();
        let pieces = first_piece..self.pieces.len();
        let start = self.pieces[first_piece].start;
        self.add_spans(pieces.clone(), start);
        let end = self.pieces[pieces.clone()].iter().map(|piece| piece.last_end).max();
        let of_last = self.pieces[self.pieces.len() - 1];
        let num_tokens = of_last.at + of_last.num_tokens;
        let base = start - start % kv.panel_width.max(KV_GROUP_TOKENS) as u32;
        let stride = score_stride((end.unwrap_or(base) - base) as usize, &kv);
        // Every piece is one token: it is decoded.
        let num_parts = match num_tokens as usize == pieces.len() {
            true => heads_per_kv.div_ceil(ITEM_HEADS),
            false => 1,
        };
        for part in 0..task.shape.num_kv_heads * num_parts {
            let (kv_head, part) = (part / num_parts, part % num_parts);
            let (first, num_heads) = even_tile(heads_per_kv, num_parts, part);
            self.items.push(Item {
                group: self.groups.len() as u32,
                kv_head: kv_head as u32,
                first_head: (kv_head * heads_per_kv + first) as u32,
                num_heads: num_heads as u32,
            });
        }
        self.groups.push(Group {
            pieces: (pieces.start as u32, pieces.end as u32),
            spans: (first_span as u32, self.spans.len() as u32),
            num_tokens,
            base,
            stride: stride as u32,
        });
        let num_rows = num_tokens as usize * heads_per_kv.div_ceil(num_parts);
        self.max_rows = self.max_rows.max(num_rows);
        // Tiles read as many rows behind the last one as they have.
        self.max_scores = self.max_scores.max((num_rows + TILE_ROWS) * stride);
    }

    /// The positions of some pieces from `start` on: those that all of them share, then those of
    /// the ones that share more.
    fn add_spans(&mut self, pieces: Range<usize>, start: u32) {
        let first = self.pieces[pieces.start];
        let Some(shared) = self.pieces[pieces.start + 1..pieces.end].iter().map(|p| p.depth).min()
        else {
            let tokens = (first.at, first.at + first.num_tokens);
            let (end, common) = (first.last_end, first.first_end);
            self.spans.push(Span { tokens, seq: first.seq, start, end, common });
            return;
        };
        let last = self.pieces[pieces.end - 1];
        let tokens = (first.at, last.at + last.num_tokens);
        self.spans.push(Span { tokens, seq: first.seq, start, end: shared, common: shared });
        let mut next = pieces.start;
        while next < pieces.end {
            let own = next;
            next = (own + 1..pieces.end)
                .find(|piece| self.pieces[*piece].depth == shared)
                .unwrap_or(pieces.end);
            self.add_spans(own..next, shared);
        }
    }
}

/// Tokens of a sequence in the flat axis, but those that are left alone.
fn tokens_of(task: &Task<'_>, seq: usize) -> (usize, usize) {
    let starts = &task.batch.query_start_loc;
    let (start, end) = (starts[seq] as usize, starts[seq + 1] as usize);
    let num_computed = task.end.saturating_sub(task.batch.positions[start]) as usize;
    (start, end.min(start + num_computed))
}

/// Whether some token of a sequence does not attend to all before it.
fn is_cut(task: &Task<'_>, seq: usize) -> bool {
    let seq_len = task.batch.seq_lens[seq] as usize;
    task.shape.reach.most().is_some_and(|most| seq_len > most)
}

/// Rows of an item of one sequence, at most.
fn max_rows(task: &Task<'_>, seq: usize) -> usize {
    let stride = score_stride(task.batch.seq_lens[seq] as usize, &task.kv);
    ITEM_ROWS.min(MAX_ITEM_SCORES / stride)
}

/// Whether a sequence may be computed together with others: it has so few tokens that they leave
/// room, and all of them attend to all before them.
fn may_share(task: &Task<'_>, seq: usize) -> bool {
    let (start, end) = tokens_of(task, seq);
    let heads_per_kv = task.heads_per_kv();
    let is_short = match end - start {
        0 => false,
        1 => true,
        _ if heads_per_kv > ITEM_HEADS => false,
        num_tokens => 2 * num_tokens * heads_per_kv <= max_rows(task, seq),
    };
    is_short && !is_cut(task, seq)
}

/// Leading positions that the sequence at a place shares with the one before, if both are to be
/// computed together: whole blocks, before the own tokens of both.
fn shared_positions(task: &Task<'_>, sharing: &Sharing, place: usize) -> usize {
    let depth = sharing.depth(place);
    if depth == 0 {
        return 0;
    }
    let seqs = [sharing.seq(place - 1), sharing.seq(place)];
    let block_size = task.kv.block_size;
    let first = |seq: usize| task.batch.positions[tokens_of(task, seq).0] as usize;
    let before = first(seqs[0]).min(first(seqs[1]));
    let shared = (depth * block_size).min(before - before % block_size);
    // A step of tiles belongs to one span.
    let shared = shared - shared % STEP_POSITIONS;
    let longer = task.batch.seq_lens[seqs[0]].max(task.batch.seq_lens[seqs[1]]) as usize;
    match SHARED_PART * shared >= longer && seqs.iter().all(|seq| may_share(task, *seq)) {
        true => shared,
        false => 0,
    }
}

/// Tokens of a group of several sequences, at most, the longest of which has so many positions:
/// that the step has items enough for all threads and the scores stay in the cache, but also that
/// an item has rows enough to be worth it.
fn shared_tokens(task: &Task<'_>, longest: usize) -> usize {
    let num_parts = task.heads_per_kv().div_ceil(ITEM_HEADS);
    let num_heads = task.heads_per_kv().div_ceil(num_parts);
    let stride = score_stride(longest, &task.kv);
    let num_rows = task.batch.num_tokens() * task.shape.num_heads;
    let even = num_rows / (ITEMS_PER_THREAD * task.cpu.pool.num_threads());
    let cached = (CACHED_SCORES / stride).min(ITEM_ROWS);
    let rows = even.min(cached).max(MIN_SHARED_ROWS).min(MAX_ITEM_SCORES / stride);
    (rows / num_heads).max(1)
}
