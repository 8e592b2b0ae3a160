//! What goes into the engine and what comes out: vLLM's `PoolingParams` and `PoolingRequestOutput`.

use std::sync::Arc;

use super::compared::{Compared, Scoring};
use crate::request::RequestError;
use crate::sampling_params::TruncationSide;
use vllm_batch_base::pooling::STEP_TOKEN;

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
    /// Stands before every text; of texts that are compared, before queries.
    pub prompt: Option<Arc<str>>,
    /// The prompt's tokens count in the pooling.
    pub include_prompt: bool,
    /// Stands before the documents that queries are compared with.
    pub document_prompt: Option<Arc<str>>,
    /// How texts that are compared become scores.
    pub scoring: Scoring,
    /// Tokens of a query at most, special ones not counted.
    pub max_tokens_per_query: Option<usize>,
    /// The same of a document.
    pub max_tokens_per_doc: Option<usize>,
    /// How many documents a ranking shows, the best ones; None: all. For the caller.
    pub top_n: Option<usize>,
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
            document_prompt: None,
            scoring: Scoring::default(),
            max_tokens_per_query: None,
            max_tokens_per_doc: None,
            top_n: None,
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
    /// A vector, or one for each token; sparse vectors have none.
    pub fn rows(&self) -> &[Vec<f32>] {
        match self {
            Pooled::Vector(vector) => std::slice::from_ref(vector),
            Pooled::Tokens(rows) => rows,
            Pooled::Sparse(_) => &[],
        }
    }

    /// The words of a sparse vector.
    pub fn words(&self) -> &[(u32, f32)] {
        match self {
            Pooled::Vector(_) | Pooled::Tokens(_) => &[],
            Pooled::Sparse(words) => words,
        }
    }

    /// All numbers.
    pub fn values(&self) -> impl Iterator<Item = f32> + '_ {
        let weights = self.words().iter().map(|(_, weight)| *weight);
        self.rows().iter().flatten().copied().chain(weights)
    }
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct PoolingOutput {
    /// The caller's number.
    pub request_id: u64,
    /// Tokens of all texts.
    pub num_prompt_tokens: usize,
    /// One per text; none where one failed.
    pub texts: Vec<Pooled>,
    /// Why a text, the first of those that failed, became nothing.
    pub failure: Option<RequestError>,
    /// What was compared: each of `texts` is one number, the score of a document.
    pub compared: Option<Arc<Compared>>,
    /// What was asked.
    pub params: Arc<PoolingParams>,
    /// A text has a number for each of its steps.
    pub scores_steps: bool,
}

impl PoolingOutput {
    /// Why the row cannot be answered: a text failed, or the model overflows.
    pub fn error(&self) -> Option<RequestError> {
        if self.failure.is_some() {
            return self.failure.clone();
        }
        let is_empty = |text: &Pooled| text.rows().is_empty();
        if self.scores_steps && self.texts.iter().any(is_empty) {
            let message = format!(
                "no step ends in the text: the model gives a number where it reads \
                 {STEP_TOKEN} (of a chat with `settings.allow_special`)"
            );
            return Some(RequestError::new("no_steps", message));
        }
        let all_finite = self.texts.iter().flat_map(Pooled::values).all(f32::is_finite);
        (!all_finite).then(|| {
            let message = "the model gave infinite or NaN values; try `settings.dtype` float32";
            RequestError::new("non_finite_vector", message)
        })
    }
}
