//! `Pooling`: which states of a text its vector is made of, and what becomes of that.

use vllm_batch_base::pooling::PoolingType;

/// How vectors are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Of which states.
    pub pooling_type: PoolingType,
    /// Vectors have a length of 1.
    pub normalize: bool,
    /// The sizes that vectors may be cut to; an empty list: any. None: the model was not trained
    /// for it.
    pub dimensions: Option<Vec<usize>>,
    /// Values that are left of a vector in the end, where a row asks for no other number.
    pub truncated: Option<usize>,
    /// The tokens of a prompt count. INSTRUCTOR leaves them out.
    pub include_prompt: bool,
    /// Vectors of tokens begin behind the first token.
    pub skips_first: bool,
}

impl Default for Pooling {
    /// vLLM's for an encoder that says nothing.
    fn default() -> Self {
        Self {
            pooling_type: PoolingType::Cls,
            normalize: true,
            dimensions: None,
            truncated: None,
            include_prompt: true,
            skips_first: false,
        }
    }
}
