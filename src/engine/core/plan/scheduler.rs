//! `Scheduler`: which sequences run in a step, with how many tokens, and what their results change.
//!
//! vLLM's V1 scheduler for data sets: no phases, a sequence just catches up with its known tokens.
//! One step is `schedule`, (`Batch`, executor, sampler), `update`. The decisions are in
//! `schedule.rs`, this file is the life of a request around them.
//!
//! ```text
//! add_request -> waiting --admit--> running --finish--> RequestOutput once all n are finished
//!                   ^------preempt-----'
//! ```

mod ahead;
mod beam;
mod classes;
mod conclude;
mod deltas;
mod drafts;
mod flatten;
mod floor;
mod look_ahead;
mod schedule;
#[cfg(test)]
mod tests;
mod waiting;

pub use ahead::Ahead;
pub use drafts::{DraftLimits, DraftStep};
pub use flatten::StatesOf;

use std::collections::HashMap;
use std::sync::Arc;

use super::block_pool::BlockPool;
use super::completion::{Finish, OfPrompt};
use super::sequence::Sequence;
use crate::load::step_sizes::StepSizes;
use crate::request::{Request, RequestStatus, images_of};
use crate::sampler::{RowResult, RowTask, SampleTask};
use crate::stats::EngineStats;
use beam::BeamRow;
use floor::Floor;
use vllm_batch_api::request::{
    CompletionDelta, CompletionOutput, FinishReason, Likelihood, LoraId, PositionLogprobs,
    RequestClass, RequestError, RequestOutput,
};
use vllm_batch_text::Tokenizer;
use waiting::Waiting;

/// One sequence's part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledSeq {
    /// Where the scheduler keeps it; meaningful until `update`.
    pub slot: usize,
    /// Tokens to compute, from `num_computed_tokens` on; at least 1 that is known, then drafts.
    pub num_tokens: usize,
    /// Drafts among them: each gives a row of logits after that of the last known token.
    pub num_drafts: usize,
    /// Prompt positions among them whose logits are wanted (prompt_logprobs).
    pub num_prompt_logits: usize,
    /// True if this step reaches the sequence's last known token, so that its logits are sampled
    /// (or its hidden state returned).
    pub samples: bool,
}

/// A step: who runs. Rows of the batch are in this order, those without an adapter first and those
/// of each adapter together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// At most `max_num_seqs`.
    pub seqs: Vec<ScheduledSeq>,
    /// Sum of their tokens, at most `max_num_batched_tokens`.
    pub num_tokens: usize,
    /// KV blocks whose contents are copied before anything is computed, one after the other: from
    /// and to.
    pub block_copies: Vec<(u32, u32)>,
}

impl Scheduled {
    /// Nothing to execute; `update` must still be called.
    pub fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }
}

/// A request some of whose completions are still in the making.
#[derive(Debug)]
struct RequestState {
    outputs: Vec<CompletionOutput>,
    num_unfinished: u32,
    prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    /// With the index of the sequence.
    likelihoods: Vec<(u32, Vec<Likelihood>)>,
    num_cached_tokens: usize,
    /// Of this step, where they are asked for.
    deltas: Vec<CompletionDelta>,
}

/// Queues, KV blocks and the state of every unfinished request.
pub struct Scheduler {
    sizes: StepSizes,
    max_model_len: usize,
    engine_seed: u64,
    tokenizer: Option<Arc<Tokenizer>>,
    block_pool: BlockPool,
    /// Sequences by slot; queues hold slots.
    seqs: Vec<Option<Sequence>>,
    free_slots: Vec<usize>,
    waiting: Waiting,
    /// By precedence, then in order of admission: the last one is the first to be preempted.
    running: Vec<usize>,
    /// What rows of a batch keep.
    floor: Floor,
    /// Free blocks that are not for those who are admitted now.
    num_kept_blocks: usize,
    /// Adapters of those, each once, while sequences are admitted.
    running_loras: Vec<LoraId>,
    requests: HashMap<u64, RequestState>,
    /// Requests that ever came: the next one's serial.
    num_requests: u64,
    /// Rows that are searched with beams.
    beam_rows: HashMap<u64, BeamRow>,
    /// Of the step that is put together.
    block_copies: Vec<(u32, u32)>,
    /// Finished, to be returned by the next `update`.
    finished: Vec<RequestOutput>,
    /// Requests that have deltas, or had some and are finished.
    with_deltas: Vec<u64>,
    /// Between `schedule` and `update`.
    in_step: bool,
    /// The sequences of that step are where they will be after it.
    is_advanced: bool,
    /// A sequence goes back to a multiple of so many tokens.
    granule: usize,
    /// Reused by admission.
    prefix_hits: Vec<u32>,
    /// The step that was last given back.
    spare: Scheduled,
    stats: EngineStats,
}

impl Scheduler {
    /// An idle scheduler over a pool of KV blocks. `max_model_len` counts prompt and output tokens.
    /// Without a tokenizer texts stay empty and stop strings do nothing.
    pub fn new(
        sizes: &StepSizes,
        block_pool: BlockPool,
        max_model_len: usize,
        engine_seed: u64,
        tokenizer: Option<Arc<Tokenizer>>,
    ) -> Self {
        assert!(sizes.max_num_seqs > 0 && sizes.max_num_batched_tokens > 0);
        assert!(sizes.max_num_prompt_logits > 0 && sizes.max_loras > 0);
        Self {
            sizes: *sizes,
            max_model_len,
            engine_seed,
            tokenizer,
            block_pool,
            seqs: Vec::new(),
            free_slots: Vec::new(),
            waiting: Waiting::new(sizes.look_ahead),
            running: Vec::new(),
            floor: Floor::default(),
            num_kept_blocks: 0,
            running_loras: Vec::new(),
            requests: HashMap::new(),
            num_requests: 0,
            beam_rows: HashMap::new(),
            block_copies: Vec::new(),
            finished: Vec::new(),
            with_deltas: Vec::new(),
            in_step: false,
            is_advanced: false,
            granule: 1,
            prefix_hits: Vec::new(),
            spare: Scheduled::default(),
            stats: EngineStats::default(),
        }
    }

    /// Queues a request as its sequences, which share what they begin with through the prefix
    /// cache. One that is searched with beams begins as one sequence.
    pub fn add_request(&mut self, request: Request) {
        let n = request.num_sequences();
        assert!(n > 0, "a request of no sequences");
        let state = RequestState {
            outputs: Vec::with_capacity(n as usize),
            num_unfinished: n,
            prompt_logprobs: None,
            likelihoods: Vec::new(),
            num_cached_tokens: 0,
            deltas: Vec::new(),
        };
        let previous = self.requests.insert(request.request_id, state);
        assert!(previous.is_none(), "request id {} is in use", request.request_id);
        self.stats.num_prompt_tokens += request.num_prompt_tokens() as u64;
        self.stats.images.add(&request.media);
        let max_output_tokens = self.max_output_tokens(&request);
        let (request, serial) = (Arc::new(request), self.num_requests);
        self.num_requests += 1;
        for index in 0..n {
            let seq = Sequence { serial, ..Sequence::new(Arc::clone(&request), index) };
            let num_tokens = seq.num_tokens() + max_output_tokens;
            assert!(num_tokens <= self.max_model_len, "the context is too short");
            let has_room = max_output_tokens > 0 || seq.known_end.is_some();
            assert!(has_room || request.asks_of_states(), "no room for a token");
            let max_blocks = self.max_blocks(&seq);
            let is_done = seq.is_known_through();
            let slot = self.take_slot();
            self.seqs[slot] = Some(seq);
            if is_done {
                self.finish(slot, Finish::Length);
                continue;
            }
            let (of, max_output_tokens) = ((slot, request.lora), max_output_tokens.max(1));
            self.waiting.push(request.precedence, of, max_output_tokens, max_blocks);
            if request.params.beam_search.is_some() {
                self.add_beam_row(&request, slot);
            }
        }
    }

    /// The model keeps a state in each block, of the last token that was computed of it: sequences
    /// go back to the end of a block only.
    pub fn goes_back_to_blocks(&mut self) {
        self.granule = self.block_pool.block_size();
    }

    /// A slot for a sequence.
    fn take_slot(&mut self) -> usize {
        self.free_slots.pop().unwrap_or_else(|| {
            self.seqs.push(None);
            self.seqs.len() - 1
        })
    }

    /// Tokens that a completion has at most.
    fn max_output_tokens(&self, request: &Request) -> usize {
        request.max_output_tokens(self.max_model_len)
    }

    /// Blocks that a sequence has at most, or all beams of a row that is searched.
    fn max_blocks(&self, seq: &Sequence) -> usize {
        let (block_size, num_prompt_tokens) = (self.block_size(), seq.num_prompt_tokens);
        let max_tokens = num_prompt_tokens + self.max_output_tokens(&seq.request);
        let max_blocks = max_tokens.div_ceil(block_size);
        let beams = seq.request.params.beam_search;
        let num_more = beams.map_or(0, |beams| beams.beam_width as usize - 1);
        max_blocks + num_more * (max_blocks - num_prompt_tokens / block_size)
    }

    /// Whether `schedule` and `update` have anything left to do or to return.
    pub fn has_unfinished_requests(&self) -> bool {
        !self.requests.is_empty() || !self.finished.is_empty()
    }

    /// What the sampler has to do: one task per entry of the batch's `logits_indices`.
    pub fn row_tasks<'a>(
        &'a self,
        scheduled: &'a Scheduled,
    ) -> impl Iterator<Item = RowTask<'a>> + 'a {
        scheduled.seqs.iter().flat_map(move |entry| {
            let seq = self.seq(entry.slot);
            let params = &*seq.request.params;
            let of_prompt = move |position: usize| RowTask::PromptLogprobs {
                target: seq.token_after(position),
                num_logprobs: seq.request.prompt_logprobs(),
            };
            let sampled = move |num_drafts: usize| match params.beam_search {
                Some(beams) => Self::beam_task(params, beams),
                None if num_drafts > 0 && seq.guide.is_some() => RowTask::Later,
                None => RowTask::Sample(self.sample_task(seq, num_drafts)),
            };
            let drafts = 0..if entry.samples { entry.num_drafts + 1 } else { 0 };
            let sampled = drafts.map(sampled);
            seq.prompt_logits_in(entry.num_tokens).map(of_prompt).chain(sampled)
        })
    }

    /// Whether of every row of the step's batch the likeliest token is all that is looked at.
    pub fn wants_likeliest(&self, scheduled: &Scheduled) -> bool {
        let has_guide = |slot: usize| self.seq(slot).guide.is_some();
        let is_enough = |task: RowTask<'_>| match task {
            RowTask::Sample(task) => task.takes_likeliest(),
            RowTask::PromptLogprobs { .. } | RowTask::Later => false,
        };
        !scheduled.seqs.iter().any(|entry| has_guide(entry.slot))
            && self.row_tasks(scheduled).all(is_enough)
    }

    /// What is sampled after the known tokens and so many drafts.
    fn sample_task<'a>(&self, seq: &'a Sequence, num_drafts: usize) -> SampleTask<'a> {
        SampleTask {
            params: &seq.request.params,
            prompt_token_ids: &seq.request.prompt_token_ids,
            output_token_ids: seq.output_with_drafts(num_drafts),
            num_drafts,
            sampled_row: seq.sampled_row,
            stop_ids: &seq.request.stop_ids,
            bad_words_token_ids: &seq.request.bad_words_token_ids,
            row_key: seq.request.row_key,
            engine_seed: self.engine_seed,
            request_id: seq.request.request_id,
            sample_index: seq.index,
            token_mask: seq.guide.as_ref().and_then(|guide| guide.mask()),
        }
    }

    /// Takes in the results of a step, one per row task; returns the requests that are finished,
    /// after what is new of those that ask for it.
    pub fn update(
        &mut self,
        scheduled: &Scheduled,
        results: impl IntoIterator<Item = RowResult>,
    ) -> Vec<RequestOutput> {
        assert!(std::mem::take(&mut self.in_step), "update without schedule");
        self.step_back(scheduled);
        let mut results = results.into_iter();
        let mut any_finished = false;
        let mut ended_rounds = Vec::new();
        let watches_batch = self.floor.waits();
        for entry in &scheduled.seqs {
            if let Some(request_id) = self.beam_row_of(entry.slot) {
                let result =
                    entry.samples.then(|| results.next().expect("one result per row task"));
                if self.apply_to_beam(request_id, entry, result) {
                    ended_rounds.push(request_id);
                }
                continue;
            }
            let num_sampled = if entry.samples { entry.num_drafts + 1 } else { 0 };
            let num_rows = entry.num_prompt_logits + num_sampled;
            if watches_batch && num_rows > 0 && self.class_of(entry.slot) == RequestClass::Batch {
                self.floor.moved();
            }
            let finish = self.apply(entry, results.by_ref().take(num_rows));
            match finish {
                Some(finish) => {
                    self.finish(entry.slot, finish);
                    any_finished = true;
                }
                None => self.add_delta(entry.slot),
            }
        }
        assert!(results.next().is_none(), "more results than row tasks");
        if any_finished {
            self.running.retain(|&slot| self.seqs[slot].is_some());
        }
        // They take slots, so those of finished sequences are in no queue by now.
        ended_rounds.into_iter().for_each(|request_id| self.end_round(request_id));
        if !scheduled.is_empty() {
            self.stats.num_steps += 1;
            self.stats.num_computed_tokens += scheduled.num_tokens as u64;
        }
        self.take_outputs()
    }

    /// Takes the buffer of a step that is done, for the next one.
    pub fn reuse(&mut self, scheduled: Scheduled) {
        self.spare = scheduled;
    }

    /// Ends a request and frees its blocks; nothing more is returned of it. A step that was begun
    /// ahead is adopted without it. False: it is not here (any more). Not between `schedule` and
    /// `update`.
    pub fn abort(&mut self, request_id: u64) -> bool {
        assert!(!self.in_step, "abort within a step");
        let num_finished = self.finished.len();
        self.finished.retain(|output| output.request_id != request_id);
        if self.requests.remove(&request_id).is_none() {
            return self.finished.len() < num_finished;
        }
        self.beam_rows.remove(&request_id);
        for (slot, seq) in self.seqs.iter_mut().enumerate() {
            if let Some(seq) = seq.take_if(|seq| seq.request.request_id == request_id) {
                self.block_pool.free(&seq.block_table);
                self.free_slots.push(slot);
            }
        }
        self.waiting.retain(|slot| self.seqs[slot].is_some());
        self.running.retain(|&slot| self.seqs[slot].is_some());
        true
    }

    /// Counters since `new`, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        let num_blocks = self.block_pool.num_blocks();
        let (num_offloaded_blocks, num_returned_blocks) = self.block_pool.num_moved();
        EngineStats {
            num_running: self.running.iter().map(|&slot| self.num_places(slot)).sum(),
            num_waiting: self.waiting.len(),
            num_running_batch: {
                let of_batch = &self.running[self.first_running(RequestClass::Batch)..];
                of_batch.iter().map(|&slot| self.num_places(slot)).sum()
            },
            num_waiting_batch: self.waiting.len_of(RequestClass::Batch),
            num_blocks,
            num_used_blocks: num_blocks - self.block_pool.num_free_blocks(),
            block_size: self.block_pool.block_size(),
            num_offloaded_blocks,
            num_returned_blocks,
            ..self.stats
        }
    }

    /// Checks that every block has as many users as block tables name it, and that every sequence
    /// is in the queue of its status. O(num_blocks + tokens), for tests.
    pub fn assert_consistent(&self) {
        self.block_pool.assert_consistent();
        let mut ref_counts = vec![0; self.block_pool.num_blocks()];
        for seq in self.seqs.iter().flatten() {
            seq.block_table.iter().for_each(|&block| ref_counts[block as usize] += 1);
        }
        for (block, &expected) in ref_counts.iter().enumerate() {
            assert_eq!(self.block_pool.ref_count(block as u32), expected, "block {block}");
        }
        let waiting: Vec<_> = self.waiting.slots().flat_map(|slot| self.slots_of(slot)).collect();
        for &slot in &waiting {
            assert!(self.seq(slot).block_table.is_empty(), "a waiting sequence holds blocks");
            assert_ne!(self.seq(slot).status, RequestStatus::Running);
        }
        let running: Vec<_> = self.running.iter().flat_map(|&slot| self.slots_of(slot)).collect();
        for &slot in &running {
            assert_eq!(self.seq(slot).status, RequestStatus::Running);
        }
        let num_seqs = self.seqs.iter().flatten().count();
        assert_eq!(num_seqs, waiting.len() + running.len());
        assert_eq!(num_seqs + self.free_slots.len(), self.seqs.len());
    }

    /// Tokens of a KV block.
    pub fn block_size(&self) -> usize {
        self.block_pool.block_size()
    }

    /// The sequence of a slot.
    pub fn seq(&self, slot: usize) -> &Sequence {
        self.seqs[slot].as_ref().expect("the slot is taken")
    }

    /// Takes in the rows of one sequence; says whether it is finished.
    fn apply(
        &mut self,
        entry: &ScheduledSeq,
        mut rows: impl Iterator<Item = RowResult>,
    ) -> Option<Finish> {
        let granule = self.granule;
        let seq = self.seqs[entry.slot].as_mut().expect("the slot is taken");
        seq.num_computed_tokens += entry.num_tokens - entry.num_drafts;
        let mut finish = None;
        for _ in 0..entry.num_prompt_logits {
            match rows.next().expect("one result per row task") {
                RowResult::PromptLogprobs(row) => {
                    seq.missing_prompt_logits.start += 1;
                    seq.completion.push_prompt_logprobs(row);
                }
                RowResult::State => seq.missing_prompt_logits.start += 1,
                RowResult::NonFinite => finish = Some(non_finite_logits(seq)),
                other => panic!("{other:?} for a prompt token"),
            }
        }
        finish = lost_medium(&seq.request).or(finish);
        if finish.is_none() && entry.samples {
            return self.apply_sampled(entry, rows);
        }
        rows.for_each(drop);
        seq.drop_drafts();
        let mut ends = || seq.is_known_through() && !seq.begin_next_choice(granule);
        finish.or_else(|| ends().then_some(Finish::Length))
    }

    /// Removes a sequence, or all beams of a row; its slot stays in `running` or `waiting`, which
    /// the caller clears.
    fn finish(&mut self, slot: usize, finish: Finish) {
        if let Some(request_id) = self.beam_row_of(slot) {
            return self.finish_beam_row(request_id, finish);
        }
        let mut seq = self.seqs[slot].take().expect("the slot is taken");
        self.free_slots.push(slot);
        self.block_pool.free(&seq.block_table);
        let request_id = seq.request.request_id;
        let state = self.requests.get_mut(&request_id).expect("its request is unfinished");
        match seq.completion.take_of_prompt() {
            OfPrompt::Nothing => {}
            OfPrompt::Positions(entries) => state.prompt_logprobs = Some(entries),
            OfPrompt::Sums(sums) => state.likelihoods.push((seq.index, sums)),
        }
        if seq.index == 0 {
            state.num_cached_tokens = seq.num_cached_tokens.unwrap_or(0);
        }
        let output_token_ids = &seq.token_ids[seq.num_prompt_tokens..];
        let tokenizer = self.tokenizer.as_deref();
        let is_cut = matches!(finish, Finish::StopString { .. })
            && !seq.request.params.include_stop_str_in_output;
        let num_hidden = usize::from(matches!(finish, Finish::Eos | Finish::StopToken(_)));
        let emitted = seq.wants_deltas().then(|| seq.completion.emitted());
        let mut output = seq.completion.into_output(
            &seq.request,
            seq.index,
            output_token_ids,
            finish,
            tokenizer,
        );
        if let Some(guide) = &mut seq.guide {
            let tokens = conclude::Tokens { all: output_token_ids, num_hidden };
            conclude::conclude(guide, &mut output, tokens, is_cut, tokenizer);
        }
        if let Some(emitted) = emitted {
            deltas::push(&mut self.with_deltas, (request_id, &mut *state), emitted.last(&output));
        }
        state.outputs.push(output);
        state.num_unfinished -= 1;
        if state.num_unfinished > 0 {
            return;
        }
        let mut state = self.requests.remove(&request_id).expect("it was just there");
        state.outputs.sort_unstable_by_key(|output| output.index);
        self.answer(seq.request, state);
    }

    /// Returns a finished request.
    fn answer(&mut self, request: Arc<Request>, mut state: RequestState) {
        let request_id = request.request_id;
        state.likelihoods.sort_unstable_by_key(|(index, _)| *index);
        let likelihoods = state.likelihoods.into_iter().flat_map(|(_, sums)| sums);
        let scored = request.asked.answer(likelihoods.collect());
        if scored.is_some() {
            // Its texts have no completions of their own: that of one that failed speaks for all.
            let failed = |output: &CompletionOutput| output.finish_reason != FinishReason::Length;
            let first = state.outputs.iter().position(failed).unwrap_or(0);
            state.outputs.swap(0, first);
            state.outputs.truncate(1);
            state.outputs[0].index = 0;
        }
        let prompt_token_ids = Arc::try_unwrap(request)
            .map_or_else(|shared| shared.prompt_token_ids.clone(), |own| own.prompt_token_ids);
        self.finished.push(RequestOutput {
            request_id,
            finished: true,
            deltas: state.deltas,
            prompt_token_ids,
            prompt_logprobs: state.prompt_logprobs,
            outputs: state.outputs,
            scored,
            num_cached_tokens: state.num_cached_tokens,
        });
    }
}

fn non_finite_logits(seq: &Sequence) -> Finish {
    Finish::Error(RequestError::new(
        "non_finite_logits",
        format!(
            "the model gave no finite logits after {} tokens; its weights may be damaged, or \
             overflow in this dtype (try `settings.dtype` float32)",
            seq.num_computed_tokens
        ),
    ))
}

/// The failure of a request one of whose media could not be read again.
fn lost_medium(request: &Request) -> Option<Finish> {
    let mut images = images_of(&request.media).enumerate();
    let (index, error) = images.find_map(|(index, runs)| Some((index, runs[0].medium.lost()?)))?;
    let num_images = index + 1 + images.count();
    let message = format!("image {} of {num_images}: {error}", index + 1);
    Some(Finish::Error(RequestError::new(error.code(), message)))
}

fn no_token_allowed(seq: &Sequence) -> Finish {
    Finish::Error(RequestError::new(
        "no_token_allowed",
        format!(
            "structured_outputs, allowed_token_ids, bad_words and min_tokens together forbid every \
             token after {} generated ones; relax one of them",
            seq.output_token_ids().len()
        ),
    ))
}
