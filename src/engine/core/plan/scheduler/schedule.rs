//! `schedule`: the decisions of a step. Running sequences first, in order of admission; then, if
//! nobody was preempted, waiting ones (`look_ahead.rs` says which), as long as the token budget,
//! the slots and the blocks last. That twice: for those that somebody waits for, and then for rows
//! of a batch (`classes.rs`).

use super::super::completion::Finish;
use super::classes::{Kept, Lacking};
use super::look_ahead::Room;
use super::{Scheduled, ScheduledSeq, Scheduler};
use crate::plan::sequence::Sequence;
use crate::request::{RequestStatus, Whole};
use vllm_batch_api::request::{Asked, RequestClass, RequestError};

/// Output tokens that a sequence has room for when it is admitted, so that steps allocate nothing.
/// `max_tokens` may be the whole context, of which little is used.
const MAX_RESERVED_TOKENS: usize = 1024;

/// A step while it is put together: what it holds, and what may still be added.
pub(super) struct Step {
    scheduled: Scheduled,
    pub(super) token_budget: usize,
    prompt_logits_budget: usize,
    /// Of both, what rows of a batch are kept.
    kept: (usize, usize),
}

/// What is free for those who are admitted.
struct Free {
    num_places: usize,
    /// Blocks of those that run, at their full length.
    num_running_blocks: usize,
}

/// What became of the next one that waits.
enum Admission {
    /// It runs, or has failed.
    Done,
    /// It does not fit beside those that run.
    Lacks(Lacking),
    /// Nobody is admitted in this step any more.
    Over,
}

impl Step {
    /// An empty step of so many tokens and rows of prompt logits.
    pub(super) fn of(token_budget: usize, prompt_logits_budget: usize) -> Self {
        let (scheduled, kept) = (Scheduled::default(), (0, 0));
        Self { scheduled, token_budget, prompt_logits_budget, kept }
    }

    fn keep(&mut self, kept: &Kept) {
        self.kept = (kept.num_tokens, kept.num_prompt_logits);
        self.token_budget -= self.kept.0;
        self.prompt_logits_budget -= self.kept.1;
    }

    /// What was kept may be used from now on.
    fn give_back(&mut self) {
        let (num_tokens, num_prompt_logits) = std::mem::take(&mut self.kept);
        self.token_budget += num_tokens;
        self.prompt_logits_budget += num_prompt_logits;
    }
}

impl Scheduler {
    /// Decides who runs in the next step. Every call is followed by one of `update`.
    ///
    /// Each step with unfinished requests computes at least one token or finishes a sequence: the
    /// oldest running one gets all blocks in the end, and fails if those are too few.
    pub fn schedule(&mut self) -> Scheduled {
        assert!(!std::mem::replace(&mut self.in_step, true), "schedule without update");
        self.decide()
    }

    /// The decisions, from where the sequences are; of a step ahead, from where they will be.
    pub(super) fn decide(&mut self) -> Scheduled {
        let mut scheduled = std::mem::take(&mut self.spare);
        scheduled.seqs.clear();
        scheduled.num_tokens = 0;
        scheduled.block_copies.clear();
        let sizes = &self.sizes;
        let budgets = (sizes.max_num_batched_tokens, sizes.max_num_prompt_logits);
        let mut step = Step { scheduled, ..Step::of(budgets.0, budgets.1) };
        let kept = self.keep_for_batch();
        step.keep(&kept);
        let num_preemptions = self.stats.num_preemptions;
        if self.schedule_running(&mut step, RequestClass::Online) {
            self.schedule_waiting(&mut step, RequestClass::Online, &kept);
        }
        step.give_back();
        self.schedule_running(&mut step, RequestClass::Batch);
        // A preempted sequence is at the head of its queue, and there is no room for it.
        if self.stats.num_preemptions == num_preemptions {
            self.schedule_waiting(&mut step, RequestClass::Batch, &Kept::default());
        }
        if step.scheduled.is_empty() && kept.num_tokens > 0 {
            // No row of a batch had room to use what was kept for it.
            self.schedule_running(&mut step, RequestClass::Online);
        }
        if !step.scheduled.is_empty() {
            self.block_pool.take_copies(&mut step.scheduled.block_copies);
        }
        // What leaves a block leaves it before a beam's copy comes.
        step.scheduled.block_copies.append(&mut self.block_copies);
        let lora = |entry: &ScheduledSeq| self.seq(entry.slot).request.lora;
        if step.scheduled.seqs.iter().any(|entry| lora(entry).is_some()) {
            // Stable: who shares blocks that this step fills has the same adapter, and comes after.
            step.scheduled.seqs.sort_by_key(lora);
        }
        step.scheduled
    }

    /// Those of a class; false: one of them was preempted.
    fn schedule_running(&mut self, step: &mut Step, class: RequestClass) -> bool {
        let (mut i, mut has_room) = (self.first_running(class), true);
        while i < self.running.len() && step.token_budget > 0 {
            let slot = self.running[i];
            if self.class_of(slot) != class {
                break;
            }
            if step.kept.0 > 0 && step.scheduled.is_empty() && self.is_cut(slot, step) {
                // Its image may need all of a step.
                step.give_back();
            }
            // One of a row's beams at least has something to compute.
            if self.beam_row_of(slot).is_none() && self.num_new_tokens(slot, step) == 0 {
                i += 1;
                continue;
            }
            if self.num_blocks_needed(slot) > self.block_pool.num_blocks() {
                self.running.remove(i);
                self.finish(slot, self.kv_cache_too_small(slot));
                continue;
            }
            while !self.grow(slot) {
                // The last, perhaps this one itself; those before `i` are in the step already.
                let last = self.running.pop().expect("it holds `slot`");
                has_room &= self.class_of(last) != class;
                self.preempt(last);
                if last == slot {
                    return false;
                }
            }
            self.add_to_step(slot, step);
            i += 1;
        }
        has_room
    }

    fn schedule_waiting(&mut self, step: &mut Step, class: RequestClass, kept: &Kept) {
        if kept.admits_none || !self.waiting.has(class) {
            return;
        }
        self.num_kept_blocks = kept.num_blocks;
        let mut free = self.free(kept);
        while step.token_budget > 0 {
            match self.admit_next(step, class, &mut free) {
                Admission::Done => {}
                Admission::Lacks(lacking)
                    if class == RequestClass::Online && self.give_way(lacking) =>
                {
                    free = self.free(kept);
                }
                Admission::Lacks(_) | Admission::Over => break,
            }
        }
        self.num_kept_blocks = 0;
    }

    /// What is free beside those that run.
    fn free(&mut self, kept: &Kept) -> Free {
        self.running_loras.clear();
        (0..self.running.len()).for_each(|place| self.add_running_lora(self.running[place]));
        let of_running = self.running.iter().map(|&slot| self.max_blocks(self.seq(slot)));
        let num_running_blocks = of_running.sum();
        let goes_on = self.running.iter().filter(|&&slot| !self.is_at_its_last(self.seq(slot)));
        let places: usize = goes_on.map(|&slot| self.num_places(slot)).sum();
        let num_places = (self.sizes.max_num_seqs - places).saturating_sub(kept.num_places);
        Free { num_places, num_running_blocks }
    }

    fn admit_next(&mut self, step: &mut Step, class: RequestClass, free: &mut Free) -> Admission {
        if !self.waiting.has(class) {
            return Admission::Over;
        }
        if free.num_places == 0 {
            return Admission::Lacks(Lacking { num_places: 1, ..Lacking::default() });
        }
        let room = Room {
            num_seqs: free.num_places,
            num_blocks: self.block_pool.num_blocks().saturating_sub(free.num_running_blocks),
            only_loras: (self.running_loras.len() >= self.sizes.max_loras)
                .then_some(&self.running_loras),
        };
        let seq = |slot: usize| self.seqs[slot].as_ref().expect("the slot is taken");
        let Some(place) = self.waiting.choose(class, &self.block_pool, room, seq) else {
            return Admission::Lacks(Lacking { lora: true, ..Lacking::default() });
        };
        let slot = self.waiting.slot(place);
        // Beams need the tokens of the step before.
        if self.is_advanced && self.beam_row_of(slot).is_some() {
            return Admission::Over;
        }
        let num_blocks = self.num_blocks_needed(slot);
        if num_blocks > self.block_pool.num_blocks() {
            self.waiting.remove(place);
            self.finish(slot, self.kv_cache_too_small(slot));
            return Admission::Done;
        }
        let gives_way = class == RequestClass::Batch && self.waiting.has(RequestClass::Online);
        let wants_prompt_logits = !self.seq(slot).missing_prompt_logits.is_empty();
        if (wants_prompt_logits && step.prompt_logits_budget == 0)
            || (gives_way && !self.is_due(slot))
        {
            return Admission::Over;
        }
        let num_places = self.num_places(slot);
        if num_places > free.num_places {
            let num_places = num_places - free.num_places;
            return Admission::Lacks(Lacking { num_places, num_blocks, lora: false });
        }
        self.prefix_hits.clear();
        if !self.admit(slot) {
            let num_blocks = num_blocks.saturating_sub(self.prefix_hits.len());
            return Admission::Lacks(Lacking { num_blocks, ..Lacking::default() });
        }
        self.waiting.remove(place);
        self.join_running(slot);
        self.add_running_lora(slot);
        free.num_places -= num_places;
        free.num_running_blocks += self.max_blocks(self.seq(slot));
        self.add_to_step(slot, step);
        Admission::Done
    }

    fn add_running_lora(&mut self, slot: usize) {
        let lora = self.seq(slot).request.lora;
        self.running_loras.extend(lora.filter(|lora| !self.running_loras.contains(lora)));
    }

    fn admit(&mut self, slot: usize) -> bool {
        match self.beam_row_of(slot) {
            Some(request_id) => self.admit_beams(request_id),
            None => self.admit_sequence(slot),
        }
    }

    /// Gives a waiting sequence the blocks of all its known tokens, those of a cached prefix
    /// shared, if that many are free. Its later chunks are covered too. So a prompt that has begun
    /// preempts no other sequence, and no later one takes the blocks that it still needs.
    pub(super) fn admit_sequence(&mut self, slot: usize) -> bool {
        let num_needed = self.num_blocks_of_sequence(slot);
        let max_output_tokens = self.max_output_tokens(&self.seq(slot).request);
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        let max_cached_tokens = seq.max_cached_tokens();
        let hits = &mut self.prefix_hits;
        let last_serial =
            self.block_pool.find_prefix(seq.root_and_tokens(), max_cached_tokens, hits);
        // Hits that nobody uses are in the free list as well, or need blocks of it.
        let num_free_hits = self.block_pool.num_free_of_prefix(hits);
        let num_taken = num_needed - hits.len() + num_free_hits;
        if num_taken + self.num_kept_blocks > self.block_pool.num_free_blocks() {
            return false;
        }
        seq.status = RequestStatus::Running;
        seq.reserve(max_output_tokens.min(MAX_RESERVED_TOKENS), self.block_pool.block_size());
        seq.last_serial = last_serial;
        seq.num_registered_blocks = hits.len();
        seq.num_computed_tokens = hits.len() * self.block_pool.block_size();
        if seq.num_cached_tokens.is_none() {
            seq.num_cached_tokens = Some(seq.num_computed_tokens);
            self.stats.num_cached_tokens += seq.num_computed_tokens as u64;
        }
        self.block_pool.take_prefix(&mut self.prefix_hits);
        seq.block_table.extend_from_slice(&self.prefix_hits);
        let grown = self.grow_sequence(slot);
        assert!(grown, "the blocks were counted");
        true
    }

    fn grow(&mut self, slot: usize) -> bool {
        match self.beam_row_of(slot) {
            Some(request_id) => self.grow_beams(request_id),
            None => self.grow_sequence(slot),
        }
    }

    /// Extends the block table to hold all known tokens; false if the pool runs out.
    pub(super) fn grow_sequence(&mut self, slot: usize) -> bool {
        let num_needed = self.num_blocks_of_sequence(slot);
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        while seq.block_table.len() < num_needed {
            let Some(block) = self.block_pool.allocate() else { return false };
            seq.block_table.push(block);
        }
        true
    }

    pub(super) fn preempt(&mut self, slot: usize) {
        assert!(!self.is_advanced, "the blocks of a step ahead were counted");
        if let Some(request_id) = self.beam_row_of(slot) {
            self.preempt_beams(request_id);
        } else {
            let seq = self.seqs[slot].as_mut().expect("the slot is taken");
            self.block_pool.free(&seq.block_table);
            seq.preempt();
        }
        let (precedence, lora) = (self.precedence_of(slot), self.seq(slot).request.lora);
        self.waiting.push_preempted(precedence, slot, lora);
        self.stats.num_preemptions += 1;
        self.stats.num_batch_preemptions += u64::from(precedence.class == RequestClass::Batch);
    }

    /// Tokens that a sequence may compute in this step, none if nothing follows its last: up to its
    /// end, the token budget, and the last prompt position whose logits the step can still hold.
    fn num_new_tokens(&self, slot: usize, step: &Step) -> usize {
        let seq = self.seq(slot);
        if self.is_at_its_last(seq) {
            return 0;
        }
        let num_missing = seq.num_tokens() - seq.num_computed_tokens;
        let num_new_tokens = num_missing.min(step.token_budget);
        let wanted = seq.prompt_logits_in(num_new_tokens);
        let num_new_tokens = match wanted.len() <= step.prompt_logits_budget {
            true => num_new_tokens,
            false => wanted.start + step.prompt_logits_budget - seq.num_computed_tokens,
        };
        self.before_cut_image(seq, num_new_tokens)
    }

    /// Whether a sequence has something to compute, and nothing of it fits into the step.
    pub(super) fn is_cut(&self, slot: usize, step: &Step) -> bool {
        !self.is_at_its_last(self.seq(slot)) && self.num_new_tokens(slot, step) == 0
    }

    /// So many of the next tokens, or those before an image that would be cut and whose tokens
    /// attend to all of it. There is room for it where it has the step to itself (`StepSizes`).
    /// What is cached of an image was computed with all of it, so it may begin anywhere.
    fn before_cut_image(&self, seq: &Sequence, num_tokens: usize) -> usize {
        let start = seq.num_computed_tokens;
        let end = start + num_tokens;
        let (num_tokens_of_step, num_prompt_logits) =
            (self.sizes.max_num_batched_tokens, self.sizes.max_num_prompt_logits);
        let cut = seq.request.media.iter().find_map(|run| {
            let whole = run.whole_positions()?;
            let most = match run.whole {
                // Nobody asks for logits of such a prompt.
                Whole::Prompt { .. } | Whole::Unscored => num_tokens_of_step,
                _ => num_tokens_of_step.min(num_prompt_logits),
            };
            let is_cut = whole.start < end && end < whole.end.min(seq.num_prompt_tokens);
            (is_cut && whole.len() <= most).then_some(whole.start)
        });
        cut.map_or(num_tokens, |first| first.saturating_sub(start))
    }

    fn add_to_step(&mut self, slot: usize, step: &mut Step) {
        match self.beam_row_of(slot) {
            Some(request_id) => self.add_beams_to_step(request_id, step),
            None => self.add_sequence_to_step(slot, step),
        }
    }

    pub(super) fn add_sequence_to_step(&mut self, slot: usize, step: &mut Step) {
        let num_tokens = self.num_new_tokens(slot, step);
        if num_tokens == 0 {
            // An image that the step has no room for is next.
            return;
        }
        self.register_full_blocks(slot, num_tokens);
        let seq = self.seq(slot);
        let num_prompt_logits = seq.prompt_logits_in(num_tokens).len();
        let samples = seq.samples_after(num_tokens);
        step.token_budget -= num_tokens;
        step.prompt_logits_budget -= num_prompt_logits;
        step.scheduled.num_tokens += num_tokens;
        let num_drafts = 0;
        let entry = ScheduledSeq { slot, num_tokens, num_drafts, num_prompt_logits, samples };
        step.scheduled.seqs.push(entry);
    }

    /// Offers the blocks that this step fills to the prefix cache, before they are computed, so
    /// that a sibling later in the same step shares them. That is sound because the executor
    /// writes K and V of all tokens of a step, layer by layer, before that layer's attention reads
    /// any. A sequence that is in a step is not preempted in it: the victim is always the last
    /// running one, which comes after all those that were added, and a preemption ends admission,
    /// but where a row of a batch gives way, before any of those is in the step.
    pub(super) fn register_full_blocks(&mut self, slot: usize, num_new_tokens: usize) {
        let block_size = self.block_pool.block_size();
        let seq = self.seqs[slot].as_mut().expect("the slot is taken");
        let num_known = (seq.num_computed_tokens + num_new_tokens).min(seq.num_known_tokens());
        let num_full = num_known.min(seq.num_shareable_tokens()) / block_size;
        for i in seq.num_registered_blocks..num_full {
            let content = &seq.token_ids[i * block_size..(i + 1) * block_size];
            seq.last_serial =
                self.block_pool.register(seq.block_table[i], seq.last_serial, content);
        }
        seq.num_registered_blocks = seq.num_registered_blocks.max(num_full);
    }

    /// Blocks for all known tokens.
    pub(super) fn num_blocks_needed(&self, slot: usize) -> usize {
        match self.beam_row_of(slot) {
            Some(request_id) => self.num_blocks_of_beams(request_id),
            None => self.num_blocks_of_sequence(slot),
        }
    }

    pub(super) fn num_blocks_of_sequence(&self, slot: usize) -> usize {
        self.seq(slot).num_tokens().div_ceil(self.block_pool.block_size())
    }

    fn kv_cache_too_small(&self, slot: usize) -> Finish {
        let num_tokens = self.seq(slot).num_tokens();
        let has = match self.slots_of(slot).len() {
            1 => format!("sequence has {num_tokens} tokens"),
            beams => {
                let num_shared = self.num_blocks_needed(slot) * self.block_size();
                format!("row has {beams} beams of {num_tokens} tokens, {num_shared} in all")
            }
        };
        let capacity = self.block_pool.num_blocks() * self.block_pool.block_size();
        let or = match self.seq(slot).request.asked {
            Asked::State | Asked::States => "cut texts with `settings.truncate_prompt_tokens`",
            _ => "lower max_tokens or `settings.max_model_len`",
        };
        Finish::Error(RequestError::new(
            "kv_cache_too_small",
            format!(
                "the {has} and the whole KV cache holds {capacity}; \
                 enlarge it (`settings.kv_cache_memory_bytes`, or `settings.gpu_memory_utilization` on a GPU), or {or}"
            ),
        ))
    }
}
