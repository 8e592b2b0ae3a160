//! What is asked of a prompt and what comes out: vLLM's `RequestOutput`, `CompletionOutput`.

pub use super::likelihood::{ChoiceTexts, KnownText, Likelihood, RollingText, Scored};
pub use super::sampling_params::{
    BeamSearchParams, Constraint, NumLogprobs, RequestOutputKind, SamplingParams, SpeechParams,
    SpeechTask, StructuredOutputs, TruncationSide, UNLIMITED_LOGPROBS,
};
pub use vllm_batch_base::config::LoraId;

/// Key of a row's random numbers: 64 bits of a hash of the row's id, of its index where it has
/// none, or of its own seed. Never a slot, a time or a thread (docs/ARCHITECTURE.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKey(pub u64);

/// Whether somebody waits for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestClass {
    /// Somebody does: it goes before rows of a batch, and may preempt them.
    #[default]
    Online,
    /// It is a row of a batch, which has time.
    Batch,
}

/// Which of two requests goes first: the lesser one; of equal ones the one that came first. No byte
/// of an answer depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Precedence {
    /// What decides first.
    pub class: RequestClass,
    /// vLLM's `priority`: a lower one goes first.
    pub priority: i64,
}

/// Request for a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Generate `params.n` completions. With `max_tokens` 0, return prompt logprobs only.
    #[default]
    Completions,
    /// How likely each of these texts is after it. They begin with the prompt.
    Choices(ChoiceTexts),
    /// How likely it is itself.
    Rolling(RollingText),
    /// The state of its last token, which the executor gives in place of logits.
    State,
    /// Those of all its tokens.
    States,
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

/// What a completion has more than the deltas before had. All deltas of a completion, one after the
/// other, are its text, ids and logprobs.
#[derive(Clone, Debug)]
pub struct CompletionDelta {
    /// 0..n
    pub index: u32,
    /// Whole characters that nothing takes back: a stop string that has perhaps begun is not there
    /// yet. May be empty.
    pub text: String,
    /// New ids, also where their text is still held back.
    pub token_ids: Vec<u32>,
    /// Of these, when asked for.
    pub logprobs: Option<Vec<PositionLogprobs>>,
    /// Of the last delta of the completion.
    pub finish_reason: Option<FinishReason>,
}

/// What `step` returns of a request: when it is finished, and before where it asks for deltas.
#[derive(Clone, Debug)]
pub struct RequestOutput {
    /// The caller's number.
    pub request_id: u64,
    /// Whether it is finished. If not, it has deltas and nothing else.
    pub finished: bool,
    /// What is new, where that is asked for.
    pub deltas: Vec<CompletionDelta>,
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

impl Precedence {
    /// A row of a batch, among others of its priority.
    pub const BATCH: Self = Self { class: RequestClass::Batch, priority: 0 };

    /// Of the same class.
    pub fn with_priority(self, priority: i64) -> Self {
        Self { priority, ..self }
    }
}

impl Asked {
    /// The answer, of the likelihoods of all sequences in their order.
    pub fn answer(&self, likelihoods: Vec<Likelihood>) -> Option<Scored> {
        match self {
            Asked::Completions | Asked::State | Asked::States => None,
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
    /// An output of a request that goes on.
    pub fn of_deltas(request_id: u64, deltas: Vec<CompletionDelta>) -> Self {
        Self {
            request_id,
            finished: false,
            deltas,
            prompt_token_ids: Vec::new(),
            prompt_logprobs: None,
            outputs: Vec::new(),
            scored: None,
            num_cached_tokens: 0,
        }
    }

    /// As `Request::num_prompt_tokens` of the engine.
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
