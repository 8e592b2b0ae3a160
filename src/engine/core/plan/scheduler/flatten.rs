//! From a scheduled step to the flat `Batch` that an executor computes.

use std::ops::Range;

use super::{Scheduled, Scheduler};
use crate::plan::sequence::Sequence;
use crate::request::{Whole, axes_of};
use vllm_batch_ops::batch::{Batch, MediaRows};

/// States of a request's tokens that a step computes.
#[derive(Clone, Copy, Debug)]
pub struct StatesOf {
    /// Whose they are.
    pub request_id: u64,
    /// Rows of the step's batch.
    pub num_rows: usize,
    /// They reach its last token.
    pub ends: bool,
}

impl Scheduler {
    /// Flattens a step.
    pub fn batch(&self, scheduled: &Scheduled) -> Batch {
        let mut batch = Batch::default();
        self.refill(&mut batch, scheduled);
        batch
    }

    /// Whose states are rows of the step's batch, in the order of the rows, where states are all
    /// that is asked for.
    pub fn states_of<'a>(
        &'a self,
        scheduled: &'a Scheduled,
    ) -> impl Iterator<Item = StatesOf> + 'a {
        let states = scheduled.seqs.iter().map(|entry| StatesOf {
            request_id: self.seq(entry.slot).request.request_id,
            num_rows: entry.num_prompt_logits + usize::from(entry.samples),
            ends: entry.samples,
        });
        states.filter(|states| states.num_rows > 0)
    }

    /// Replaces the contents by another step; allocates only where a buffer was never that long.
    pub fn refill(&self, batch: &mut Batch, scheduled: &Scheduled) {
        batch.clear();
        batch.block_copies.extend_from_slice(&scheduled.block_copies);
        let block_size = self.block_size();
        let seq_len =
            |slot: usize, num_tokens: usize| self.seq(slot).num_computed_tokens + num_tokens;
        let lens = scheduled.seqs.iter().map(|s| seq_len(s.slot, s.num_tokens));
        batch.max_blocks_per_seq = lens.max().unwrap_or(0).div_ceil(block_size);
        batch.query_start_loc.push(0);
        // All media of a model have places on axes, or none has.
        let mut media = scheduled.seqs.iter().flat_map(|s| &self.seq(s.slot).request.media);
        let has_axes = media.next().is_some_and(|run| run.axis.is_some());
        for entry in &scheduled.seqs {
            let seq = self.seq(entry.slot);
            // Flat index minus position is the same for all tokens of the sequence.
            let (start, first) = (seq.num_computed_tokens, batch.input_ids.len());
            let end = start + entry.num_tokens;
            batch.input_ids.extend_from_slice(&seq.token_ids[start..end]);
            if has_axes {
                let of_token = |position| axes_of(&seq.request.media, position);
                batch.axes.extend((start..end).map(of_token));
            }
            for position in start..end {
                let block = seq.block_table[position / block_size] as usize;
                batch.positions.push(position as u32);
                batch.slot_mapping.push((block * block_size + position % block_size) as u32);
            }
            add_media(batch, seq, start..end);
            let wanted = seq.prompt_logits_in(entry.num_tokens);
            batch.logits_indices.extend(wanted.map(|position| (first + position - start) as u32));
            // Of the last known token, and of each draft after it.
            let end_of_known = first + entry.num_tokens - entry.num_drafts;
            let sampled = end_of_known - 1..end_of_known + entry.num_drafts;
            batch.logits_indices.extend(sampled.filter(|_| entry.samples).map(|row| row as u32));
            if let Some(row) = seq.sampled_row.filter(|_| end == seq.num_tokens()) {
                batch.sampled_rows.resize(batch.input_ids.len() - 1, Batch::KNOWN);
                batch.sampled_rows.push(row as u32);
            }
            batch.query_start_loc.push(batch.input_ids.len() as u32);
            batch.add_lora(seq.request.lora, first);
            if let Some(Whole::Prompt { len, .. }) = seq.request.media.first().map(|run| run.whole)
            {
                batch.set_prefix_len(len.min(seq.num_prompt_tokens));
            }
            batch.seq_lens.push(end as u32);
            // The table may hold blocks of chunks to come: the step needs none of those.
            let num_blocks = end.div_ceil(block_size);
            batch.block_tables.extend_from_slice(&seq.block_table[..num_blocks]);
            let row_end = batch.seq_lens.len() * batch.max_blocks_per_seq;
            batch.block_tables.resize(row_end, 0);
        }
        if !batch.sampled_rows.is_empty() {
            batch.sampled_rows.resize(batch.input_ids.len(), Batch::KNOWN);
        }
    }
}

/// The media among a sequence's tokens at these positions, which are the last ones of the batch:
/// placeholders in the place of their ids.
fn add_media(batch: &mut Batch, seq: &Sequence, positions: Range<usize>) {
    let first_row = batch.input_ids.len() - positions.len();
    let rows_of = |start: usize, end: usize| {
        first_row + start - positions.start..first_row + end - positions.start
    };
    let request = &seq.request;
    for run in &request.media {
        if let Some(whole) = run.whole_positions() {
            let whole_end = whole.end.min(seq.num_prompt_tokens);
            let (start, end) = (whole.start.max(positions.start), whole_end.min(positions.end));
            if start < end {
                batch.attend_to_image(rows_of(start, end), whole_end as u32);
            }
        }
        let start = run.positions.start.max(positions.start);
        let end = run.positions.end.min(positions.end);
        if start >= end {
            continue;
        }
        let rows = rows_of(start, end);
        let ids = &mut batch.input_ids[rows.clone()];
        match run.medium.table_token() {
            Some(id) => ids.fill(id),
            None => ids.copy_from_slice(&request.prompt_token_ids[start..end]),
        }
        batch.media.push(MediaRows {
            medium: run.medium.number(),
            first_token: run.first_token + (start - run.positions.start) as u32,
            rows: rows.start as u32..rows.end as u32,
        });
    }
}
