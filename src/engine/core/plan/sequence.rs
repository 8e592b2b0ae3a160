//! `Sequence`: one completion in the making, a request's tokens with their place in the KV cache.
//!
//! ```text
//! token_ids            | prompt .................. | output ........ |
//! num_computed_tokens  |<------ K/V in the cache ------>|
//! one step             |                                |<- chunk -->|   samples: reaches the end
//!                                                       |<- chunk -->|<- drafts ->|
//! ```
//!
//! Drafts are guesses of what comes next. They lie behind the known tokens from `schedule` to
//! `update`, so that what a penalty looks at is one slice, and nobody who asks for known tokens
//! sees them.
//!
//! While a step computes that samples, the next step may be decided already. Then the tokens end
//! with one that nobody knows yet (`sampled_row`): it has a position and a place in a block, and no
//! value. It is part of what there is to compute, and not of the output.
//!
//! A sequence whose next token is known samples none: it ends where its known tokens do. That of a
//! request of choices goes through them one after the other, so that what they share is computed
//! once.

use std::ops::Range;
use std::sync::Arc;

use super::completion::{Completion, Finish};
use super::speculation::Pace;
use super::structured_output::Guide;
use crate::request::{FIRST_MEDIA_ID, Known, Request, RequestStatus};
use vllm_batch_api::request::{Asked, CompletionDelta, RequestError, RequestOutputKind};
use vllm_batch_text::Tokenizer;

/// One of the `n` completions of a request: its state in the scheduler.
#[derive(Debug)]
pub struct Sequence {
    /// What was asked for, shared by the n siblings.
    pub request: Arc<Request>,
    /// Of its request, among all that came: numbers of aborted ones may come again.
    pub serial: u64,
    /// Which of the n completions.
    pub index: u32,
    /// Waiting, running or preempted; a finished sequence is gone.
    pub status: RequestStatus,
    /// Prompt, then output; within a step, then drafts. Tokens of media have ids of their own.
    pub token_ids: Vec<u32>,
    /// The last of them that are drafts.
    pub num_drafts: usize,
    /// Those of a step that its grammar forces.
    pub num_forced: usize,
    /// The last token is unknown: this row of the step that computes gives it.
    pub sampled_row: Option<usize>,
    /// How many drafts it is given.
    pub pace: Pace,
    /// Tokens that it began with.
    pub num_prompt_tokens: usize,
    /// The token after the prompt, where it is known. A sequence whose state is asked for has none:
    /// it ends with the result of its last token.
    pub known_end: Option<u32>,
    /// Of a request of choices: which of them it is at.
    pub choice: u32,
    /// Positions of the prompt whose logits are still wanted, for the token after each. Progress
    /// survives a preemption.
    pub missing_prompt_logits: Range<usize>,
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
    /// A waiting sequence.
    pub fn new(request: Arc<Request>, index: u32) -> Self {
        let Known { token_ids: known, end, wanted } = request.known(index);
        let mut token_ids = known.to_vec();
        for run in &request.media {
            let last = run.positions.end.min(token_ids.len());
            for (place, id) in token_ids[run.positions.start..last].iter_mut().zip(run.token_ids())
            {
                *place = id;
            }
        }
        Self {
            serial: 0,
            index,
            status: RequestStatus::Waiting,
            num_drafts: 0,
            num_forced: 0,
            sampled_row: None,
            pace: Pace::default(),
            num_prompt_tokens: token_ids.len(),
            token_ids,
            known_end: end,
            choice: 0,
            missing_prompt_logits: wanted,
            num_computed_tokens: 0,
            block_table: Vec::new(),
            num_registered_blocks: 0,
            last_serial: request.prefix_root(),
            num_cached_tokens: None,
            completion: Completion::new(&request, index),
            guide: request
                .guidance
                .as_ref()
                .map(|guidance| Box::new(Guide::new(guidance, &request.prompt_token_ids))),
            request,
        }
    }

    /// What its prefix in the cache begins from, with its tokens.
    pub fn root_and_tokens(&self) -> (u64, &[u32]) {
        (self.request.prefix_root(), &self.token_ids)
    }

    /// Prompt and output tokens, and the unknown one.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len() - self.num_drafts
    }

    /// The same without the unknown one.
    pub fn num_known_tokens(&self) -> usize {
        self.num_tokens() - usize::from(self.sampled_row.is_some())
    }

    /// Generated tokens that are known.
    pub fn output_token_ids(&self) -> &[u32] {
        self.output_with_drafts(0)
    }

    /// The same, as if so many drafts had been sampled.
    pub fn output_with_drafts(&self, num_drafts: usize) -> &[u32] {
        &self.token_ids[self.num_prompt_tokens..self.num_known_tokens() + num_drafts]
    }

    /// So many of its tokens are being computed. The last one samples the next token in a row, if
    /// there is one.
    pub fn advance(&mut self, num_tokens: usize, sampled_row: Option<usize>) {
        self.num_computed_tokens += num_tokens;
        self.sampled_row = sampled_row;
        if sampled_row.is_some() {
            self.token_ids.push(0);
        }
    }

    /// Undoes `advance`.
    pub fn step_back(&mut self, num_tokens: usize) {
        self.num_computed_tokens -= num_tokens;
        if self.sampled_row.take().is_some() {
            self.token_ids.pop();
        }
    }

    /// Drafts of the step.
    pub fn drafts(&self) -> &[u32] {
        &self.token_ids[self.num_tokens()..]
    }

    /// Adds a draft behind those that there are.
    pub fn push_draft(&mut self, token_id: u32) {
        self.token_ids.push(token_id);
        self.num_drafts += 1;
    }

    /// Forgets the drafts that were not sampled.
    pub fn drop_drafts(&mut self) {
        self.token_ids.truncate(self.num_tokens());
        self.num_drafts = 0;
    }

    /// Makes a sampled token known. It may be the first draft; else the drafts were wrong.
    fn push(&mut self, token_id: u32) {
        if self.drafts().first() == Some(&token_id) {
            self.num_drafts -= 1;
        } else {
            self.drop_drafts();
            self.token_ids.push(token_id);
        }
    }

    /// The known token after a position.
    ///
    /// # Panics
    /// It is to be sampled.
    pub fn token_after(&self, position: usize) -> u32 {
        let known = self.token_ids.get(position + 1).copied().or(self.known_end);
        let id = known.expect("a known token follows");
        match id < FIRST_MEDIA_ID {
            true => id,
            false => self.request.prompt_token_ids[position + 1],
        }
    }

    /// Whether it samples its next token, or gives its last one's state, once this many more tokens
    /// are computed.
    pub fn samples_after(&self, num_new_tokens: usize) -> bool {
        self.known_end.is_none() && self.num_computed_tokens + num_new_tokens == self.num_tokens()
    }

    /// Whether nothing is left to compute.
    pub fn is_known_through(&self) -> bool {
        self.known_end.is_some() && self.num_computed_tokens == self.num_tokens()
    }

    /// Goes on with the next choice, from the tokens that all of them share, a multiple of
    /// `granule`; false: there is none.
    pub fn begin_next_choice(&mut self, granule: usize) -> bool {
        let Asked::Choices(choices) = &self.request.asked else { return false };
        self.choice += 1;
        if self.choice as usize == choices.texts().len() {
            return false;
        }
        let num_shared = choices.num_shared() / granule * granule;
        let Known { token_ids, end, wanted } = self.request.known(self.choice);
        self.token_ids.truncate(num_shared);
        self.token_ids.extend_from_slice(&token_ids[num_shared..]);
        self.num_prompt_tokens = token_ids.len();
        self.known_end = end;
        self.missing_prompt_logits = wanted;
        self.num_computed_tokens = num_shared;
        self.completion.begin_next_choice();
        true
    }

    /// Leading tokens whose blocks others may share. K and V of those behind them are written again
    /// for the next choice; of what beams try nobody else asks for, and most of it is given up.
    pub fn num_shareable_tokens(&self) -> usize {
        match &self.request.asked {
            Asked::Choices(choices) => choices.num_shared(),
            _ if self.request.params.beam_search.is_some() => self.num_prompt_tokens,
            _ => usize::MAX,
        }
    }

    /// Positions of wanted prompt logits that lie in the next `num_new_tokens` tokens.
    pub fn prompt_logits_in(&self, num_new_tokens: usize) -> Range<usize> {
        let missing = &self.missing_prompt_logits;
        let end = missing.end.min(self.num_computed_tokens + num_new_tokens);
        missing.start.max(self.num_computed_tokens).min(end)..end
    }

    /// Most tokens that may come from the prefix cache: one token at least is computed, for its
    /// logits, and so is every prompt position whose logits are wanted.
    pub fn max_cached_tokens(&self) -> usize {
        let missing = &self.missing_prompt_logits;
        let most = if missing.is_empty() { self.num_tokens() - 1 } else { missing.start };
        most.min(self.num_shareable_tokens())
    }

    /// Makes room for so many output tokens.
    pub fn reserve(&mut self, num_output_tokens: usize, block_size: usize) {
        let num_tokens = self.num_prompt_tokens + num_output_tokens;
        self.token_ids.reserve(num_tokens.saturating_sub(self.token_ids.len()));
        self.block_table.reserve(num_tokens.div_ceil(block_size));
    }

    /// Whether what is new is returned in each step.
    pub fn wants_deltas(&self) -> bool {
        self.request.params.output_kind == RequestOutputKind::Delta
    }

    /// What is new since the last delta; None: nothing is, or nobody asks.
    pub fn take_delta(&mut self) -> Option<CompletionDelta> {
        let num_tokens = self.num_known_tokens();
        let output_token_ids = &self.token_ids[self.num_prompt_tokens..num_tokens];
        let is_new = self.wants_deltas() && self.completion.emitted().is_behind(output_token_ids);
        is_new
            .then(|| self.completion.take_delta(&self.request.params, self.index, output_token_ids))
    }

    /// Takes the K and V away: the sequence starts over, with the tokens that it has.
    pub fn preempt(&mut self) {
        self.status = RequestStatus::Preempted;
        self.num_computed_tokens = 0;
        self.block_table.clear();
        self.num_registered_blocks = 0;
        self.last_serial = self.request.prefix_root();
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
        self.push(token_id);
        let stop_ids = &self.request.stop_ids;
        let num_output_tokens = self.output_token_ids().len();
        let max_tokens = self.request.params.max_tokens.map_or(usize::MAX, |max| max as usize);
        let is_planned_end = self.request.eos_after == Some(num_output_tokens);
        let finish = if stop_ids.eos_token_id == Some(token_id) || is_planned_end {
            Some(Finish::Eos)
        } else if stop_ids.stop_token_ids.contains(&token_id) {
            Some(Finish::StopToken(token_id))
        } else if self.num_tokens() >= max_model_len || num_output_tokens >= max_tokens {
            Some(Finish::Length)
        } else {
            None
        };
        let needs_text = !self.request.params.stop.is_empty() || self.wants_deltas();
        let Some(tokenizer) = tokenizer.filter(|_| needs_text) else { return Ok(finish) };
        let hidden = finish.as_ref().is_some_and(|f| f.hides_last_token(&self.request.params));
        let shown = (!hidden).then_some(token_id);
        let stopped =
            self.completion.find_stop_string(&self.request, shown, num_output_tokens, tokenizer)?;
        Ok(stopped.or(finish))
    }
}
