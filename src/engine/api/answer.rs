//! `Answer`: what an engine of either kind answers.

use super::pooling::PoolingOutput;
use super::request::{RequestError, RequestOutput};

/// A finished request; or what is new of one that goes on, where that is asked for.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Completions.
    Generate(RequestOutput),
    /// Vectors.
    Pooling(PoolingOutput),
}

impl Answer {
    /// The caller's number of the request.
    pub fn request_id(&self) -> u64 {
        match self {
            Answer::Generate(output) => output.request_id,
            Answer::Pooling(output) => output.request_id,
        }
    }

    /// The same with another number.
    pub fn numbered(self, request_id: u64) -> Self {
        match self {
            Answer::Generate(output) => Answer::Generate(RequestOutput { request_id, ..output }),
            Answer::Pooling(output) => Answer::Pooling(PoolingOutput { request_id, ..output }),
        }
    }

    /// Whether the request is finished.
    pub fn is_finished(&self) -> bool {
        match self {
            Answer::Generate(output) => output.finished,
            Answer::Pooling(_) => true,
        }
    }

    /// Tokens that were read, and tokens that were generated.
    pub fn num_tokens(&self) -> (usize, usize) {
        match self {
            Answer::Generate(output) => (output.num_prompt_tokens(), output.num_output_tokens()),
            Answer::Pooling(output) => (output.num_prompt_tokens, 0),
        }
    }

    /// Why the row cannot be answered, if it cannot.
    pub fn error(&self) -> Option<RequestError> {
        match self {
            Answer::Generate(output) => {
                output.outputs.iter().find_map(|completion| completion.error.clone())
            }
            Answer::Pooling(output) => output.error(),
        }
    }
}
