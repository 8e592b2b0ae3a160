//! `Served`: the model that is asked, and what reads requests to it.

use std::sync::Arc;

use vllm_batch_api::answer::Answer;
use vllm_batch_dataset::input::batch_line::BatchLine;
use vllm_batch_dataset::input::row::RequestApi;
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::output::response::Response;
use vllm_batch_dataset::output::{JsonFormat, Tokens};
use vllm_batch_dataset::terminal::clock;
use vllm_batch_engine::serve::input_processor::InputProcessor;
use vllm_batch_engine::serve::runner::Work;
use vllm_batch_text::AnswerForm;

/// A request as a line of its batch API.
#[derive(Clone, Debug)]
pub struct RequestLine {
    /// The API that it is written for.
    pub api: RequestApi,
    /// JSON of the line.
    pub line: String,
    /// Number of the request in the engine.
    pub request_id: u64,
}

/// A request that was read.
#[derive(Debug)]
pub struct AskedRow {
    /// What the engine is asked.
    pub work: Work,
    /// What the answer shows of the request.
    pub line: BatchLine,
    /// Form of a chat's answer.
    pub form: Option<AnswerForm>,
}

/// Why a request is not asked, with what its answer shows of it.
#[derive(Debug)]
pub struct Refused {
    /// What the answer shows of the request.
    pub line: BatchLine,
    /// What is wrong.
    pub error: RowError,
}

/// Reads a request.
pub type Ask = dyn Fn(RequestLine) -> Result<AskedRow, Box<Refused>> + Send + Sync;

/// The model that is asked.
pub struct Served {
    /// How answers are written.
    pub format: JsonFormat,
    /// Tokenizes.
    pub processor: Arc<InputProcessor>,
    /// Names that requests may call it by, and those of its adapters. The first is shown.
    pub names: Vec<String>,
    /// When it was loaded, in seconds since 1970.
    pub created: i64,
    /// Reads requests: on a thread that may wait, since images may be fetched.
    pub ask: Box<Ask>,
}

impl Served {
    /// The response to a request.
    pub(crate) fn respond(
        &self,
        line: &BatchLine,
        form: Option<&AnswerForm>,
        answer: Result<&Answer, &RowError>,
    ) -> Response {
        let format = self.format_now();
        self.with_tokens(|tokens| format.response(line, form, answer, tokens))
    }

    /// How an answer is written whose request comes now.
    pub(crate) fn format_now(&self) -> JsonFormat {
        let mut format = self.format.clone();
        format.facts.created = clock::now();
        format
    }

    /// What is written with the model's tokens.
    pub(crate) fn with_tokens<T>(&self, write: impl FnOnce(&Tokens<'_>) -> T) -> T {
        write(&Tokens {
            text: &|id| self.processor.token_text(id),
            num_reasoning: &|ids, form| self.processor.num_reasoning_tokens(ids, form),
        })
    }
}
