//! What goes into the engine and what comes out: vLLM's `SamplingParams`, `RequestOutput`,
//! `CompletionOutput`.

use std::ops::Range;
use std::sync::Arc;

pub use super::config::LoraId;
pub use super::likelihood::{ChoiceTexts, KnownText, Likelihood, RollingText, Scored};
use super::prefix_cache::root_serial;
pub use super::sampling_params::{
    BeamSearchParams, Constraint, NumLogprobs, SamplingParams, StructuredOutputs, TruncationSide,
    UNLIMITED_LOGPROBS,
};
use super::structured_output::Guidance;

/// Key of a row's random numbers: 64 bits of a hash of the row's id, of its index where it has
/// none, or of its own seed. Never a slot, a time or a thread (docs/ARCHITECTURE.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKey(pub u64);

/// A prompt with its parameters, ready to run: tokenized, validated, keyed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Caller's number of the request; outputs carry it back.
    pub request_id: u64,
    /// Never empty, all in the vocabulary. Of choices: what they follow.
    pub prompt_token_ids: Vec<u32>,
    /// What is asked of the prompt.
    pub asked: Asked,
    /// Validated parameters.
    pub params: Arc<SamplingParams>,
    /// Ids that end generation with reason stop: (EOS unless ignored) then the others. Derived from
    /// `params`, tokenizer and generation_config.json as vLLM does; all are masked by `min_tokens`.
    pub stop_ids: StopIds,
    /// `params.bad_words` as token ids.
    pub bad_words_token_ids: Vec<Vec<u32>>,
    /// Key of its random numbers.
    pub row_key: RowKey,
    /// What constrains its answers. None: nothing.
    pub guidance: Option<Guidance>,
    /// The adapter that it is computed with. None: the model alone.
    pub lora: Option<LoraId>,
    /// Output tokens after which it ends as by its EOS, whatever they are: for benchmarks of
    /// weights that are made up. Unlike `max_tokens`, nothing is scheduled by it.
    pub eos_after: Option<usize>,
}

/// What is asked of a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// What comes after it: `params.n` completions. None comes with a `max_tokens` of 0: then its
    /// own logprobs are all that is asked for.
    #[default]
    Completions,
    /// How likely each of these texts is after it. They begin with the prompt.
    Choices(ChoiceTexts),
    /// How likely it is itself.
    Rolling(RollingText),
    /// The state of its last token, which the executor gives in place of logits.
    State,
}

/// What is known of a sequence before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// Its tokens; the last one is left out where none is sampled after it, as nobody reads its K,
    /// V and logits.
    pub token_ids: &'a [u32],
    /// The token that is left out; None: the last of `token_ids` is asked for the token after it,
    /// or for its state.
    pub end: Option<u32>,
    /// Positions of `token_ids` whose logits are wanted, for the known token after each.
    pub wanted: Range<usize>,
}

/// The stop token ids of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopIds {
    /// The tokenizer's EOS unless `ignore_eos`; stop_reason is null.
    pub eos_token_id: Option<u32>,
    /// User's ids and secondary EOS ids (the latter unless `ignore_eos`); stop_reason is the id.
    pub stop_token_ids: Vec<u32>,
}

/// Where a request is in its life (vLLM's `RequestStatus`, without its remote and grammar states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStatus {
    /// In the queue.
    Waiting,
    /// Has blocks, takes part in steps.
    Running,
    /// Lost its blocks, waits to be recomputed.
    Preempted,
    /// Done.
    Finished(FinishReason),
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// EOS, a stop token or a stop string.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
    /// Stopped, by a stop string for example, before the text matches what was asked of its form
    /// (structured output). Not vLLM's.
    Incomplete,
    /// Aborted by the caller.
    Abort,
    /// The row cannot be answered: see `CompletionOutput::error`.
    Error,
}

impl FinishReason {
    /// vLLM's spelling.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Incomplete => "incomplete",
            FinishReason::Abort => "abort",
            FinishReason::Error => "error",
        }
    }
}

/// What stopped a completion, when it was not the primary EOS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// A stop token id or a secondary EOS.
    TokenId(u32),
    /// A stop string.
    Text(String),
}

/// Log-probability of one token at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token_id: u32,
    /// Natural logarithm, from the raw logits (vLLM's `raw_logprobs`).
    pub logprob: f32,
    /// 1 + number of tokens whose logit is strictly greater, plus ties before it as vLLM counts:
    /// the number of logits >= its own.
    pub rank: u32,
}

/// Logprobs of one position: the token that is there, and the most likely ones.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionLogprobs {
    /// The sampled (or prompt) token.
    pub token: TokenLogprob,
    /// The top ones, most likely first; ties by lower id.
    pub top: Vec<TokenLogprob>,
}

/// One completion of a prompt.
#[derive(Clone, Debug)]
pub struct CompletionOutput {
    /// 0..n
    pub index: u32,
    /// Generated text, stop text removed unless asked for.
    pub text: String,
    /// Generated ids, the stop token included.
    pub token_ids: Vec<u32>,
    /// Sum of the sampled tokens' logprobs, when asked for.
    pub cumulative_logprob: Option<f64>,
    /// Per generated token, when asked for.
    pub logprobs: Option<Vec<PositionLogprobs>>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What stopped it.
    pub stop_reason: Option<StopReason>,
    /// False: it ended, by its length or a stop string, before it matched what was asked of its
    /// form (structured output).
    pub is_complete: bool,
    /// Set when `finish_reason` is `Error`.
    pub error: Option<RequestError>,
}

/// A finished request: what `step` returns.
#[derive(Clone, Debug)]
pub struct RequestOutput {
    /// The caller's number.
    pub request_id: u64,
    /// The prompt as it was run.
    pub prompt_token_ids: Vec<u32>,
    /// Per prompt token, or of the last ones that were asked for. That of the first token is None:
    /// nothing precedes it.
    pub prompt_logprobs: Option<Vec<Option<PositionLogprobs>>>,
    /// `n` completions by index.
    pub outputs: Vec<CompletionOutput>,
    /// How likely the texts are, where that was asked.
    pub scored: Option<Scored>,
    /// Prompt tokens found in the prefix cache. Depends on scheduling: statistics only.
    pub num_cached_tokens: usize,
}

/// A row that cannot be answered: data, not a failure of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// Stable word, e.g. `context_length`, `invalid_parameter`.
    pub code: &'static str,
    /// For the user: what is wrong and what to do.
    pub message: String,
}

impl Request {
    /// Sequences that it is computed as, at first.
    pub fn num_sequences(&self) -> u32 {
        match &self.asked {
            Asked::Completions if self.params.beam_search.is_some() => 1,
            Asked::Completions => self.params.n,
            Asked::Choices(_) | Asked::State => 1,
            Asked::Rolling(text) => text.windows.len() as u32,
        }
    }

    /// What is known of one of them, or of a sequence that goes through choices at one of those.
    /// Logprobs of a prompt are the business of its first completion.
    pub fn known(&self, index: u32) -> Known<'_> {
        let (all, num_scored) = match &self.asked {
            Asked::Completions => {
                let wants = index == 0 && self.params.prompt_logprobs.is_some();
                let last = self.params.prompt_logprobs_last.map_or(usize::MAX, |n| n as usize);
                (&self.prompt_token_ids, if wants { last } else { 0 })
            }
            Asked::Choices(choices) => choices.texts()[index as usize].scored(),
            Asked::Rolling(text) => text.windows[index as usize].scored(),
            Asked::State => (&self.prompt_token_ids, 0),
        };
        let (last, before) = all.split_last().expect("no prompt is empty");
        let asks_of_last = self.samples() || self.asked == Asked::State;
        let (token_ids, end) = if asks_of_last { (&all[..], None) } else { (before, Some(*last)) };
        let wanted = before.len().saturating_sub(num_scored)..before.len();
        Known { token_ids, end, wanted }
    }

    /// Logprobs of each wanted position: a text is greedy where its tokens are the likeliest.
    ///
    /// # Panics
    /// None are wanted.
    pub fn prompt_logprobs(&self) -> NumLogprobs {
        match self.asked {
            Asked::Completions | Asked::State => {
                self.params.prompt_logprobs.expect("they were asked for")
            }
            Asked::Choices(_) | Asked::Rolling(_) => NumLogprobs::Top(1),
        }
    }

    /// Whether tokens are generated.
    fn samples(&self) -> bool {
        self.asked == Asked::Completions && self.params.max_tokens != Some(0)
    }

    /// Most tokens of each completion, in a context of `max_model_len` tokens.
    pub fn max_output_tokens(&self, max_model_len: usize) -> usize {
        if !self.samples() {
            return 0;
        }
        let room = max_model_len - self.prompt_token_ids.len();
        self.params.max_tokens.map_or(room, |max_tokens| room.min(max_tokens as usize))
    }

    /// What its prefix in the cache begins from.
    pub fn prefix_root(&self) -> u64 {
        root_serial(self.lora.map(|LoraId(index)| index))
    }

    /// Tokens that the user has given: what choices follow counts once.
    pub fn num_prompt_tokens(&self) -> usize {
        let of_choices: usize = match &self.asked {
            Asked::Completions | Asked::Rolling(_) | Asked::State => 0,
            Asked::Choices(choices) => choices.texts().iter().map(|text| text.num_scored).sum(),
        };
        self.prompt_token_ids.len() + of_choices
    }
}

impl Asked {
    /// The answer, of the likelihoods of all sequences in their order.
    pub fn answer(&self, likelihoods: Vec<Likelihood>) -> Option<Scored> {
        match self {
            Asked::Completions | Asked::State => None,
            Asked::Choices(_) => Some(Scored::Choices(likelihoods)),
            Asked::Rolling(RollingText { num_words, num_bytes, .. }) => Some(Scored::Rolling {
                total: Likelihood::total(&likelihoods),
                num_words: *num_words,
                num_bytes: *num_bytes,
            }),
        }
    }
}

impl RequestOutput {
    /// As [`Request::num_prompt_tokens`].
    pub fn num_prompt_tokens(&self) -> usize {
        let of_choices: usize = match &self.scored {
            None | Some(Scored::Rolling { .. }) => 0,
            Some(Scored::Choices(choices)) => choices.iter().map(|choice| choice.num_tokens).sum(),
        };
        self.prompt_token_ids.len() + of_choices
    }

    /// Tokens generated for all of its completions.
    pub fn num_output_tokens(&self) -> usize {
        self.outputs.iter().map(|completion| completion.token_ids.len()).sum()
    }
}

impl RequestError {
    /// A new error of a code.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl std::fmt::Display for RequestError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for RequestError {}
