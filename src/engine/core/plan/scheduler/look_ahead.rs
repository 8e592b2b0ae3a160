//! `WaitingQueue`: the sequences that wait, and which of them is admitted next.
//!
//! First come, first served, with three exceptions, which gain time or keep a limit. No row's bytes
//! depend on it:
//! - When the pool cannot hold all of the window without forgetting prefixes, rows go first whose
//!   prefix it holds and no running sequence uses. So shuffled rows of many prefixes are computed
//!   prefix by prefix, and rows of a few prefixes that are always in use keep their turns.
//! - When as many adapters run as a step may have, rows of another one wait.
//! - When the pool holds all that run at their full length, rows that may become long go early, so
//!   that a run does not end with few rows in a step. In a smaller pool long rows side by side
//!   would be preempted more than those of all lengths are.
//!
//! ```text
//! turn       0 1 2 3 4 5 6 7 8 9 ...     the order in which sequences came
//! admitted   x x . x . x                 4 so far, so it is turn 4's time
//! window         ^...^...^ ^             the first `max_look_ahead` of those that wait
//! ```
//!
//! No sequence starves. One in the window is less than `max_look_ahead` places before its turn. One
//! that is `max_look_ahead` places after its turn goes before all others. Turns differ, so that is
//! one sequence at a time. Where that one waits for room for its adapter, nobody goes before it:
//! sequences end, and none takes their adapters' places. (Places of aborted sequences count as
//! theirs.)

use std::collections::VecDeque;

use crate::plan::block_pool::{BlockPool, KnownPrefix};
use crate::plan::sequence::Sequence;
use vllm_batch_api::request::LoraId;

/// Sequences without blocks, by slot.
#[derive(Debug)]
pub(super) struct WaitingQueue {
    /// Preempted ones, the last preempted first; then the others in the order of their turns.
    entries: VecDeque<Entry>,
    /// Sequences that ever came: the next one's turn.
    num_arrivals: usize,
    /// Places that a sequence may be admitted before or after its turn.
    max_look_ahead: usize,
}

/// One that waits, with what the choice depends on: the window is read at every admission.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: usize,
    /// None: it was admitted before, and preempted.
    turn: Option<usize>,
    /// Twice the binary logarithm of its longest output, rounded down: most rows end before their
    /// `max_tokens`, so a row counts as longer only if its bound is larger by 41 % or more.
    length_class: u32,
    /// Blocks of prompt and longest output.
    max_blocks: usize,
    lora: Option<LoraId>,
    known: KnownPrefix,
}

/// What is left beside the sequences that run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room<'a> {
    /// Sequences that may be admitted.
    pub(super) num_seqs: usize,
    /// Blocks of the pool, when all that run have their full length.
    pub(super) num_blocks: usize,
    /// Adapters of those that run, where no other one may be added.
    pub(super) only_loras: Option<&'a [LoraId]>,
}

impl Room<'_> {
    fn takes(&self, lora: Option<LoraId>) -> bool {
        lora.is_none_or(|lora| self.only_loras.is_none_or(|loras| loras.contains(&lora)))
    }
}

impl WaitingQueue {
    /// An empty queue.
    pub(super) fn new(max_look_ahead: usize) -> Self {
        Self { entries: VecDeque::new(), num_arrivals: 0, max_look_ahead }
    }

    /// A new sequence, which may generate up to `max_output_tokens`, at least 1.
    pub(super) fn push(
        &mut self,
        (slot, lora): (usize, Option<LoraId>),
        max_output_tokens: usize,
        max_blocks: usize,
    ) {
        let turn = Some(self.num_arrivals);
        self.num_arrivals += 1;
        let length_class = (max_output_tokens as u64).pow(2).ilog2();
        let known = KnownPrefix::default();
        self.entries.push_back(Entry { slot, turn, length_class, max_blocks, lora, known });
    }

    /// A sequence that has lost its blocks: it is the next one.
    pub(super) fn push_preempted(&mut self, slot: usize, lora: Option<LoraId>) {
        let known = KnownPrefix::default();
        let entry = Entry { slot, turn: None, length_class: 0, max_blocks: 0, lora, known };
        self.entries.push_front(entry);
    }

    /// Place of the one that is admitted next. None: nobody waits, or there is no room for the
    /// adapter of whoever's turn it is, or for those of all that may go before.
    pub(super) fn choose<'a>(
        &mut self,
        pool: &BlockPool,
        room: Room<'_>,
        seq: impl Fn(usize) -> &'a Sequence,
    ) -> Option<usize> {
        // Where nobody is preempted, all that left the queue had their turns.
        let num_left = self.num_arrivals.saturating_sub(self.entries.len());
        let front = self.entries.front()?;
        match front.turn {
            Some(turn) if num_left < turn + self.max_look_ahead => {}
            _ => return room.takes(front.lora).then_some(0),
        }
        let window = self.entries.len().min(self.max_look_ahead);
        let forgets_prefixes = self.num_blocks(window) > pool.num_fresh_blocks();
        let holds_all = self.num_blocks(room.num_seqs) <= room.num_blocks;
        let mut best = None;
        for (place, entry) in self.entries.range_mut(..window).enumerate() {
            if !room.takes(entry.lora) {
                continue;
            }
            if forgets_prefixes {
                let seq = seq(entry.slot);
                let (prefix, max_tokens) = (seq.root_and_tokens(), seq.max_cached_tokens());
                pool.follow_prefix(prefix, max_tokens, &mut entry.known);
            }
            let key = (
                if forgets_prefixes { pool.num_endangered(entry.known) } else { 0 },
                if holds_all { entry.length_class } else { 0 },
            );
            // In turn among equals.
            if best.is_none_or(|(_, best)| key > best) {
                best = Some((place, key));
            }
        }
        best.map(|(place, _)| place)
    }

    /// Blocks of the first so many at their full length.
    fn num_blocks(&self, num_seqs: usize) -> usize {
        self.entries.iter().take(num_seqs).map(|entry| entry.max_blocks).sum()
    }

    /// Slot of the one at a place.
    pub(super) fn slot(&self, place: usize) -> usize {
        self.entries[place].slot
    }

    /// Takes out the one at a place.
    pub(super) fn remove(&mut self, place: usize) {
        self.entries.remove(place).expect("the place is taken");
    }

    /// Keeps those whose slots are as asked.
    pub(super) fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.entries.retain(|entry| is_kept(entry.slot));
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Their slots.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.entries.iter().map(|entry| entry.slot)
    }
}
