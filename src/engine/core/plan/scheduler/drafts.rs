//! Drafts: guesses of a row's next tokens, computed in the step that computes its last known one.
//!
//! They are verified by replay. The sampler runs on every position as if the drafts before it had
//! been sampled, with the position's own random number; the first token that differs from its draft
//! is the last that counts. So a row has the tokens of a run without drafts, whoever guesses.
//!
//! ```text
//! input    last known   d1   d2   d3
//! sampled  t1           t2   t3   t4      t1 = d1, t2 != d2: the row goes on by t1 and t2
//! ```
//!
//! A guide must not see tokens that are not sampled, since its work counts. Rows that have one are
//! verified in rounds: the next position is sampled once the draft before it is known to be right.

use super::{Scheduled, ScheduledSeq, Scheduler, no_token_allowed, non_finite_logits};
use crate::plan::completion::Finish;
use crate::plan::sequence::Sequence;
use crate::plan::structured_output::GuideTask;
use crate::sampler::{RowResult, RowTask};
use vllm_batch_api::request::Asked;

/// How many drafts a step may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftLimits {
    /// Most of a row.
    pub per_row: usize,
    /// Most of all rows.
    pub per_step: usize,
    /// Most tokens of a step that has any, known ones included.
    pub max_step_tokens: usize,
    /// Rows with a guide have drafts: the sampler works in rounds.
    pub in_rounds: bool,
    /// A row whose drafts are wrong has fewer.
    pub paced: bool,
}

impl DraftLimits {
    /// Most drafts of a row now, besides those that are forced; 0: it is none that drafts are for.
    fn of_row(&self, seq: &Sequence) -> usize {
        match (may_draft(seq, self.in_rounds), self.paced) {
            (false, _) => 0,
            (true, true) => seq.pace.most(self.per_row),
            (true, false) => self.per_row,
        }
    }
}

/// A step that drafts are added to, between `schedule` and the executor. They are the first to go:
/// they take what is left of budget and blocks.
pub struct DraftStep<'a> {
    scheduler: &'a mut Scheduler,
    scheduled: &'a mut Scheduled,
    limits: DraftLimits,
    num_left: usize,
}

/// A row of logits that is sampled in a round.
#[derive(Clone, Copy, Debug)]
struct RoundRow {
    slot: usize,
    row: usize,
}

impl DraftStep<'_> {
    /// Sequences of the step.
    pub fn num_seqs(&self) -> usize {
        self.scheduled.seqs.len()
    }

    /// One of them.
    pub fn seq(&self, place: usize) -> &Sequence {
        self.scheduler.seq(self.scheduled.seqs[place].slot)
    }

    /// Drafts that a sequence may be given, besides those that it has.
    pub fn room(&self, place: usize) -> usize {
        let seq = self.seq(place);
        let guessed = self.limits.of_row(seq).saturating_sub(seq.num_drafts - seq.num_forced);
        guessed.min(self.room_of_any(place))
    }

    /// The same, whoever gives them.
    fn room_of_any(&self, place: usize) -> usize {
        let entry = &self.scheduled.seqs[place];
        let seq = self.scheduler.seq(entry.slot);
        if !entry.samples || self.num_left == 0 {
            return 0;
        }
        // The last token is sampled, and nothing comes after it.
        let most = self.limits.per_row.min(self.scheduler.num_tokens_to_come(seq) - 1);
        most.saturating_sub(seq.num_drafts).min(self.num_left)
    }

    /// Adds a draft to a sequence. False: it takes no more.
    pub fn push(&mut self, place: usize, token_id: u32) -> bool {
        self.room(place) > 0 && self.push_any(place, token_id)
    }

    /// Adds the tokens that grammars force: they are right whoever guesses behind them, however
    /// wrong those guesses were.
    pub fn push_forced(&mut self) {
        for place in 0..self.num_seqs() {
            let ScheduledSeq { slot, .. } = self.scheduled.seqs[place];
            let seq = self.scheduler.seqs[slot].as_mut().expect("the slot is taken");
            if seq.guide.is_none() || !may_draft(seq, self.limits.in_rounds) {
                continue;
            }
            // Asked for where its next mask is asked for in this step: at the row's last token.
            if self.room_of_any(place) > 0 {
                let forced = self.scheduler.forced(slot);
                let num_forced = forced.into_iter().take_while(|&id| self.push_any(place, id));
                let num_forced = num_forced.count();
                let seq = self.scheduler.seqs[slot].as_mut().expect("the slot is taken");
                seq.num_forced = num_forced;
            }
        }
    }

    fn push_any(&mut self, place: usize, token_id: u32) -> bool {
        let slot = self.scheduled.seqs[place].slot;
        let stop_ids = &self.scheduler.seq(slot).request.stop_ids;
        // Nothing is sampled after it. A guide in particular must not be asked what comes then.
        let ends =
            stop_ids.eos_token_id == Some(token_id) || stop_ids.stop_token_ids.contains(&token_id);
        if ends || self.room_of_any(place) == 0 || !self.scheduler.grow_by_one(slot) {
            return false;
        }
        self.scheduler.block_pool.take_copies(&mut self.scheduled.block_copies);
        self.scheduler.seqs[slot].as_mut().expect("the slot is taken").push_draft(token_id);
        let entry = &mut self.scheduled.seqs[place];
        entry.num_drafts += 1;
        entry.num_tokens += 1;
        self.scheduled.num_tokens += 1;
        self.num_left -= 1;
        true
    }

    /// Rows that were given no draft are asked again after some tokens only: steps may be begun
    /// ahead until then.
    pub fn pause_others(&mut self) {
        for place in 0..self.num_seqs() {
            let ScheduledSeq { slot, num_drafts, .. } = self.scheduled.seqs[place];
            if num_drafts == 0 && self.room(place) > 0 {
                self.scheduler.seqs[slot].as_mut().expect("the slot is taken").pace.pause();
            }
        }
    }
}

impl Scheduler {
    /// The step, to add drafts to it.
    pub fn draft_step<'a>(
        &'a mut self,
        scheduled: &'a mut Scheduled,
        limits: DraftLimits,
    ) -> DraftStep<'a> {
        assert!(self.in_step, "drafts without schedule");
        let most = limits.max_step_tokens.min(self.sizes.max_num_batched_tokens);
        let num_left = most.saturating_sub(scheduled.num_tokens).min(limits.per_step);
        DraftStep { scheduler: self, scheduled, limits, num_left }
    }

    /// Sequences that run.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Whether the next step may have drafts, if the same sequences run.
    pub fn may_draft(&self, limits: DraftLimits) -> bool {
        let may = |&slot: &usize| limits.of_row(self.seq(slot)) > 0;
        self.running.len() < limits.max_step_tokens && self.running.iter().any(may)
    }

    /// What a row's guide says must come next.
    fn forced(&mut self, slot: usize) -> Vec<u32> {
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        let output_token_ids = &seq.token_ids[seq.num_prompt_tokens..];
        let guide = seq.guide.as_deref_mut();
        guide.map_or_else(Vec::new, |guide| guide.forced_after(output_token_ids).to_vec())
    }

    /// The guides of the sequences that sample in a step: each finds the mask of its next token.
    pub fn guides(&mut self, scheduled: &Scheduled) -> Vec<GuideTask<'_>> {
        self.guides_of_round(scheduled, 0, &[])
    }

    /// The same of a later round, given the results until then.
    pub fn guides_of_round(
        &mut self,
        scheduled: &Scheduled,
        round: usize,
        results: &[RowResult],
    ) -> Vec<GuideTask<'_>> {
        let rows = self.rows_of_round(scheduled, round, results);
        if rows.is_empty() {
            return Vec::new();
        }
        let mut wanted = vec![None; self.seqs.len()];
        for RoundRow { slot, row } in rows {
            let task = self.sample_task(self.seq(slot), round);
            wanted[slot] = Some(task.takes_likeliest().then_some(row));
        }
        let seqs = self.seqs.iter_mut().zip(wanted);
        let tasks = seqs.filter_map(|(seq, wanted)| {
            let (seq, likeliest_of) = (seq.as_mut()?, wanted?);
            let end = seq.num_tokens() + round;
            let output_token_ids = &seq.token_ids[seq.num_prompt_tokens..end];
            Some(GuideTask { guide: seq.guide.as_deref_mut()?, output_token_ids, likeliest_of })
        });
        tasks.collect()
    }

    /// What the sampler has to do in a later round, for each row of the step: mostly nothing.
    pub fn tasks_of_round<'a>(
        &'a self,
        scheduled: &Scheduled,
        round: usize,
        results: &[RowResult],
    ) -> impl Iterator<Item = RowTask<'a>> {
        let mut rows = self.rows_of_round(scheduled, round, results).into_iter().peekable();
        (0..results.len()).map(move |index| match rows.next_if(|row| row.row == index) {
            Some(row) => RowTask::Sample(self.sample_task(self.seq(row.slot), round)),
            None => RowTask::Later,
        })
    }

    /// Rows that are sampled in a round, of sequences that have a guide.
    fn rows_of_round(
        &self,
        scheduled: &Scheduled,
        round: usize,
        results: &[RowResult],
    ) -> Vec<RoundRow> {
        let (mut rows, mut next_row) = (Vec::new(), 0);
        for entry in &scheduled.seqs {
            let first = next_row + entry.num_prompt_logits;
            next_row = first + if entry.samples { entry.num_drafts + 1 } else { 0 };
            let seq = self.seq(entry.slot);
            if seq.guide.is_none() || first + round >= next_row {
                continue;
            }
            let is_reached = round == 0 || {
                let draft = seq.drafts()[round - 1];
                let before = &results[first + round - 1];
                matches!(before, RowResult::Sampled { token_id, .. } if *token_id == draft)
            };
            if is_reached {
                rows.push(RoundRow { slot: entry.slot, row: first + round });
            }
        }
        rows
    }

    /// Takes in what was sampled after the known tokens, and after each draft as long as they are
    /// right; says whether the sequence is finished.
    pub(super) fn apply_sampled(
        &mut self,
        entry: &ScheduledSeq,
        mut rows: impl Iterator<Item = RowResult>,
    ) -> Option<Finish> {
        let (max_model_len, tokenizer) = (self.max_model_len, self.tokenizer.as_deref());
        let seq = self.seqs[entry.slot].as_mut().expect("the slot is taken");
        let (num_before, mut num_right) = (seq.num_tokens(), 0);
        let finish = loop {
            let result = rows.next().expect("one result per row task");
            let num_output_tokens = seq.output_token_ids().len();
            let error = seq.guide.as_ref().and_then(|guide| guide.error_after(num_output_tokens));
            if let Some(error) = error {
                break Some(Finish::Error(error.clone()));
            }
            match result {
                RowResult::Sampled { token_id, logprobs } => {
                    let is_right = seq.drafts().first() == Some(&token_id);
                    seq.completion.push_logprobs(logprobs);
                    let appended = seq.append(token_id, max_model_len, tokenizer);
                    let finish = appended.unwrap_or_else(|error| Some(Finish::Error(error)));
                    num_right += usize::from(is_right);
                    if finish.is_some() || !is_right {
                        break finish;
                    }
                    seq.num_computed_tokens += 1;
                }
                RowResult::NonFinite => break Some(non_finite_logits(seq)),
                RowResult::NoTokenAllowed => break Some(no_token_allowed(seq)),
                RowResult::State => break Some(Finish::Length),
                other => panic!("{other:?} for a sampled token"),
            }
        };
        rows.for_each(drop);
        seq.drop_drafts();
        let num_new = seq.num_tokens() - num_before;
        self.stats.num_generation_tokens += num_new as u64;
        let num_forced = std::mem::take(&mut seq.num_forced);
        let num_guessed = entry.num_drafts - num_forced;
        seq.pace.take_in(num_guessed, num_right.saturating_sub(num_forced), num_new);
        if entry.num_drafts > 0 {
            self.stats.num_drafted_rows += 1;
            self.stats.num_draft_tokens += entry.num_drafts as u64;
            self.stats.num_forced_tokens += num_forced as u64;
            self.stats.num_accepted_tokens += num_right as u64;
            self.give_back(entry.slot);
        }
        finish
    }

    /// Frees the blocks that only drafts needed. They were never offered to the prefix cache.
    fn give_back(&mut self, slot: usize) {
        let num_needed = self.num_blocks_of_sequence(slot);
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        if num_needed < seq.block_table.len() {
            self.block_pool.free(&seq.block_table[num_needed..]);
            seq.block_table.truncate(num_needed);
        }
    }
}

/// Whether a row is one that drafts are for. The end of one with a guide must be seen by its tokens
/// alone, before the guide is asked for more.
fn may_draft(seq: &Sequence, in_rounds: bool) -> bool {
    let params = &*seq.request.params;
    seq.request.asked == Asked::Completions
        && params.beam_search.is_none()
        && (seq.guide.is_none() || in_rounds && params.stop.is_empty())
}
