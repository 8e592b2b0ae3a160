//! Beam search: a row that keeps its `beam_width` likeliest beginnings, as vLLM's
//! `LLM.beam_search` does.
//!
//! Each beam is a sequence. In a round every beam computes its last token and offers its likeliest
//! next tokens (`search.rs`); the best of them are the beams of the next round. A round may take
//! several steps: beams that are done wait for the others.
//!
//! ```text
//! queues:  .. | slot of the first beam | ..     one entry for the row, `num_places` places
//! row:     slots of its beams, best first;      those that ended
//! round:   beams -- offer --> candidates -- end_round --> beams
//! ```
//!
//! Two beams of a row have the same tokens only up to where they parted, and they share the full
//! blocks of those (`blocks.rs`).

mod blocks;
mod search;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::schedule::Step;
use super::{RowResult, ScheduledSeq, Scheduler};
use crate::plan::completion::{Completion, Finish};
use crate::plan::sequence::Sequence;
use crate::request::Request;
use crate::sampler::RowTask;
use search::{Candidate, Hypothesis, Parent, Path, Search};
use vllm_batch_api::request::{
    BeamSearchParams, CompletionOutput, NumLogprobs, RequestClass, SamplingParams,
};

/// A row that is searched. Before its first round it is one sequence, which computes the prompt.
#[derive(Debug)]
pub(super) struct BeamRow {
    request: Arc<Request>,
    /// Best first. The first one's slot stands for the row in the queues, and never changes.
    beams: Vec<Beam>,
    /// Beams that are done with this round: the first ones.
    num_done: usize,
    search: Search,
    /// What makes the row an error row at the end of the round.
    failure: Option<Finish>,
}

#[derive(Debug)]
struct Beam {
    slot: usize,
    path: Path,
    /// While the row is preempted: an earlier beam, and how many full blocks both had. The first
    /// beam has none.
    donor: Donor,
}

#[derive(Clone, Copy, Debug, Default)]
struct Donor {
    beam: usize,
    num_blocks: usize,
}

impl BeamRow {
    fn leader(&self) -> usize {
        self.beams[0].slot
    }
}

/// A beam as the search takes it.
fn parent<'a>(index: usize, beam: &'a Beam, seq: &'a Sequence) -> Parent<'a> {
    let (num_tokens, output_token_ids) = (seq.num_tokens(), seq.output_token_ids());
    Parent { index, path: &beam.path, num_tokens, output_token_ids }
}

impl Scheduler {
    /// The number of the request, for a slot whose row is searched with beams.
    pub(super) fn beam_row_of(&self, slot: usize) -> Option<u64> {
        let request = &self.seq(slot).request;
        request.params.beam_search.map(|_| request.request_id)
    }

    /// A new row, whose prompt waits in a slot.
    pub(super) fn add_beam_row(&mut self, request: &Arc<Request>, slot: usize) {
        let of_tokenizer = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.eos_token_id());
        let eos_token_id = request.stop_ids.eos_token_id.or(of_tokenizer);
        let row = BeamRow {
            request: Arc::clone(request),
            beams: vec![Beam { slot, path: Path::default(), donor: Donor::default() }],
            num_done: 0,
            search: Search::new(request, eos_token_id),
            failure: None,
        };
        self.beam_rows.insert(request.request_id, row);
    }

    fn beam_row(&self, request_id: u64) -> &BeamRow {
        &self.beam_rows[&request_id]
    }

    fn beam_row_mut(&mut self, request_id: u64) -> &mut BeamRow {
        self.beam_rows.get_mut(&request_id).expect("the row is unfinished")
    }

    /// Slots of the sequences that an entry of a queue stands for.
    pub(super) fn slots_of(&self, slot: usize) -> Vec<usize> {
        let Some(request_id) = self.beam_row_of(slot) else { return vec![slot] };
        self.beam_row(request_id).beams.iter().map(|beam| beam.slot).collect()
    }

    /// What an entry of a queue takes of `max_num_seqs` while it runs, from its prompt on. A row of
    /// more beams takes all, and each of its rounds several steps.
    pub(super) fn num_places(&self, slot: usize) -> usize {
        let beams = self.seq(slot).request.params.beam_search;
        beams.map_or(1, |beams| self.sizes.max_num_seqs.min(beams.beam_width as usize))
    }

    /// Adds the beams that are not done to a step, in their order: a beam may share blocks that an
    /// earlier one computes in the same step. One whose tokens the budget cuts off leaves nothing
    /// of it to those after it.
    pub(super) fn add_beams_to_step(&mut self, request_id: u64, step: &mut Step) {
        let row = self.beam_row(request_id);
        let most = self.num_places(row.leader());
        for index in (row.num_done..row.beams.len()).take(most) {
            if step.token_budget == 0 {
                return;
            }
            let slot = self.beam_row(request_id).beams[index].slot;
            self.add_sequence_to_step(slot, step);
        }
    }

    /// What the sampler has to do at the end of a beam: its likeliest next tokens, from the
    /// untouched logits.
    pub(super) fn beam_task(params: &SamplingParams, beams: BeamSearchParams) -> RowTask<'_> {
        let num_candidates = beams.beam_width.saturating_mul(2);
        let num_logprobs = match params.logprobs {
            Some(NumLogprobs::All) => NumLogprobs::All,
            Some(NumLogprobs::Top(shown)) => NumLogprobs::Top(shown.max(num_candidates)),
            None => NumLogprobs::Top(num_candidates),
        };
        // Nobody reads the target's.
        RowTask::PromptLogprobs { target: 0, num_logprobs }
    }

    /// Takes in what a step has brought of a beam; true if all beams are done with the round.
    pub(super) fn apply_to_beam(
        &mut self,
        request_id: u64,
        entry: &ScheduledSeq,
        result: Option<RowResult>,
    ) -> bool {
        let Self { seqs, beam_rows, .. } = self;
        let seq = seqs[entry.slot].as_mut().expect("the slot is taken");
        seq.num_computed_tokens += entry.num_tokens;
        let Some(result) = result else { return false };
        let row = beam_rows.get_mut(&request_id).expect("the row is unfinished");
        let (index, beam) = (row.num_done, &row.beams[row.num_done]);
        assert_eq!(beam.slot, entry.slot, "beams are computed in their order");
        row.failure = row.failure.take().or_else(|| super::lost_medium(&seq.request));
        match result {
            RowResult::PromptLogprobs(logprobs) => {
                row.search.offer(parent(index, beam, seq), &logprobs.top);
            }
            RowResult::NonFinite if row.failure.is_none() => {
                row.failure = Some(super::non_finite_logits(seq));
            }
            RowResult::NonFinite => {}
            other => panic!("{other:?} for a beam"),
        }
        row.num_done += 1;
        row.num_done == row.beams.len()
    }

    /// Ends a round: the best candidates are the next beams, or the row is finished.
    pub(super) fn end_round(&mut self, request_id: u64) {
        let row = self.beam_row_mut(request_id);
        row.num_done = 0;
        let (leader, num_beams) = (row.leader(), row.beams.len());
        if row.request.precedence.class == RequestClass::Batch {
            self.floor.moved();
        }
        let row = self.beam_row_mut(request_id);
        let (failure, candidates) = (row.failure.take(), row.search.end_round());
        self.stats.num_generation_tokens += num_beams as u64;
        let seq = self.seq(leader);
        let is_last = seq.output_token_ids().len() + 1 >= self.max_output_tokens(&seq.request);
        if failure.is_none() && !is_last && !candidates.is_empty() {
            return self.fork(request_id, &candidates);
        }
        self.running.retain(|&slot| slot != leader);
        if let Some(failure) = failure {
            return self.finish_beam_row(request_id, failure);
        }
        let Self { seqs, beam_rows, .. } = self;
        let BeamRow { beams, search, .. } =
            beam_rows.get_mut(&request_id).expect("the row is unfinished");
        for candidate in &candidates {
            let beam = &beams[candidate.parent];
            let seq = seqs[beam.slot].as_ref().expect("the slot is taken");
            let parent = parent(candidate.parent, beam, seq);
            search.complete_candidate(parent, candidate, Finish::Length);
        }
        self.answer_beam_row(request_id);
    }

    /// Ends a row before its time: its beams end as they are, and are its only completions. The
    /// caller clears the queues.
    pub(super) fn finish_beam_row(&mut self, request_id: u64, finish: Finish) {
        let Self { seqs, beam_rows, .. } = self;
        let BeamRow { beams, search, .. } =
            beam_rows.get_mut(&request_id).expect("the row is unfinished");
        search.forget();
        for (index, beam) in beams.iter().enumerate() {
            let seq = seqs[beam.slot].as_ref().expect("the slot is taken");
            search.complete_beam(parent(index, beam, seq), finish.clone());
        }
        self.answer_beam_row(request_id);
    }

    /// Frees what the row holds, and returns its completions.
    fn answer_beam_row(&mut self, request_id: u64) {
        let BeamRow { request, beams, search, .. } =
            self.beam_rows.remove(&request_id).expect("the row is unfinished");
        let mut state = self.requests.remove(&request_id).expect("its request is unfinished");
        for beam in beams {
            let seq = self.seqs[beam.slot].take().expect("the slot is taken");
            self.block_pool.free(&seq.block_table);
            self.free_slots.push(beam.slot);
            state.num_cached_tokens = seq.num_cached_tokens.unwrap_or(0);
        }
        let completed = (0..).zip(search.into_completed());
        state.outputs =
            completed.map(|(index, ended)| self.completion(&request, index, ended)).collect();
        self.answer(request, state);
    }

    fn completion(&self, request: &Request, index: u32, ended: Hypothesis) -> CompletionOutput {
        let Hypothesis { token_ids, cumulative_logprob, logprobs, finish, .. } = ended;
        let mut completion = Completion::new(request, index);
        logprobs.into_iter().for_each(|entry| completion.push_logprobs(Some(entry)));
        let tokenizer = self.tokenizer.as_deref();
        let output = completion.into_output(request, index, &token_ids, finish, tokenizer);
        CompletionOutput { cumulative_logprob: Some(cumulative_logprob), ..output }
    }

    /// The beams give way to the candidates.
    fn fork(&mut self, request_id: u64, candidates: &[Candidate]) {
        let parents = std::mem::take(&mut self.beam_row_mut(request_id).beams);
        let mut seqs: Vec<_> = parents.iter().map(|beam| self.seqs[beam.slot].take()).collect();
        let mut slots = parents.iter().map(|beam| beam.slot);
        let mut num_children = vec![0; parents.len()];
        candidates.iter().for_each(|candidate| num_children[candidate.parent] += 1);
        let mut beams = Vec::with_capacity(candidates.len());
        for (index, candidate) in (0..).zip(candidates) {
            let of_parent = &mut seqs[candidate.parent];
            num_children[candidate.parent] -= 1;
            let own = if num_children[candidate.parent] == 0 { of_parent.take() } else { None };
            let mut seq = own.unwrap_or_else(|| {
                self.sharing(of_parent.as_ref().expect("it has children to come"))
            });
            seq.index = index;
            seq.token_ids.push(candidate.token.token_id);
            let slot = slots.next().unwrap_or_else(|| self.take_slot());
            self.seqs[slot] = Some(seq);
            let path = parents[candidate.parent].path.with(candidate);
            beams.push(Beam { slot, path, donor: Donor::default() });
        }
        // Of those without children.
        seqs.into_iter().flatten().for_each(|seq| self.block_pool.free(&seq.block_table));
        self.free_slots.extend(slots);
        self.beam_row_mut(request_id).beams = beams;
    }
}
