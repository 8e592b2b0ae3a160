//! `BatchEngine`: a batch's part of the engine, which other requests are asked of too.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::engine_thread::Asker;
use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::RequestClass;
use vllm_batch_base::EngineError;
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::runner::{BorrowedEngine, Work};
use vllm_batch_engine::stats::EngineStats;

/// How long a step waits for an answer.
const STEP: Duration = Duration::from_millis(50);

/// A batch's part of the engine.
pub(super) struct BatchEngine {
    asker: Asker,
    processor: Arc<InputProcessor>,
    answers: Sender<Answer>,
    answered: Receiver<Answer>,
    /// The engine's numbers of requests, by those of the batch.
    numbers: HashMap<u64, u64>,
    /// The other way round.
    positions: HashMap<u64, u64>,
}

impl BatchEngine {
    /// None of its requests is asked yet.
    pub(super) fn new(asker: Asker, processor: Arc<InputProcessor>) -> Self {
        let (answers, answered) = channel();
        let (numbers, positions) = Default::default();
        Self { asker, processor, answers, answered, numbers, positions }
    }

    /// The answer in the batch's numbers; None: nobody waits for it any more.
    fn taken(&mut self, answer: Answer) -> Option<Answer> {
        let number = answer.request_id();
        let position = *self.positions.get(&number)?;
        if answer.is_finished() {
            self.positions.remove(&number);
            self.numbers.remove(&position);
        }
        Some(answer.numbered(position))
    }
}

impl BorrowedEngine for BatchEngine {
    fn input_processor(&self) -> Arc<InputProcessor> {
        Arc::clone(&self.processor)
    }

    fn info(&self) -> &EngineInfo {
        self.asker.info()
    }

    fn makes_vectors(&self) -> bool {
        self.asker.makes_vectors()
    }

    fn add_request(&mut self, work: Work) {
        let (position, number) = (work.request_id(), self.asker.next_id());
        self.numbers.insert(position, number);
        self.positions.insert(number, position);
        let work = work.numbered(number).with_class(RequestClass::Batch);
        self.asker.ask_for_batch(number, work, self.answers.clone());
    }

    fn abort_request(&mut self, request_id: u64) -> bool {
        let Some(number) = self.numbers.remove(&request_id) else { return false };
        self.positions.remove(&number);
        self.asker.abort(number);
        true
    }

    fn has_unfinished_requests(&self) -> bool {
        !self.numbers.is_empty()
    }

    fn step(&mut self) -> Result<Vec<Answer>, EngineError> {
        if self.asker.has_failed() {
            return Err(EngineError::Device("the engine has stopped".to_owned()));
        }
        let first = self.answered.recv_timeout(STEP).ok();
        let answers: Vec<_> = first.into_iter().chain(self.answered.try_iter()).collect();
        Ok(answers.into_iter().filter_map(|answer| self.taken(answer)).collect())
    }

    fn stats(&self) -> EngineStats {
        self.asker.stats()
    }
}

impl Drop for BatchEngine {
    /// What a run that was stopped asked is not computed any more.
    fn drop(&mut self) {
        for number in self.positions.keys() {
            self.asker.abort(*number);
        }
    }
}
