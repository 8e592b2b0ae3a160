//! An engine of either kind, what it is asked and what it answers: the seam between the commands
//! that run a dataset and the engines. vLLM's runners are of the same kinds, `generate` and
//! `pooling`.

use std::sync::Arc;

use super::data_parallel::DataParallel;
use super::input_processor::InputProcessor;
use super::pooling::{PoolingEngine, PoolingRequest};
use crate::request::Request;
use crate::stats::EngineStats;
use crate::{Engine, EngineInfo, Shared};
use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::{Asked, LoraId, Precedence, RequestClass};
use vllm_batch_base::EngineError;

/// An engine.
pub enum Runner {
    /// It completes prompts.
    Generate(Box<Engine>),
    /// It makes vectors of texts.
    Pooling(Box<PoolingEngine>),
    /// Several engines of one kind.
    Parallel(Box<DataParallel>),
    /// One that somebody else steps.
    Borrowed(Box<dyn BorrowedEngine>),
}

/// An engine that another thread owns and steps, for others too. What is asked, counted and
/// answered here is of this borrower alone, but for `stats`.
pub trait BorrowedEngine: Send {
    /// As `Runner::input_processor`.
    fn input_processor(&self) -> Arc<InputProcessor>;
    /// As `Runner::info`.
    fn info(&self) -> &EngineInfo;
    /// As `Runner::makes_vectors`.
    fn makes_vectors(&self) -> bool;
    /// As `Runner::add_request`. Numbers of requests are the borrower's.
    fn add_request(&mut self, work: Work);
    /// As `Runner::abort_request`.
    fn abort_request(&mut self, request_id: u64) -> bool;
    /// As `Runner::has_unfinished_requests`, of the borrower's.
    fn has_unfinished_requests(&self) -> bool;
    /// Waits for answers, for a while. There may be none yet.
    ///
    /// # Errors
    /// The engine has ended.
    fn step(&mut self) -> Result<Vec<Answer>, EngineError>;
    /// As `Runner::stats`, of all who ask.
    fn stats(&self) -> EngineStats;
}

/// A request.
#[derive(Clone, Debug)]
pub enum Work {
    /// To be completed.
    Generate(Request),
    /// To be made vectors of.
    Pooling(PoolingRequest),
}

impl Runner {
    /// What turns prompts into requests; shared with the thread that reads rows.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        match self {
            Runner::Generate(engine) => engine.input_processor(),
            Runner::Pooling(engine) => engine.input_processor(),
            Runner::Parallel(engines) => engines.input_processor(),
            Runner::Borrowed(engine) => engine.input_processor(),
        }
    }

    /// What other engines of its model share with it.
    pub fn shared(&self) -> Shared {
        match self {
            Runner::Generate(engine) => engine.shared(),
            Runner::Pooling(_) | Runner::Parallel(_) | Runner::Borrowed(_) => {
                Shared { input_processor: self.input_processor(), stages: None }
            }
        }
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        match self {
            Runner::Generate(engine) => engine.info(),
            Runner::Pooling(engine) => engine.info(),
            Runner::Parallel(engines) => engines.info(),
            Runner::Borrowed(engine) => engine.info(),
        }
    }

    /// Whether it makes vectors or classes of texts; else it completes prompts.
    pub fn makes_vectors(&self) -> bool {
        match self {
            Runner::Generate(_) => false,
            Runner::Pooling(_) => true,
            Runner::Parallel(engines) => engines.makes_vectors(),
            Runner::Borrowed(engine) => engine.makes_vectors(),
        }
    }

    /// Queues a request. It was validated by the input processor.
    ///
    /// # Panics
    /// It is for an engine of the other kind.
    pub fn add_request(&mut self, work: Work) {
        match (self, work) {
            (Runner::Generate(engine), Work::Generate(request)) => engine.add_request(request),
            (Runner::Pooling(engine), Work::Pooling(request)) => engine.add_request(request),
            (Runner::Parallel(engines), work) => engines.add_request(work),
            (Runner::Borrowed(engine), work) => engine.add_request(work),
            _ => panic!("a request came to an engine of the other kind"),
        }
    }

    /// Ends a request, as `Engine::abort_request`. Of several engines, the one that has it frees
    /// its blocks before its next step.
    pub fn abort_request(&mut self, request_id: u64) -> bool {
        match self {
            Runner::Generate(engine) => engine.abort_request(request_id),
            Runner::Pooling(engine) => engine.abort_request(request_id),
            Runner::Parallel(engines) => engines.abort_request(request_id),
            Runner::Borrowed(engine) => engine.abort_request(request_id),
        }
    }

    /// Whether any request is waiting or running.
    pub fn has_unfinished_requests(&self) -> bool {
        match self {
            Runner::Generate(engine) => engine.has_unfinished_requests(),
            Runner::Pooling(engine) => engine.has_unfinished_requests(),
            Runner::Parallel(engines) => engines.has_unfinished_requests(),
            Runner::Borrowed(engine) => engine.has_unfinished_requests(),
        }
    }

    /// One step, or the next one of any of several engines; returns the requests that finished,
    /// and what is new of those that ask for it.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self) -> Result<Vec<Answer>, EngineError> {
        Ok(match self {
            Runner::Generate(engine) => engine.step()?.into_iter().map(Answer::Generate).collect(),
            Runner::Pooling(engine) => engine.step()?.into_iter().map(Answer::Pooling).collect(),
            Runner::Parallel(engines) => engines.step()?,
            Runner::Borrowed(engine) => engine.step()?,
        })
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        match self {
            Runner::Generate(engine) => engine.stats(),
            Runner::Pooling(engine) => engine.stats(),
            Runner::Parallel(engines) => engines.stats(),
            Runner::Borrowed(engine) => engine.stats(),
        }
    }
}

impl Work {
    /// The caller's number of the request.
    pub fn request_id(&self) -> u64 {
        match self {
            Work::Generate(request) => request.request_id,
            Work::Pooling(request) => request.request_id,
        }
    }

    /// The same with another number.
    pub fn numbered(self, request_id: u64) -> Self {
        match self {
            Work::Generate(request) => Work::Generate(Request { request_id, ..request }),
            Work::Pooling(request) => Work::Pooling(PoolingRequest { request_id, ..request }),
        }
    }

    /// The same, computed with an adapter; None: by the model alone.
    pub fn with_lora(self, lora: Option<LoraId>) -> Self {
        match self {
            Work::Generate(request) => Work::Generate(Request { lora, ..request }),
            Work::Pooling(request) => Work::Pooling(PoolingRequest { lora, ..request }),
        }
    }

    /// The same, with another place among those that wait.
    pub fn with_precedence(self, precedence: Precedence) -> Self {
        match self {
            Work::Generate(request) => Work::Generate(Request { precedence, ..request }),
            Work::Pooling(request) => Work::Pooling(PoolingRequest { precedence, ..request }),
        }
    }

    /// The same with another priority in its class.
    pub fn with_priority(self, priority: i64) -> Self {
        let precedence = self.precedence().with_priority(priority);
        self.with_precedence(precedence)
    }

    /// The same in another class, with its priority there.
    pub fn with_class(self, class: RequestClass) -> Self {
        let precedence = Precedence { class, ..self.precedence() };
        self.with_precedence(precedence)
    }

    /// Who goes before whom.
    pub fn precedence(&self) -> Precedence {
        match self {
            Work::Generate(Request { precedence, .. })
            | Work::Pooling(PoolingRequest { precedence, .. }) => *precedence,
        }
    }

    /// Tokens of the prompt; of several texts those of each.
    pub fn prompts(&self) -> Vec<&[u32]> {
        match self {
            Work::Generate(request) => match &request.asked {
                Asked::Choices(choices) => {
                    choices.texts().iter().map(|text| &text.token_ids[..]).collect()
                }
                Asked::Completions | Asked::Rolling(_) | Asked::State | Asked::States => {
                    vec![&request.prompt_token_ids]
                }
            },
            Work::Pooling(request) => request.texts.iter().map(|text| &text.ids[..]).collect(),
        }
    }
}
