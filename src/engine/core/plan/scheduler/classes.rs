//! Rows of a batch beside requests that somebody waits for. The order of all queues is that of
//! [`Precedence`]; here is what follows from the classes.
//!
//! ```text
//! running   | online, by priority ... | batch, by priority ............. |
//!                                     | floor keeps these | victims  <-- | the last one first
//! step      1 running online   2 waiting online   3 running batch   4 waiting batch
//! ```
//!
//! A request that somebody waits for is given the places, KV blocks and adapters of rows of a
//! batch, the last ones first, until it fits: in 2, before any of them is in the step. What the
//! floor keeps (`floor.rs`) is not taken; nor do 1 and 2 take what it keeps for the row of a batch
//! that is next. A row that is preempted is computed again, to the same bytes.

use super::Scheduler;
use super::schedule::Step;
use vllm_batch_api::request::{Precedence, RequestClass};

/// What a step keeps from those who wait for an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) num_tokens: usize,
    pub(super) num_prompt_logits: usize,
    /// Of the row of a batch that is next.
    pub(super) num_places: usize,
    pub(super) num_blocks: usize,
    /// Nobody is admitted before that row.
    pub(super) admits_none: bool,
}

/// What somebody's request lacks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lacking {
    pub(super) num_places: usize,
    /// Free or given up by others; prefixes that are known are not among them.
    pub(super) num_blocks: usize,
    pub(super) lora: bool,
}

impl Scheduler {
    pub(super) fn precedence_of(&self, slot: usize) -> Precedence {
        self.seq(slot).request.precedence
    }

    pub(super) fn class_of(&self, slot: usize) -> RequestClass {
        self.precedence_of(slot).class
    }

    /// Puts a sequence among the running ones: behind those that go before it.
    pub(super) fn join_running(&mut self, slot: usize) {
        let own = self.precedence_of(slot);
        let place = self.running.partition_point(|&other| self.precedence_of(other) <= own);
        self.running.insert(place, slot);
    }

    /// Where the running ones of a class begin.
    pub(super) fn first_running(&self, class: RequestClass) -> usize {
        self.running.partition_point(|&slot| self.class_of(slot) < class)
    }

    /// Whether both classes have work.
    fn has_both(&self) -> bool {
        let first_of_batch = self.first_running(RequestClass::Batch);
        let has_online = first_of_batch > 0 || self.waiting.has(RequestClass::Online);
        let has_batch =
            first_of_batch < self.running.len() || self.waiting.has(RequestClass::Batch);
        has_online && has_batch
    }

    /// Where those of a batch begin that may be preempted for whoever waits for an answer.
    fn first_victim(&self) -> usize {
        let first = self.first_running(RequestClass::Batch);
        let mut sum = (0, 0);
        let mut is_kept = |place: usize| {
            sum = self.with_row(sum, self.running[place]);
            self.is_below_floor(sum) || (place == first && self.floor.is_last_phase())
        };
        (first..self.running.len()).find(|&place| !is_kept(place)).unwrap_or(self.running.len())
    }

    /// Whether rows of a batch may be preempted for somebody who waits.
    pub(super) fn may_give_way(&self) -> bool {
        self.waiting.has(RequestClass::Online) && self.first_victim() < self.running.len()
    }

    /// Places and blocks, with those of one row more.
    fn with_row(&self, (places, blocks): (usize, usize), slot: usize) -> (usize, usize) {
        let held = |&slot: &usize| self.seq(slot).block_table.len();
        let held: usize = match self.beam_row_of(slot) {
            None => held(&slot),
            Some(_) => self.slots_of(slot).iter().map(held).sum(),
        };
        (places + self.num_places(slot), blocks + held)
    }

    fn is_below_floor(&self, (places, blocks): (usize, usize)) -> bool {
        places <= self.floor.share(self.sizes.max_num_seqs)
            && blocks <= self.floor.share(self.block_pool.num_blocks())
    }

    /// Whether a waiting row of a batch goes before those who wait for an answer.
    pub(super) fn is_due(&self, slot: usize) -> bool {
        let running = &self.running[self.first_running(RequestClass::Batch)..];
        let (places, blocks) = running.iter().fold((0, 0), |sum, &slot| self.with_row(sum, slot));
        let with_it = (places + self.num_places(slot), blocks + self.num_blocks_needed(slot));
        self.is_below_floor(with_it) || (running.is_empty() && self.floor.is_last_phase())
    }

    /// What the step keeps for rows of a batch; counts it.
    pub(super) fn keep_for_batch(&mut self) -> Kept {
        if !self.has_both() {
            return Kept::default();
        }
        let first = self.first_running(RequestClass::Batch);
        if first < self.running.len() || !self.floor.is_last_phase() {
            self.floor.count_step();
        }
        let kept_rows = &self.running[first..self.first_victim()];
        let missing = |&slot: &usize| {
            let seq = self.seq(slot);
            (seq.num_tokens() - seq.num_computed_tokens).max(self.num_places(slot))
        };
        let mut num_wanted: usize = kept_rows.iter().map(missing).sum();
        let mut kept = Kept::default();
        if let Some(slot) =
            self.waiting.front(RequestClass::Batch).filter(|&slot| self.is_due(slot))
        {
            num_wanted += self.seq(slot).num_tokens();
            (kept.num_places, kept.num_blocks) =
                (self.num_places(slot), self.num_blocks_needed(slot));
            kept.admits_none = first == self.running.len() && self.floor.is_last_phase();
        }
        let sizes = &self.sizes;
        kept.num_tokens = self.floor.share(sizes.max_num_batched_tokens).min(num_wanted);
        if num_wanted > 0 {
            kept.num_prompt_logits = self.floor.share(sizes.max_num_prompt_logits);
        }
        // An image that is attended to whole may need all of a step.
        let step = Step::of(kept.num_tokens, kept.num_prompt_logits);
        let is_cut = kept_rows.first().is_some_and(|&slot| self.is_cut(slot, &step));
        if self.floor.waits() && is_cut {
            kept.num_tokens = sizes.max_num_batched_tokens;
            kept.num_prompt_logits = sizes.max_num_prompt_logits;
        }
        kept
    }

    /// Takes what somebody's request lacks from a row of a batch, if that helps; false: it waits.
    pub(super) fn give_way(&mut self, lacking: Lacking) -> bool {
        let first = self.first_victim();
        // A step ahead preempts nobody.
        if self.is_advanced || first == self.running.len() {
            return false;
        }
        let victims = &self.running[first..];
        let (places, blocks) = victims.iter().fold((0, 0), |sum, &slot| self.with_row(sum, slot));
        let has_lora = !lacking.lora || {
            let mut loras: Vec<_> = self.running[..first]
                .iter()
                .filter_map(|&slot| self.seq(slot).request.lora)
                .collect();
            loras.sort_unstable();
            loras.dedup();
            loras.len() < self.sizes.max_loras
        };
        let num_free_blocks =
            self.block_pool.num_free_blocks().saturating_sub(self.num_kept_blocks);
        if !has_lora || places < lacking.num_places || num_free_blocks + blocks < lacking.num_blocks
        {
            return false;
        }
        let last = self.running.pop().expect("there are victims");
        self.preempt(last);
        true
    }
}
