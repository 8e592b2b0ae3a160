//! What goes into the engine and what comes out: vLLM's `PoolingParams` and `PoolingRequestOutput`.

use std::sync::Arc;

use crate::engine::request::RequestError;
use crate::engine::sampling_params::TruncationSide;

/// What becomes of the texts of a request; None: as the model says.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolingParams {
    /// Values of a vector that are kept, the first ones, of a model that was trained for it.
    pub dimensions: Option<usize>,
    /// Vectors have a length of 1, and numbers of classes pass through the model's activation.
    pub use_activation: Option<bool>,
    /// Tokens of a text at most, special ones included; -1: as many as the model takes.
    pub truncate_prompt_tokens: Option<i64>,
    /// Where a text that is too long is cut.
    pub truncation_side: TruncationSide,
    /// Special tokens around a text, such as \[CLS\] and \[SEP\].
    pub add_special_tokens: bool,
    /// Stands before every text.
    pub prompt: Option<Arc<str>>,
    /// The prompt's tokens count in the pooling.
    pub include_prompt: bool,
    /// How the caller shows vectors; the engine hands it on.
    pub encoding_format: EncodingFormat,
}

impl Default for PoolingParams {
    fn default() -> Self {
        Self {
            dimensions: None,
            use_activation: None,
            truncate_prompt_tokens: None,
            truncation_side: TruncationSide::Right,
            add_special_tokens: true,
            prompt: None,
            include_prompt: true,
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
    /// Of each text, the first tokens that its pooling leaves out; not all.
    pub num_skipped: Vec<usize>,
    /// Validated parameters.
    pub params: Arc<PoolingParams>,
}

/// What a text becomes.
#[derive(Clone, Debug, PartialEq)]
pub enum Pooled {
    /// A vector, or a number for each class.
    Vector(Vec<f32>),
    /// The same for each token.
    Tokens(Vec<Vec<f32>>),
    /// Words of the vocabulary with their weights, upward; the others weigh 0.
    Sparse(Vec<(u32, f32)>),
}

impl Pooled {
    /// All numbers.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        let (rows, words) = match self {
            Pooled::Vector(vector) => (std::slice::from_ref(vector), &[][..]),
            Pooled::Tokens(rows) => (&rows[..], &[][..]),
            Pooled::Sparse(words) => (&[][..], &words[..]),
        };
        let weights = words.iter().map(|(_, weight)| *weight);
        rows.iter().flatten().copied().chain(weights)
    }
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct PoolingOutput {
    /// The caller's number.
    pub request_id: u64,
    /// Tokens of all texts.
    pub num_prompt_tokens: usize,
    /// One per text.
    pub texts: Vec<Pooled>,
    /// What was asked.
    pub params: Arc<PoolingParams>,
}

impl PoolingOutput {
    /// Why the row cannot be answered: a model that overflows has no answer.
    pub fn error(&self) -> Option<RequestError> {
        let all_finite = self.texts.iter().flat_map(Pooled::values).all(f32::is_finite);
        (!all_finite).then(|| {
            let message = "the model gave infinite or NaN values; try --dtype float32";
            RequestError::new("non_finite_vector", message)
        })
    }
}
