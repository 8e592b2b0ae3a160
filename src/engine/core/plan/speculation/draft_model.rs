//! `DraftModel`: a small model guesses, token after token, what it would say itself.
//!
//! Its KV cache has as many blocks as the target's, of the same size, and a row's K and V lie in
//! the blocks that the row has there. So who gets and loses blocks is decided once, and nothing of
//! it is known here: a row is computed from the first token that is not where it was. A block that
//! rows share is written by each of them, to the same values. What another row has left in a block
//! costs right guesses, and no byte of a row.

use std::collections::{HashMap, HashSet};

use super::Proposer;
use crate::execute::executor::{Executor, ExecutorError};
use crate::plan::scheduler::DraftStep;
use crate::plan::sequence::Sequence;
use crate::sampler::likeliest;
use crate::sampler::wide::Baseline;
use vllm_batch_api::request::RequestOutput;
use vllm_batch_ops::batch::Batch;

/// Sizes that the draft model has in common with its target, or is limited to.
#[derive(Clone, Copy, Debug)]
pub struct DraftSizes {
    /// Tokens of a KV block.
    pub block_size: usize,
    /// Longest row that it can read.
    pub max_model_len: usize,
    /// Most tokens of one of its steps.
    pub max_num_tokens: usize,
}

/// The proposer.
pub struct DraftModel {
    executor: Box<dyn Executor>,
    sizes: DraftSizes,
    batch: Batch,
    /// By request and index of the completion.
    rows: HashMap<(u64, u32), Computed>,
}

/// Tokens of a row whose K and V were written, and into which blocks.
#[derive(Clone, Debug, Default)]
struct Computed {
    token_ids: Vec<u32>,
    block_table: Vec<u32>,
}

impl Computed {
    /// Leading tokens of a row that need not be computed again. The last known one is, for its
    /// logits.
    fn num_valid(&self, seq: &Sequence, block_size: usize) -> usize {
        let num_equal = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let num_tokens = num_equal(&self.token_ids, &seq.token_ids);
        let num_blocks = num_equal(&self.block_table, &seq.block_table);
        num_tokens.min(num_blocks * block_size).min(seq.token_ids.len() - 1)
    }

    fn now_has(&mut self, seq: &Sequence, num_tokens: usize) {
        self.token_ids.clear();
        self.token_ids.extend_from_slice(&seq.token_ids[..num_tokens]);
        self.block_table.clear();
        self.block_table.extend_from_slice(&seq.block_table);
    }
}

/// A row that is guessed at.
#[derive(Clone, Copy, Debug)]
struct Guessed {
    place: usize,
    /// Its next token to compute.
    start: usize,
}

impl DraftModel {
    /// A proposer over a cache of which nothing is computed.
    pub fn new(executor: Box<dyn Executor>, sizes: DraftSizes) -> Self {
        assert!(sizes.max_num_tokens > 0);
        Self { executor, sizes, batch: Batch::default(), rows: HashMap::new() }
    }

    /// Computes each row from its start to its last token, in as many steps as that takes, and
    /// gives each the token that is the likeliest to follow. Returns those that took it.
    fn extend(
        &mut self,
        step: &mut DraftStep<'_>,
        rows: &[Guessed],
    ) -> Result<Vec<Guessed>, ExecutorError> {
        let mut extended = Vec::new();
        let (mut ends, mut written) = (Vec::new(), HashSet::new());
        self.begin();
        for row in rows {
            let mut start = row.start;
            loop {
                let seq = step.seq(row.place);
                let num_left = seq.token_ids.len() - start;
                let room = self.sizes.max_num_tokens - self.batch.num_tokens();
                let end = start + num_left.min(room);
                let blocks = start / self.sizes.block_size..end.div_ceil(self.sizes.block_size);
                let blocks = &seq.block_table[blocks];
                // No two tokens of a step may have the same place.
                if room == 0 || blocks.iter().any(|block| written.contains(block)) {
                    self.run(step, &mut ends, &mut extended)?;
                    written.clear();
                    continue;
                }
                written.extend(blocks.iter().copied());
                self.add(seq, start..end);
                start = end;
                if num_left <= room {
                    self.batch.logits_indices.push(self.batch.num_tokens() as u32 - 1);
                    ends.push(row.place);
                    break;
                }
                self.run(step, &mut ends, &mut extended)?;
                written.clear();
            }
        }
        self.run(step, &mut ends, &mut extended)?;
        Ok(extended)
    }

    fn begin(&mut self) {
        let query_start_loc = vec![0];
        self.batch = Batch { query_start_loc, wants_likeliest: true, ..Batch::default() };
    }

    /// Adds tokens of a row to the batch. Tables of blocks are put side by side by `run`.
    fn add(&mut self, seq: &Sequence, tokens: std::ops::Range<usize>) {
        let (batch, block_size) = (&mut self.batch, self.sizes.block_size);
        batch.input_ids.extend_from_slice(&seq.token_ids[tokens.clone()]);
        for position in tokens.clone() {
            let block = seq.block_table[position / block_size] as usize;
            batch.positions.push(position as u32);
            batch.slot_mapping.push((block * block_size + position % block_size) as u32);
        }
        batch.query_start_loc.push(batch.input_ids.len() as u32);
        batch.seq_lens.push(tokens.end as u32);
        let table = &seq.block_table[..tokens.end.div_ceil(block_size)];
        widen(batch, table.len());
        batch.block_tables.extend_from_slice(table);
        let end = batch.seq_lens.len() * batch.max_blocks_per_seq;
        batch.block_tables.resize(end, 0);
    }

    /// Runs what there is of a batch, and begins another one.
    fn run(
        &mut self,
        step: &mut DraftStep<'_>,
        ends: &mut Vec<usize>,
        extended: &mut Vec<Guessed>,
    ) -> Result<(), ExecutorError> {
        if self.batch.input_ids.is_empty() {
            return Ok(());
        }
        let mut logits = self.executor.execute(&self.batch)?;
        for (row, place) in ends.drain(..).enumerate() {
            let start = step.seq(place).token_ids.len();
            let token_id = match logits.likeliest.get(row) {
                Some(token_id) => *token_id,
                None => likeliest(Baseline, logits.row(row)),
            };
            if token_id.is_some_and(|token_id| step.push(place, token_id)) {
                extended.push(Guessed { place, start });
            }
        }
        self.begin();
        Ok(())
    }
}

/// Makes the tables of blocks as wide as one of so many blocks.
fn widen(batch: &mut Batch, num_blocks: usize) {
    let width = batch.max_blocks_per_seq;
    if num_blocks <= width {
        return;
    }
    let narrow = std::mem::take(&mut batch.block_tables);
    for table in narrow.chunks(width.max(1)) {
        batch.block_tables.extend_from_slice(table);
        batch.block_tables.resize(batch.block_tables.len() + num_blocks - width, 0);
    }
    batch.max_blocks_per_seq = num_blocks;
}

impl Proposer for DraftModel {
    fn propose(&mut self, step: &mut DraftStep<'_>) -> Result<(), ExecutorError> {
        let has_room = |&place: &usize| {
            let room = step.room(place);
            room > 0 && step.seq(place).token_ids.len() + room <= self.sizes.max_model_len
        };
        let places: Vec<usize> = (0..step.num_seqs()).filter(has_room).collect();
        let first = |&place: &usize| {
            let seq = step.seq(place);
            let computed = self.rows.get(&(seq.request.request_id, seq.index));
            let start = computed.map_or(0, |row| row.num_valid(seq, self.sizes.block_size));
            Guessed { place, start }
        };
        let mut rows: Vec<Guessed> = places.iter().map(first).collect();
        while !rows.is_empty() {
            rows = self.extend(step, &rows)?;
            rows.retain(|row| step.room(row.place) > 0);
        }
        for place in places {
            let seq = step.seq(place);
            // Nothing was computed of the last guess.
            let num_computed = seq.token_ids.len() - usize::from(seq.num_drafts > 0);
            let row = self.rows.entry((seq.request.request_id, seq.index)).or_default();
            row.now_has(seq, num_computed);
        }
        Ok(())
    }

    fn learn(&mut self, outputs: &[RequestOutput]) {
        for output in outputs {
            for index in 0..output.outputs.len() as u32 {
                self.rows.remove(&(output.request_id, index));
            }
        }
    }

    fn forget(&mut self, request_id: u64) {
        self.rows.retain(|(of_row, _), _| *of_row != request_id);
    }
}
