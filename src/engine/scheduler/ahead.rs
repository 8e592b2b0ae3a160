//! The step after the current one, decided while the device still computes that: vLLM's
//! asynchronous scheduling. Its tokens are not known, only where each will be; the device puts them
//! in itself.
//!
//! ```text
//! schedule -> schedule_ahead -> update -> adopt -> schedule_ahead -> update -> adopt ...
//! |             |                        |
//! step n      step n + 1 queued      step n + 1 is current, less what finished in step n
//! ```
//!
//! A sequence that finishes in step n has computed one token too many in step n + 1: its K and V go
//! to blocks that are free by then. That is harmless, since the device computes steps in order, and
//! only blocks that a sequence filled are offered to the prefix cache, in `adopt`.

use super::{SampleTask, Scheduled, ScheduledSeq, Scheduler};
use crate::engine::sequence::Sequence;

/// A step ahead: one token for each sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// In the order of the rows of its batch.
    pub seqs: Vec<AheadSeq>,
    /// As those of [`Scheduled`].
    pub block_copies: Vec<(u32, u32)>,
}

/// One sequence's part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AheadSeq {
    /// Where the scheduler keeps it, unless it is finished since.
    pub slot: usize,
    /// Row of the current step's results that is its token.
    pub row: usize,
    /// Tells it from a later one in the same slot.
    request_id: u64,
    index: u32,
}

impl Scheduler {
    /// Decides the step after `current`, which is scheduled and not yet updated; `row_of` gives the
    /// row of its results of each of its sequences. None where it cannot be known: a sequence is
    /// not at its end yet or has drafts, another one may be admitted, blocks are short, or a row's
    /// sampling depends on the tokens before.
    pub fn schedule_ahead(
        &mut self,
        current: &Scheduled,
        row_of: impl Fn(usize) -> usize,
    ) -> Option<Ahead> {
        assert!(self.in_step, "schedule_ahead without schedule");
        let may_admit = self.waiting.len() > 0 && self.running.len() < self.config.max_num_seqs;
        let all_sample = current.seqs.iter().all(|entry| {
            let is_one_row = entry.samples && entry.num_prompt_logits + entry.num_drafts == 0;
            is_one_row && is_plain(self.seq(entry.slot))
        });
        if may_admit || !all_sample || current.seqs.len() != self.running.len() {
            return None;
        }
        let mut ahead =
            Ahead { seqs: Vec::with_capacity(current.seqs.len()), block_copies: Vec::new() };
        for (place, entry) in current.seqs.iter().enumerate() {
            let (row, seq) = (row_of(place), self.seq(entry.slot));
            if self.ends_by_length(seq) {
                continue;
            }
            let (request_id, index) = (seq.request.request_id, seq.index);
            if !self.grow_by_one(entry.slot) {
                return None;
            }
            ahead.seqs.push(AheadSeq { slot: entry.slot, row, request_id, index });
        }
        if ahead.seqs.is_empty() {
            return None;
        }
        self.block_pool.take_copies(&mut ahead.block_copies);
        Some(ahead)
    }

    /// Makes a step ahead the current one, after `update` of the one before it. Returns what is
    /// left of it, and the row of the batch of each sequence.
    pub fn adopt(&mut self, ahead: &Ahead) -> (Scheduled, Vec<usize>) {
        assert!(!std::mem::replace(&mut self.in_step, true), "adopt without update");
        let (mut scheduled, mut rows) = (Scheduled::default(), Vec::new());
        for (row, entry) in ahead.seqs.iter().enumerate() {
            let of_entry = |seq: &Sequence| {
                (seq.request.request_id, seq.index) == (entry.request_id, entry.index)
            };
            if !self.seqs[entry.slot].as_ref().is_some_and(of_entry) {
                continue;
            }
            self.register_full_blocks(entry.slot, 1);
            let seq = ScheduledSeq {
                slot: entry.slot,
                num_tokens: 1,
                num_drafts: 0,
                num_prompt_logits: 0,
                samples: true,
            };
            scheduled.seqs.push(seq);
            scheduled.num_tokens += 1;
            rows.push(row);
        }
        (scheduled, rows)
    }

    /// What the sampler has to do in a step ahead. The last token of each output is still missing:
    /// the position in the random stream is one more than the output's length.
    /// With each goes the row of the current step's results that is the token.
    pub fn ahead_tasks(&self, ahead: &Ahead) -> Vec<(SampleTask<'_>, usize)> {
        let task = |entry: &AheadSeq| (self.sample_task(self.seq(entry.slot), 0), entry.row);
        ahead.seqs.iter().map(task).collect()
    }

    /// Whether the token that is being computed is the last.
    fn ends_by_length(&self, seq: &Sequence) -> bool {
        self.num_tokens_to_come(seq) <= 1
    }

    /// Most tokens that may follow the known ones.
    pub(super) fn num_tokens_to_come(&self, seq: &Sequence) -> usize {
        let max_tokens = seq.request.params.max_tokens.map_or(usize::MAX, |max| max as usize);
        let of_output = max_tokens.saturating_sub(seq.output_token_ids().len());
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
