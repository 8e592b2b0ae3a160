//! The step after the current one, decided while the device still computes that: vLLM's
//! asynchronous scheduling. What it samples is not known, only where each token will be; the device
//! puts them in itself.
//!
//! ```text
//! schedule -> schedule_ahead -> update -> adopt -> schedule_ahead -> update -> adopt ...
//! |             |                        |
//! step n      step n + 1 queued      step n + 1 is current, less what finished in step n
//! ```
//!
//! `schedule_ahead` moves the sequences of step n on as if it were done, each that samples with an
//! unknown token at its end, and decides as `schedule` does: chunks of prompts and waiting
//! sequences come along. `update` moves them back before it takes in what came of them. Two things
//! differ from `schedule`. Nobody is preempted: where blocks are short, there is no step ahead. And
//! who is at its last token in step n has no part in step n + 1, though its blocks are still taken.
//!
//! A sequence that finishes in step n by a token has computed one too many in step n + 1: its K and
//! V go to blocks that are free by then. That is harmless, since the device computes steps in
//! order, and only blocks of known tokens are offered to the prefix cache, those that the unknown
//! one fills in `adopt`.

use super::{Scheduled, Scheduler};
use crate::plan::sequence::Sequence;

/// A step ahead.
#[derive(Clone, Debug)]
pub struct Ahead {
    /// Who runs, in the order of the rows of its batch.
    pub scheduled: Scheduled,
    /// Serial and index of each of its sequences: a slot may be another's by the time.
    ids: Vec<(u64, u32)>,
}

impl Scheduler {
    /// Decides the step after `current`, which is scheduled and not yet updated, with its batch and
    /// tasks made; `row_of` gives the row of the device's results of each of its results. None
    /// where it cannot be known: a sequence has drafts or is one of several beams, blocks are
    /// short, rows of a batch may have to give way, or a row's sampling depends on the tokens
    /// before. Batch and tasks of the step ahead are made before `update`.
    pub fn schedule_ahead(
        &mut self,
        current: &Scheduled,
        row_of: impl Fn(usize) -> usize,
    ) -> Option<Ahead> {
        assert!(self.in_step && !self.is_advanced, "schedule_ahead without schedule");
        let is_of_beams = |&slot: &usize| self.beam_row_of(slot).is_some();
        let is_known = current.seqs.iter().all(|entry| {
            entry.num_drafts == 0 && (!entry.samples || is_plain(self.seq(entry.slot)))
        });
        if !is_known || self.running.iter().any(is_of_beams) || self.may_give_way() {
            return None;
        }
        self.advance(current, row_of);
        if self.num_missing_blocks() > self.block_pool.num_free_blocks() {
            return None;
        }
        let scheduled = self.decide();
        if scheduled.is_empty() {
            self.reuse(scheduled);
            return None;
        }
        let id = |slot: usize| (self.seq(slot).serial, self.seq(slot).index);
        let ids = scheduled.seqs.iter().map(|entry| id(entry.slot)).collect();
        Some(Ahead { scheduled, ids })
    }

    /// Moves the sequences of a step on, each to the result that will be its token.
    fn advance(&mut self, current: &Scheduled, row_of: impl Fn(usize) -> usize) {
        let mut num_results = 0;
        for entry in &current.seqs {
            num_results += entry.num_prompt_logits + usize::from(entry.samples);
            let sampled_row = entry.samples.then(|| row_of(num_results - 1));
            let seq = self.seqs[entry.slot].as_mut().expect("the slot is taken");
            seq.advance(entry.num_tokens, sampled_row);
        }
        self.is_advanced = true;
    }

    /// Moves them back, if they are moved on.
    pub(super) fn step_back(&mut self, current: &Scheduled) {
        if !std::mem::take(&mut self.is_advanced) {
            return;
        }
        for entry in &current.seqs {
            let seq = self.seqs[entry.slot].as_mut().expect("the slot is taken");
            seq.step_back(entry.num_tokens);
        }
    }

    /// Blocks that running sequences may take in the step that is decided.
    fn num_missing_blocks(&self) -> usize {
        let goes_on = self.running.iter().filter(|&&slot| !self.is_at_its_last(self.seq(slot)));
        let missing = |&slot: &usize| {
            self.num_blocks_of_sequence(slot).saturating_sub(self.seq(slot).block_table.len())
        };
        goes_on.map(missing).sum()
    }

    /// Makes a step ahead the current one, after `update` of the one before it. Returns what is
    /// left of it, and the rows of the device's results that are its own.
    pub fn adopt(&mut self, ahead: Ahead) -> (Scheduled, Vec<usize>) {
        assert!(!std::mem::replace(&mut self.in_step, true), "adopt without update");
        let Ahead { mut scheduled, ids } = ahead;
        scheduled.num_tokens = 0;
        scheduled.block_copies.clear();
        let (mut ids, mut rows, mut first_row) = (ids.into_iter(), Vec::new(), 0);
        scheduled.seqs.retain(|entry| {
            let id = ids.next().expect("one per sequence");
            let own = first_row..first_row + entry.num_prompt_logits + usize::from(entry.samples);
            first_row = own.end;
            let of_id = |seq: &Sequence| (seq.serial, seq.index) == id;
            let is_left = self.seqs[entry.slot].as_ref().is_some_and(of_id);
            if is_left {
                self.register_full_blocks(entry.slot, entry.num_tokens);
                scheduled.num_tokens += entry.num_tokens;
                rows.extend(own);
            }
            is_left
        });
        (scheduled, rows)
    }

    /// Whether the unknown token is its last one.
    pub(super) fn is_at_its_last(&self, seq: &Sequence) -> bool {
        seq.sampled_row.is_some() && self.num_tokens_to_come(seq) == 0
    }

    /// Most tokens that may follow those that there are.
    pub(super) fn num_tokens_to_come(&self, seq: &Sequence) -> usize {
        let max_tokens = seq.request.params.max_tokens.map_or(usize::MAX, |max| max as usize);
        let of_output = max_tokens.saturating_sub(seq.num_tokens() - seq.num_prompt_tokens);
        of_output.min(self.max_model_len.saturating_sub(seq.num_tokens()))
    }

    /// Makes room for one token more; false if the pool runs out.
    pub(super) fn grow_by_one(&mut self, slot: usize) -> bool {
        let block_size = self.block_pool.block_size();
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        if seq.block_table.len() * block_size <= seq.token_ids.len() {
            let Some(block) = self.block_pool.allocate() else { return false };
            seq.block_table.push(block);
        }
        true
    }
}

/// Whether a row is sampled without the host, and without regard to its output but for penalties,
/// of which the device counts the tokens that it samples.
fn is_plain(seq: &Sequence) -> bool {
    let params = &*seq.request.params;
    let next = seq.output_token_ids().len() + 1;
    params.beam_search.is_none()
        && seq.guide.is_none()
        && params.logprobs.is_none_or(|logprobs| logprobs.on_gpu().is_some())
        && params.allowed_token_ids.is_none()
        && seq.request.bad_words_token_ids.is_empty()
        && params.logit_bias.is_empty()
        && params.min_tokens as usize <= next
}
