//! What goes into the engine and what comes out: vLLM's `PoolingParams` and `PoolingRequestOutput`.

use std::sync::Arc;

use crate::engine::request::RequestError;
use crate::engine::sampling_params::TruncationSide;

/// How vectors of a request are made; None: as the model says.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingParams {
    /// Values of a vector that are kept, the first ones, of a model that was trained for it.
    pub dimensions: Option<usize>,
    /// Vectors have a length of 1.
    pub normalize: Option<bool>,
    /// Tokens of a text at most, special ones included; -1: as many as the model takes.
    pub truncate_prompt_tokens: Option<i64>,
    /// Where a text that is too long is cut.
    pub truncation_side: TruncationSide,
    /// Special tokens around a text, such as \[CLS\] and \[SEP\].
    pub add_special_tokens: bool,
    /// Stands before every text.
    pub prompt: Option<Arc<str>>,
    /// How the caller shows vectors; the engine hands it on.
    pub encoding_format: EncodingFormat,
}

impl Default for PoolingParams {
    fn default() -> Self {
        Self {
            dimensions: None,
            normalize: None,
            truncate_prompt_tokens: None,
            truncation_side: TruncationSide::Right,
            add_special_tokens: true,
            prompt: None,
            encoding_format: EncodingFormat::Float,
        }
    }
}

/// How vectors are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of f32, little-endian.
    Base64,
}

/// Texts with their parameters, ready to run.
#[derive(Clone, Debug)]
pub struct PoolingRequest {
    /// Caller's number of the request; outputs carry it back.
    pub request_id: u64,
    /// Tokens of each text: none is empty, or longer than the model takes.
    pub texts: Vec<Vec<u32>>,
    /// Validated parameters.
    pub params: Arc<PoolingParams>,
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct PoolingOutput {
    /// The caller's number.
    pub request_id: u64,
    /// Tokens of all texts.
    pub num_prompt_tokens: usize,
    /// One per text.
    pub vectors: Vec<Vec<f32>>,
    /// What was asked.
    pub params: Arc<PoolingParams>,
}

impl PoolingOutput {
    /// Why the row cannot be answered: a model that overflows has no vector.
    pub fn error(&self) -> Option<RequestError> {
        let is_finite = |vector: &Vec<f32>| vector.iter().all(|value| value.is_finite());
        let all_finite = self.vectors.iter().all(is_finite);
        (!all_finite).then(|| {
            let message = "the model gave infinite or NaN values; try --dtype float32";
            RequestError::new("non_finite_vector", message)
        })
    }
}
