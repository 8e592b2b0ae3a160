//! What is new of requests that ask for it (`RequestOutputKind::Delta`), step by step. How far a
//! sequence is out is kept with its text (`completion.rs`), so neither a preemption nor drafts
//! repeat or lose any of it. Requests that do not ask have no part in this.

use super::{RequestState, Scheduler};
use vllm_batch_api::request::{CompletionDelta, RequestOutput};

/// Adds a delta to those of its request in this step.
pub(super) fn push(
    with_deltas: &mut Vec<u64>,
    (request_id, state): (u64, &mut RequestState),
    delta: CompletionDelta,
) {
    if state.deltas.is_empty() {
        with_deltas.push(request_id);
    }
    state.deltas.push(delta);
}

impl Scheduler {
    /// Takes what is new of a sequence that goes on.
    pub(super) fn add_delta(&mut self, slot: usize) {
        let Self { seqs, requests, with_deltas, .. } = self;
        let seq = seqs[slot].as_mut().expect("the slot is taken");
        let Some(delta) = seq.take_delta() else { return };
        let request_id = seq.request.request_id;
        let state = requests.get_mut(&request_id).expect("its request is unfinished");
        push(with_deltas, (request_id, state), delta);
    }

    /// What a step returns: requests that go on and have something new, then finished ones.
    pub(super) fn take_outputs(&mut self) -> Vec<RequestOutput> {
        let finished = std::mem::take(&mut self.finished);
        if self.with_deltas.is_empty() {
            return finished;
        }
        let mut outputs = Vec::with_capacity(self.with_deltas.len() + finished.len());
        for request_id in self.with_deltas.drain(..) {
            // One that is finished has them in its output; one that was aborted is not here.
            let state = self.requests.get_mut(&request_id);
            let deltas = state.map_or_else(Vec::new, |state| std::mem::take(&mut state.deltas));
            if !deltas.is_empty() {
                outputs.push(RequestOutput::of_deltas(request_id, deltas));
            }
        }
        outputs.extend(finished);
        outputs
    }
}
