//! vLLM's `SamplingParams`: names, defaults, ranges. `verify.rs` checks them.

mod structured_outputs;
mod verify;

use std::sync::Arc;

pub use structured_outputs::{Constraint, StructuredOutputs};
pub use verify::{DEFAULT_MAX_LOGPROBS, MAX_N, UNLIMITED_LOGPROBS};

/// Sampling parameters of one request: vLLM's names, defaults and ranges
/// (`SamplingParams`, except that `max_tokens: None` means the rest of the context).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Number of completions of the prompt.
    pub n: u32,
    /// Added once per token that occurs in the output, [-2, 2].
    pub presence_penalty: f32,
    /// Added per occurrence in the output, [-2, 2].
    pub frequency_penalty: f32,
    /// Over prompt and output tokens, > 0.
    pub repetition_penalty: f32,
    /// 0 is greedy; [0, 2].
    pub temperature: f32,
    /// Nucleus mass, (0, 1].
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// Minimum probability relative to the most likely token, [0, 1].
    pub min_p: f32,
    /// A row with its own seed is keyed by that seed alone.
    pub seed: Option<u64>,
    /// Stop strings, none empty.
    pub stop: Vec<String>,
    /// Token ids that stop generation, besides EOS.
    pub stop_token_ids: Vec<u32>,
    /// EOS does not stop.
    pub ignore_eos: bool,
    /// Most generated tokens; None: up to the context limit; 0: the prompt's logprobs are wanted
    /// alone.
    pub max_tokens: Option<u32>,
    /// All stop ids are masked until this many tokens are out.
    pub min_tokens: u32,
    /// Number of top logprobs per generated token; 0: the sampled one only; None: none.
    pub logprobs: Option<NumLogprobs>,
    /// The same per prompt token.
    pub prompt_logprobs: Option<NumLogprobs>,
    /// Of so many of the last prompt tokens, at least 1; None: of all.
    pub prompt_logprobs_last: Option<u32>,
    /// Leave special tokens out of the text.
    pub skip_special_tokens: bool,
    /// Keep the stop string (or stop token's text) in the text.
    pub include_stop_str_in_output: bool,
    /// (token id, value added to its logit).
    pub logit_bias: Vec<(u32, f32)>,
    /// Only these ids may be sampled.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Words that must not be generated.
    pub bad_words: Vec<String>,
    /// Keep this many prompt tokens; -1: as many as the context holds beside one token of output.
    /// None: no truncation.
    pub truncate_prompt_tokens: Option<i64>,
    /// Which end of the prompt `truncate_prompt_tokens` removes.
    pub truncation_side: TruncationSide,
    /// The most likely completions are searched for, and none is sampled. `n` is the beam width.
    pub beam_search: Option<BeamSearchParams>,
    /// When `step` returns what was generated.
    pub output_kind: RequestOutputKind,
    /// What the answer must match.
    pub structured_outputs: Option<Arc<StructuredOutputs>>,
    /// Most tokens of thinking, where the run knows how the model thinks (a reasoning parser).
    pub thinking_token_budget: Option<u32>,
    /// How a recording is written down, by a model that does that.
    pub speech: SpeechParams,
}

/// How a recording is written down: names of `generate` of transformers' Whisper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeechParams {
    /// What is spoken, as `en` or `english`; None: the model finds it.
    pub language: Option<String>,
    /// What is written.
    pub task: SpeechTask,
    /// Where each piece of the text begins and ends is written too.
    pub return_timestamps: bool,
}

/// What is written of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpeechTask {
    /// What is said, in its language.
    #[default]
    Transcribe,
    /// The same in English.
    Translate,
}

/// How a row is searched with beams: vLLM's `BeamSearchParams`, as far as `SamplingParams` does not
/// have it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BeamSearchParams {
    /// Beams that live on after each step, and completions that are returned.
    pub beam_width: u32,
    /// A sequence's score is its cumulative logprob over its number of tokens, the prompt's
    /// included, to this power.
    pub length_penalty: f64,
}

impl BeamSearchParams {
    /// vLLM's `length_penalty` where nobody says it.
    pub const DEFAULT_LENGTH_PENALTY: f64 = 1.0;

    /// A search of this width.
    pub fn of_width(beam_width: u32) -> Self {
        Self { beam_width, length_penalty: Self::DEFAULT_LENGTH_PENALTY }
    }
}

/// When `step` returns what was generated: vLLM's `RequestOutputKind`, without `CUMULATIVE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestOutputKind {
    /// Once, when the request is finished.
    #[default]
    FinalOnly,
    /// What is new in each step that has something new. The finished request is returned whole
    /// besides.
    Delta,
}

/// The end of a prompt that is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning goes, the last tokens stay: a chat keeps its question and the start of the
    /// answer. vLLM's default for generation.
    #[default]
    Left,
    /// The end goes, the first tokens stay.
    Right,
}

/// How many top logprobs were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumLogprobs {
    /// This many besides the sampled one.
    Top(u32),
    /// -1: the whole vocabulary.
    All,
}

impl SamplingParams {
    /// Whether tokens that occurred are penalized.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }
}

impl NumLogprobs {
    /// Most top logprobs of a position that a GPU finds itself.
    pub const MAX_ON_GPU: u32 = 64;

    /// How many there are besides the sampled one, where a GPU finds them itself.
    pub fn on_gpu(self) -> Option<u32> {
        match self {
            NumLogprobs::Top(count) if count <= Self::MAX_ON_GPU => Some(count),
            NumLogprobs::Top(_) | NumLogprobs::All => None,
        }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            n: 1,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: None,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            max_tokens: Some(16),
            min_tokens: 0,
            logprobs: None,
            prompt_logprobs: None,
            prompt_logprobs_last: None,
            skip_special_tokens: true,
            include_stop_str_in_output: false,
            logit_bias: Vec::new(),
            allowed_token_ids: None,
            bad_words: Vec::new(),
            truncate_prompt_tokens: None,
            truncation_side: TruncationSide::default(),
            beam_search: None,
            output_kind: RequestOutputKind::default(),
            structured_outputs: None,
            thinking_token_budget: None,
            speech: SpeechParams::default(),
        }
    }
}
