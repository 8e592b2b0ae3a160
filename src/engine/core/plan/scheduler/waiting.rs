//! `Waiting`: all sequences that wait, in a queue for each precedence.

use std::collections::BTreeMap;

use super::look_ahead::{Room, WaitingQueue};
use crate::plan::block_pool::BlockPool;
use crate::plan::sequence::Sequence;
use vllm_batch_api::request::{LoraId, Precedence, RequestClass};

/// The queues. `look_ahead.rs` says who of a queue is next.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Some may be empty.
    queues: BTreeMap<Precedence, WaitingQueue>,
    max_look_ahead: usize,
}

/// Where a sequence waits: in which queue, and at which place of it.
pub(super) type WaitingPlace = (Precedence, usize);

impl Waiting {
    /// Nobody waits.
    pub(super) fn new(max_look_ahead: usize) -> Self {
        Self { queues: BTreeMap::new(), max_look_ahead }
    }

    fn queue(&mut self, precedence: Precedence) -> &mut WaitingQueue {
        if !self.queues.contains_key(&precedence) {
            // Priorities are the users' numbers, of which there is no end.
            self.queues.retain(|_, queue| queue.len() > 0);
        }
        let new = || WaitingQueue::new(self.max_look_ahead);
        self.queues.entry(precedence).or_insert_with(new)
    }

    /// As `WaitingQueue::push`.
    pub(super) fn push(
        &mut self,
        precedence: Precedence,
        of: (usize, Option<LoraId>),
        max_output_tokens: usize,
        max_blocks: usize,
    ) {
        self.queue(precedence).push(of, max_output_tokens, max_blocks);
    }

    /// As `WaitingQueue::push_preempted`.
    pub(super) fn push_preempted(
        &mut self,
        precedence: Precedence,
        slot: usize,
        lora: Option<LoraId>,
    ) {
        self.queue(precedence).push_preempted(slot, lora);
    }

    /// Place of the one of a class that is admitted next. None: nobody waits, or there is no room
    /// for an adapter.
    pub(super) fn choose<'a>(
        &mut self,
        class: RequestClass,
        pool: &BlockPool,
        room: Room<'_>,
        seq: impl Fn(usize) -> &'a Sequence,
    ) -> Option<WaitingPlace> {
        let mut queues = self.queues.iter_mut();
        let (&precedence, queue) = queues.find(|(of, queue)| is_of(class, of, queue))?;
        Some((precedence, queue.choose(pool, room, seq)?))
    }

    /// Whether any of a class waits.
    pub(super) fn has(&self, class: RequestClass) -> bool {
        self.front(class).is_some()
    }

    /// Slot of the first of a class.
    pub(super) fn front(&self, class: RequestClass) -> Option<usize> {
        let mut queues = self.queues.iter();
        let (_, queue) = queues.find(|(of, queue)| is_of(class, of, queue))?;
        Some(queue.slot(0))
    }

    /// Slot of the one at a place.
    pub(super) fn slot(&self, (precedence, place): WaitingPlace) -> usize {
        self.queues[&precedence].slot(place)
    }

    /// Takes out the one at a place.
    pub(super) fn remove(&mut self, (precedence, place): WaitingPlace) {
        self.queue(precedence).remove(place);
    }

    /// Keeps those whose slots are as asked.
    pub(super) fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.queues.values_mut().for_each(|queue| queue.retain(&is_kept));
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.queues.values().map(WaitingQueue::len).sum()
    }

    /// How many of a class wait.
    pub(super) fn len_of(&self, class: RequestClass) -> usize {
        let of_class = self.queues.iter().filter(|(of, _)| of.class == class);
        of_class.map(|(_, queue)| queue.len()).sum()
    }

    /// Their slots, in the order of their turns within a precedence.
    pub(super) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.queues.values().flat_map(WaitingQueue::slots)
    }
}

fn is_of(class: RequestClass, of: &Precedence, queue: &WaitingQueue) -> bool {
    of.class == class && queue.len() > 0
}
