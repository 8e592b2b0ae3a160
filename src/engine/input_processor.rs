//! `InputProcessor`: prompt and parameters of a row to a validated, tokenized `Request` (vLLM's input processor).

use super::request::{Request, RequestError, RowKey, SamplingParams};

/// What a row asks to complete.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Plain text, tokenized with special tokens (BOS).
    Text(String),
    /// Token ids, used as they are.
    TokenIds(Vec<u32>),
    /// A JSON array of chat messages, rendered with the chat template.
    Messages(serde_json::Value),
}

/// Turns prompts into requests. Immutable, shared between threads.
pub struct InputProcessor {}

impl InputProcessor {
    /// Tokenizes, checks against the model's limits, resolves stop ids.
    ///
    /// # Errors
    /// The row cannot be answered: the error says why, and becomes its output row.
    pub fn process(
        &self,
        _request_id: u64,
        _prompt: Prompt,
        _params: SamplingParams,
        _row_key: RowKey,
    ) -> Result<Request, RequestError> {
        unimplemented!()
    }

    /// Sampling defaults: neutral values overlaid with generation_config.json (unless `vllm`);
    /// `max_tokens` is its `max_new_tokens`, else None.
    pub fn default_sampling_params(&self) -> SamplingParams {
        unimplemented!()
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        unimplemented!()
    }

    /// Longest prompt plus output, in tokens.
    pub fn max_model_len(&self) -> usize {
        unimplemented!()
    }

    /// The text of a single token, for logprobs.
    pub fn token_text(&self, _token_id: u32) -> String {
        unimplemented!()
    }
}
