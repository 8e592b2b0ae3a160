//! `Sequence`: one completion in the making, a request's tokens with their place in the KV cache.
//!
//! ```text
//! token_ids            | prompt .................. | output ........ |
//! num_computed_tokens  |<------ K/V in the cache ------>|
//! one step             |                                |<- chunk -->|   samples: reaches the end
//! ```

use std::ops::Range;
use std::sync::Arc;

use super::completion::{Completion, Finish};
use super::prefix_cache::ROOT_SERIAL;
use super::request::{Request, RequestError, RequestStatus};
use super::structured_output::Guide;
use super::text::Tokenizer;

/// One of the `n` completions of a request: its state in the scheduler.
#[derive(Debug)]
pub struct Sequence {
    /// What was asked for, shared by the n siblings.
    pub request: Arc<Request>,
    /// Which of the n completions.
    pub index: u32,
    /// Waiting, running or preempted; a finished sequence is gone.
    pub status: RequestStatus,
    /// Prompt, then output.
    pub token_ids: Vec<u32>,
    /// Leading tokens whose K and V are in the cache.
    pub num_computed_tokens: usize,
    /// KV blocks in order of position; at least as many as `token_ids` needs while it runs.
    pub block_table: Vec<u32>,
    /// Leading blocks of `block_table` that were offered to the prefix cache.
    pub num_registered_blocks: usize,
    /// Prefix-cache serial of the last of them.
    pub last_serial: u64,
    /// Prompt tokens found in the prefix cache at the first admission.
    pub num_cached_tokens: Option<usize>,
    /// Text and logprobs so far.
    pub completion: Completion,
    /// What it may say next, where that is constrained. A preemption leaves it as it is.
    pub guide: Option<Box<Guide>>,
}

impl Sequence {
    /// A waiting sequence. Prompt logprobs are the business of the first of the siblings.
    pub fn new(request: Arc<Request>, index: u32) -> Self {
        Self {
            index,
            status: RequestStatus::Waiting,
            token_ids: request.prompt_token_ids.clone(),
            num_computed_tokens: 0,
            block_table: Vec::new(),
            num_registered_blocks: 0,
            last_serial: ROOT_SERIAL,
            num_cached_tokens: None,
            completion: Completion::new(&request.params, index),
            guide: request
                .guidance
                .as_ref()
                .map(|guidance| Box::new(Guide::new(guidance, &request.prompt_token_ids))),
            request,
        }
    }

    /// Prompt and output tokens.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Prompt tokens.
    pub fn num_prompt_tokens(&self) -> usize {
        self.request.prompt_token_ids.len()
    }

    /// Generated tokens.
    pub fn output_token_ids(&self) -> &[u32] {
        &self.token_ids[self.num_prompt_tokens()..]
    }

    /// Positions of the prompt whose logits are still wanted: position p predicts prompt token
    /// p + 1, so the last prompt position is not among them. Progress survives a preemption.
    pub fn missing_prompt_logits(&self) -> Range<usize> {
        let end = self.num_prompt_tokens() - 1;
        self.completion.num_prompt_logprobs().unwrap_or(end)..end
    }

    /// Those of them that lie in the next `num_new_tokens` tokens.
    pub fn prompt_logits_in(&self, num_new_tokens: usize) -> Range<usize> {
        let missing = self.missing_prompt_logits();
        let end = missing.end.min(self.num_computed_tokens + num_new_tokens);
        missing.start.max(self.num_computed_tokens).min(end)..end
    }

    /// Most tokens that may come from the prefix cache: one token at least is computed, for its
    /// logits, and so is every prompt position whose logits are wanted.
    pub fn max_cached_tokens(&self) -> usize {
        let missing = self.missing_prompt_logits();
        if missing.is_empty() { self.num_tokens() - 1 } else { missing.start }
    }

    /// Makes room for so many output tokens.
    pub fn reserve(&mut self, num_output_tokens: usize, block_size: usize) {
        let num_tokens = self.num_prompt_tokens() + num_output_tokens;
        self.token_ids.reserve(num_tokens.saturating_sub(self.token_ids.len()));
        self.block_table.reserve(num_tokens.div_ceil(block_size));
    }

    /// Takes the K and V away: the sequence starts over, with the tokens that it has.
    pub fn preempt(&mut self) {
        self.status = RequestStatus::Preempted;
        self.num_computed_tokens = 0;
        self.block_table.clear();
        self.num_registered_blocks = 0;
        self.last_serial = ROOT_SERIAL;
    }

    /// Appends a sampled token and says whether the sequence is finished, in vLLM's order: EOS,
    /// stop token ids, length, then (past `min_tokens`) stop strings, which override the others.
    ///
    /// # Errors
    /// The token could not be detokenized.
    pub fn append(
        &mut self,
        token_id: u32,
        max_model_len: usize,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Option<Finish>, RequestError> {
        self.token_ids.push(token_id);
        let stop_ids = &self.request.stop_ids;
        if let Some(guide) = &mut self.guide {
            guide.accept(token_id);
        }
        let num_output_tokens = self.token_ids.len() - self.request.prompt_token_ids.len();
        let max_tokens = self.request.params.max_tokens.map_or(usize::MAX, |max| max as usize);
        let finish = if stop_ids.eos_token_id == Some(token_id) {
            Some(Finish::Eos)
        } else if stop_ids.stop_token_ids.contains(&token_id) {
            Some(Finish::StopToken(token_id))
        } else if self.token_ids.len() >= max_model_len || num_output_tokens >= max_tokens {
            Some(Finish::Length)
        } else {
            None
        };
        let Some(tokenizer) = tokenizer.filter(|_| !self.request.params.stop.is_empty()) else {
            return Ok(finish);
        };
        let hidden = finish.as_ref().is_some_and(|f| f.hides_last_token(&self.request.params));
        let shown = (!hidden).then_some(token_id);
        let stopped =
            self.completion.find_stop_string(&self.request, shown, num_output_tokens, tokenizer)?;
        Ok(stopped.or(finish))
    }
}
