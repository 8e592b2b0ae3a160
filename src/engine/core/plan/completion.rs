//! `Completion`: what a sequence has said so far, and how it becomes a `CompletionOutput`.

use crate::request::Request;
use vllm_batch_api::request::{
    Asked, CompletionDelta, CompletionOutput, FinishReason, Likelihood, PositionLogprobs,
    RequestError, SamplingParams, StopReason,
};
use vllm_batch_text::{Detokenizer, StopChecker, TextError, Tokenizer};

/// Why a sequence ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The tokenizer's EOS.
    Eos,
    /// A stop token id or a secondary EOS.
    StopToken(u32),
    /// A stop string.
    StopString {
        /// Which of `params.stop`.
        stop_index: usize,
        /// Bytes of the text to keep.
        truncate_to: usize,
    },
    /// `max_tokens` or the context limit.
    Length,
    /// It cannot go on.
    Error(RequestError),
}

impl Finish {
    /// The stop token is in `token_ids` but not in the text, unless the user wants it there.
    pub fn hides_last_token(&self, params: &SamplingParams) -> bool {
        let by_token = matches!(self, Finish::Eos | Finish::StopToken(_));
        by_token && !params.include_stop_str_in_output
    }

    /// vLLM's `finish_reason`.
    pub fn reason(&self) -> FinishReason {
        match self {
            Finish::Eos | Finish::StopToken(_) | Finish::StopString { .. } => FinishReason::Stop,
            Finish::Length => FinishReason::Length,
            Finish::Error(_) => FinishReason::Error,
        }
    }

    fn stop_reason(&self, params: &SamplingParams) -> Option<StopReason> {
        match self {
            Finish::StopToken(token_id) => Some(StopReason::TokenId(*token_id)),
            Finish::StopString { stop_index, .. } => {
                Some(StopReason::Text(params.stop[*stop_index].clone()))
            }
            _ => None,
        }
    }
}

/// Text and logprobs of a sequence, gathered token by token.
#[derive(Debug)]
pub struct Completion {
    /// Only rows with stop strings, or with deltas, need their text before the end.
    detokenizer: Option<Detokenizer>,
    cumulative_logprob: f64,
    /// Per generated token, when asked for.
    logprobs: Option<Vec<PositionLogprobs>>,
    of_prompt: OfPrompt,
    emitted: Emitted,
}

/// What deltas have had.
#[derive(Clone, Copy, Debug, Default)]
pub struct Emitted {
    num_text_bytes: usize,
    num_tokens: usize,
}

/// What is gathered of the logits of known tokens.
#[derive(Debug)]
pub enum OfPrompt {
    /// They are not asked for.
    Nothing,
    /// Logprobs per prompt token; that of the first is None.
    Positions(Vec<Option<PositionLogprobs>>),
    /// How likely they are together; of each choice so far.
    Sums(Vec<Likelihood>),
}

impl Completion {
    /// An empty one, of a request's sequence `index`.
    pub fn new(request: &Request, index: u32) -> Self {
        Self {
            detokenizer: None,
            cumulative_logprob: 0.0,
            logprobs: request.params.logprobs.map(|_| Vec::new()),
            of_prompt: OfPrompt::new(request, index),
            emitted: Emitted::default(),
        }
    }

    /// What no delta has had yet and nothing takes back, of a sequence that goes on.
    pub fn take_delta(
        &mut self,
        params: &SamplingParams,
        index: u32,
        output_token_ids: &[u32],
    ) -> CompletionDelta {
        let text = self.detokenizer.as_ref().map_or("", Detokenizer::text);
        let num_undecided = match params.include_stop_str_in_output {
            // It is cut behind what was there before the token that ends it.
            true => 0,
            false => StopChecker::num_undecided_bytes(text, &params.stop),
        };
        let text = &text[..text.len() - num_undecided];
        self.emitted.next(index, text, output_token_ids, self.logprobs.as_deref())
    }

    /// What deltas have had.
    pub fn emitted(&self) -> Emitted {
        self.emitted
    }

    /// The logprobs of the next prompt token.
    pub fn push_prompt_logprobs(&mut self, entry: PositionLogprobs) {
        match &mut self.of_prompt {
            OfPrompt::Nothing => panic!("logprobs of the prompt were not asked for"),
            OfPrompt::Positions(entries) => entries.push(Some(entry)),
            OfPrompt::Sums(sums) => sums.last_mut().expect("one at least").add(&entry),
        }
    }

    /// Logprobs that come are those of another choice.
    pub fn begin_next_choice(&mut self) {
        if let OfPrompt::Sums(sums) = &mut self.of_prompt {
            sums.push(Likelihood::default());
        }
    }

    /// What was gathered of the prompt, once.
    pub fn take_of_prompt(&mut self) -> OfPrompt {
        std::mem::replace(&mut self.of_prompt, OfPrompt::Nothing)
    }

    /// The logprobs of the next generated token.
    pub fn push_logprobs(&mut self, entry: Option<PositionLogprobs>) {
        if let (Some(entries), Some(entry)) = (&mut self.logprobs, entry) {
            self.cumulative_logprob += f64::from(entry.token.logprob);
            entries.push(entry);
        }
    }

    /// Appends a token's text (None: a stop token that is not shown) and looks for a stop string
    /// that it completes, once more than `min_tokens` tokens are out.
    ///
    /// # Errors
    /// The token could not be detokenized.
    pub fn find_stop_string(
        &mut self,
        request: &Request,
        shown_token: Option<u32>,
        num_output_tokens: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Finish>, RequestError> {
        let params = &request.params;
        let detokenizer = self.detokenizer.get_or_insert_with(|| {
            Detokenizer::new(tokenizer, &request.prompt_token_ids, params.skip_special_tokens)
        });
        let old_len = detokenizer.text().len();
        if let Some(token_id) = shown_token {
            push(detokenizer, (request, tokenizer), token_id).map_err(detokenize_error)?;
        }
        let num_new_bytes = detokenizer.text().len() - old_len;
        if num_new_bytes == 0 || num_output_tokens <= params.min_tokens as usize {
            return Ok(None);
        }
        let include = params.include_stop_str_in_output;
        let found = StopChecker::check(detokenizer.text(), num_new_bytes, &params.stop, include);
        Ok(found
            .map(|m| Finish::StopString { stop_index: m.stop_index, truncate_to: m.truncate_to }))
    }

    /// The finished completion of `request`; without a tokenizer its text stays empty.
    pub fn into_output(
        mut self,
        request: &Request,
        index: u32,
        output_token_ids: &[u32],
        mut finish: Finish,
        tokenizer: Option<&Tokenizer>,
    ) -> CompletionOutput {
        let text = self.final_text(request, output_token_ids, &finish, tokenizer);
        let text = text.unwrap_or_else(|e| {
            finish = Finish::Error(detokenize_error(e));
            String::new()
        });
        CompletionOutput {
            index,
            text,
            token_ids: output_token_ids.to_vec(),
            cumulative_logprob: self.logprobs.as_ref().map(|_| self.cumulative_logprob),
            logprobs: self.logprobs,
            finish_reason: finish.reason(),
            stop_reason: finish.stop_reason(&request.params),
            is_complete: true,
            error: if let Finish::Error(error) = finish { Some(error) } else { None },
        }
    }

    fn final_text(
        &mut self,
        request: &Request,
        output_token_ids: &[u32],
        finish: &Finish,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<String, TextError> {
        let params = &request.params;
        if let Some(detokenizer) = &self.detokenizer {
            let text = detokenizer.text();
            let Finish::StopString { truncate_to, .. } = *finish else { return Ok(text.into()) };
            return Ok(text[..truncate_to].into());
        }
        let Some(tokenizer) = tokenizer else { return Ok(String::new()) };
        let num_hidden = usize::from(finish.hides_last_token(params));
        let mut detokenizer =
            Detokenizer::new(tokenizer, &request.prompt_token_ids, params.skip_special_tokens);
        for &token_id in &output_token_ids[..output_token_ids.len() - num_hidden] {
            push(&mut detokenizer, (request, tokenizer), token_id)?;
        }
        Ok(detokenizer.text().into())
    }
}

/// Appends the text of a token. Timestamps of a transcript are seconds, which older tokenizers have
/// no tokens of.
fn push(
    detokenizer: &mut Detokenizer,
    (request, tokenizer): (&Request, &Tokenizer),
    token_id: u32,
) -> Result<(), TextError> {
    let speech = request.guidance.as_ref().and_then(|guidance| guidance.speech.as_ref());
    let first = speech.filter(|speech| speech.has_timestamps).map(|s| s.tokens.first_timestamp());
    match first.and_then(|first| token_id.checked_sub(first)) {
        None => detokenizer.push(tokenizer, token_id),
        Some(fiftieths) => {
            let (seconds, hundredths) = (fiftieths / 50, fiftieths % 50 * 2);
            detokenizer.push_mark(&format!("<|{seconds}.{hundredths:02}|>"));
            Ok(())
        }
    }
}

impl Emitted {
    /// Whether there are more tokens.
    pub fn is_behind(self, token_ids: &[u32]) -> bool {
        self.num_tokens < token_ids.len()
    }

    fn next(
        &mut self,
        index: u32,
        text: &str,
        token_ids: &[u32],
        logprobs: Option<&[PositionLogprobs]>,
    ) -> CompletionDelta {
        let Self { num_text_bytes, num_tokens } = *self;
        *self = Self { num_text_bytes: text.len(), num_tokens: token_ids.len() };
        CompletionDelta {
            index,
            text: text[num_text_bytes..].to_owned(),
            token_ids: token_ids[num_tokens..].to_vec(),
            logprobs: logprobs.map(|logprobs| logprobs[num_tokens..].to_vec()),
            finish_reason: None,
        }
    }

    /// The last delta, of a completion that is finished.
    pub fn last(mut self, output: &CompletionOutput) -> CompletionDelta {
        let CompletionOutput { index, text, token_ids, logprobs, finish_reason, .. } = output;
        let rest = self.next(*index, text, token_ids, logprobs.as_deref());
        CompletionDelta { finish_reason: Some(*finish_reason), ..rest }
    }
}

impl OfPrompt {
    fn new(request: &Request, index: u32) -> Self {
        let params = &request.params;
        match request.asked {
            Asked::Completions if index == 0 && params.prompt_logprobs.is_some() => {
                let num_tokens = request.prompt_token_ids.len();
                let shows_first =
                    params.prompt_logprobs_last.is_none_or(|last| last as usize >= num_tokens);
                OfPrompt::Positions(if shows_first { vec![None] } else { Vec::new() })
            }
            Asked::Completions | Asked::State | Asked::States => OfPrompt::Nothing,
            Asked::Choices(_) | Asked::Rolling(_) => OfPrompt::Sums(vec![Likelihood::default()]),
        }
    }
}

/// A text that the tokenizer does not give.
pub(super) fn detokenize_error(error: TextError) -> RequestError {
    RequestError::new("detokenize", format!("the output could not be turned into text: {error}"))
}
