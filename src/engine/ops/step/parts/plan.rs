//! Plan of the split rows: a rule over the step's shape, on which no bit depends.
//!
//! A row that decodes is a chain of splits of 256 positions, and its result is these splits merged
//! upward. Where one block of the GPU would have a longer chain than its share of the step, the
//! chain is cut. Where rows begin with the same splits, one unit computes these for all of them.

mod chunks;

use std::ops::Range;

use crate::batch::Batch;
use crate::paged_attention::Sharing;
use crate::step::{AttentionWork, NO_SLOT};

/// Positions of a split of kernels/attention.cuh.
pub(super) const SPLIT: u32 = 256;

/// Splits of a row that is worth cutting, at least: the launch that merges takes as long as two or
/// so.
const MIN_CUT_SPLITS: usize = 4;

/// Cost of a split of several rows, in splits of one row: it has up to four times as many
/// products, and fewer copies under way. An estimate.
const SHARED_PRICE: usize = 2;

/// Sizes that decide which parts pay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub num_kv_heads: usize,
    /// Tokens of a unit of several rows.
    pub shared_tokens: usize,
    /// Blocks of the kernels that are resident at once.
    pub decode_blocks: usize,
    pub shared_blocks: usize,
    pub block_size: usize,
    pub max_slots: usize,
}

/// `struct SharedWork` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedWork {
    /// First token in the list of tokens.
    pub first: u32,
    pub num_tokens: u32,
    /// First entry of one of the sequences in `block_tables`.
    pub seq: u32,
    /// Positions, both where splits end.
    pub start: u32,
    pub end: u32,
    /// Slot of the token that the first split goes to.
    pub place: u32,
}

/// `struct SharedToken` of kernels/attention_params.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedToken {
    pub token: u32,
    /// First slot of the token.
    pub slot: u32,
}

/// `struct MergeWork` of kernels/attention_splits.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MergeWork {
    pub token: u32,
    pub slot: u32,
    pub num_slots: u32,
}

/// A sequence that decodes, or a token of a chunk that is cut.
#[derive(Clone, Copy, Debug)]
struct Row {
    token: u32,
    /// First entry in `block_tables`.
    seq: u32,
    seq_len: u32,
    /// Leading splits that are also those of the row before.
    depth: usize,
    /// Leading splits that it computes with others.
    shared: usize,
    /// First slot of what it computes by itself; None: that is all of it.
    slot: Option<u32>,
}

impl Row {
    /// Splits that it computes by itself.
    fn rest(&self) -> usize {
        self.seq_len.div_ceil(SPLIT) as usize - self.shared
    }
}

/// Rows that begin with the same splits.
#[derive(Clone, Debug)]
struct Group {
    rows: Range<usize>,
    num_splits: usize,
}

/// The parts of a step, but for the units of single rows.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// First entries in `block_tables` of sequences whose chunks are in parts, upward: their units
    /// of prefill are not computed.
    pub cut_seqs: Vec<u32>,
    pub shared: Vec<SharedWork>,
    pub shared_tokens: Vec<SharedToken>,
    pub merges: Vec<MergeWork>,
    rows: Vec<Row>,
    groups: Vec<Group>,
    num_slots: usize,
}

impl Plan {
    /// Replaces the plan by that of a step, whose `prefill` would be these units as a whole; what
    /// each row computes by itself goes to `units`. Without `merges` they are whole rows.
    pub(super) fn make(
        &mut self,
        (batch, prefill): (&Batch, &[AttentionWork]),
        sharing: &mut Sharing,
        shape: Shape,
        units: &mut Vec<AttentionWork>,
    ) {
        self.cut_seqs.clear();
        self.shared.clear();
        self.shared_tokens.clear();
        self.merges.clear();
        self.rows.clear();
        self.groups.clear();
        self.num_slots = 0;
        let is_short = !batch.seq_lens.iter().any(|len| *len >= SPLIT);
        // Tokens that see others behind them have no parts.
        if is_short || !batch.attended_ends.is_empty() {
            return;
        }
        sharing.find(batch, shape.block_size);
        self.find_rows(batch, sharing, shape.block_size);
        let mut first = 0;
        while first < self.rows.len() {
            let is_apart = |row: &Row| row.depth == 0;
            let others = self.rows[first + 1..].iter().position(is_apart);
            let end = others.map_or(self.rows.len(), |others| first + 1 + others);
            find_groups(&self.rows, first..end, shape.shared_tokens, &mut self.groups);
            first = end;
        }
        self.share(shape);
        self.cut_chunks(batch, shape, prefill);
        self.cut(shape, units);
    }

    /// The sequences that decode, those that share beside each other.
    fn find_rows(&mut self, batch: &Batch, sharing: &Sharing, block_size: usize) {
        let mut depth = usize::MAX;
        for place in 0..sharing.len() {
            let seq = sharing.seq(place);
            depth = depth.min(sharing.depth(place));
            let (start, end) = (batch.query_start_loc[seq], batch.query_start_loc[seq + 1]);
            if end - start != 1 {
                continue;
            }
            self.rows.push(Row {
                token: start,
                seq: (seq * batch.max_blocks_per_seq) as u32,
                seq_len: batch.seq_lens[seq],
                depth: depth * block_size / SPLIT as usize,
                shared: 0,
                slot: None,
            });
            depth = usize::MAX;
        }
        // Those before it do not decode.
        if let Some(first) = self.rows.first_mut() {
            first.depth = 0;
        }
    }

    /// Lists what the groups compute, if that pays and there are slots for it.
    fn share(&mut self, shape: Shape) {
        let num_units = |group: &Group| group.rows.len().div_ceil(shape.shared_tokens);
        let sum = |of: &dyn Fn(&Group) -> usize| self.groups.iter().map(of).sum::<usize>();
        let saved = shape.num_kv_heads * sum(&|group| group.rows.len() * group.num_splits);
        let taken = shape.num_kv_heads * sum(&|group| num_units(group) * group.num_splits);
        let rest = sum(&|group| {
            let rests = self.rows[group.rows.clone()].iter().map(Row::rest);
            rests.map(|rest| rest - group.num_splits).sum()
        });
        let num_slots =
            |part: usize| rest + sum(&|group| group.rows.len() * slots_of(group.num_splits, part));
        let mut part = taken.div_ceil(shape.shared_blocks).max(1);
        if num_slots(part) > shape.max_slots {
            part = usize::MAX;
        }
        let longest = self.groups.iter().map(|group| group.num_splits.min(part)).max();
        // In splits of one row, on all blocks; one more of each block for what merges.
        let price = SHARED_PRICE * (taken + longest.unwrap_or(0) * shape.shared_blocks);
        if num_slots(part) > shape.max_slots || saved <= price + shape.decode_blocks {
            self.groups.clear();
        }
        for index in 0..self.groups.len() {
            let group = self.groups[index].clone();
            self.add_group(&group, part, shape.shared_tokens);
        }
    }

    /// Units for each `part` splits and each `max_tokens` rows of a group.
    fn add_group(&mut self, group: &Group, part: usize, max_tokens: usize) {
        let num_splits = group.num_splits;
        let num_shared_slots = slots_of(num_splits, part);
        for chunk in self.rows[group.rows.clone()].chunks_mut(max_tokens) {
            let first = self.shared_tokens.len() as u32;
            let of_part = |start: usize| SharedWork {
                first,
                num_tokens: chunk.len() as u32,
                seq: chunk[0].seq,
                start: start as u32 * SPLIT,
                end: start.saturating_add(part).min(num_splits) as u32 * SPLIT,
                place: if start == 0 { 0 } else { (start - part + 1) as u32 },
            };
            self.shared.extend((0..num_splits).step_by(part.min(num_splits)).map(of_part));
            for row in chunk {
                row.shared = num_splits;
                let (slot, num_slots) = (self.num_slots, num_shared_slots + row.rest());
                row.slot = Some((slot + num_shared_slots) as u32);
                self.num_slots += num_slots;
                let (token, slot) = (row.token, slot as u32);
                self.shared_tokens.push(SharedToken { token, slot });
                self.merges.push(MergeWork { token, slot, num_slots: num_slots as u32 });
            }
        }
    }

    /// Lists what rows compute by themselves, cut into parts where that pays and there are slots.
    fn cut(&mut self, shape: Shape, units: &mut Vec<AttentionWork>) {
        let num_splits: usize = self.rows.iter().map(Row::rest).sum();
        let longest = self.rows.iter().map(Row::rest).max().unwrap_or(0);
        let share = (num_splits * shape.num_kv_heads).div_ceil(shape.decode_blocks);
        let pays = longest >= MIN_CUT_SPLITS && longest > 2 * share;
        let part = if pays { share.div_ceil(2) } else { usize::MAX };
        for row in &mut self.rows {
            let rest = row.rest();
            if row.slot.is_none() && rest > part && self.num_slots + rest <= shape.max_slots {
                let (token, slot) = (row.token, self.num_slots as u32);
                row.slot = Some(slot);
                self.num_slots += rest;
                self.merges.push(MergeWork { token, slot, num_slots: rest as u32 });
            }
            let part = if row.slot.is_some() { part.min(rest).max(1) } else { rest };
            for first in (0..rest).step_by(part) {
                let start = (row.shared + first) as u32 * SPLIT;
                units.push(AttentionWork {
                    token: row.token,
                    num_tokens: 1,
                    seq: row.seq,
                    position: row.seq_len - 1,
                    start,
                    end: row.seq_len.min(start + part as u32 * SPLIT),
                    slot: row.slot.map_or(NO_SLOT, |slot| slot + first as u32),
                });
            }
        }
    }
}

/// Slots of a row that computes so many splits with others, `part` in a unit: what the first unit
/// computes is merged at once.
fn slots_of(num_splits: usize, part: usize) -> usize {
    1 + num_splits.saturating_sub(part)
}

/// Cuts rows, each of which shares with the one before, into groups that save most; gives how many
/// splits of a row's they save.
fn find_groups(
    rows: &[Row],
    range: Range<usize>,
    max_tokens: usize,
    groups: &mut Vec<Group>,
) -> usize {
    let Some(num_splits) = rows[range.start + 1..range.end].iter().map(|row| row.depth).min()
    else {
        return 0;
    };
    let price = SHARED_PRICE * range.len().div_ceil(max_tokens);
    let together = range.len().saturating_sub(price) * num_splits;
    let num_groups = groups.len();
    let (mut apart, mut first) = (0, range.start);
    while first < range.end {
        let others = &rows[first + 1..range.end];
        let end = others.iter().position(|row| row.depth == num_splits);
        let end = end.map_or(range.end, |others| first + 1 + others);
        apart += find_groups(rows, first..end, max_tokens, groups);
        first = end;
    }
    if together > apart {
        groups.truncate(num_groups);
        groups.push(Group { rows: range, num_splits });
    }
    together.max(apart)
}

#[cfg(test)]
mod tests;
