//! Ranges of `SamplingParams`, in vLLM's words, and the values that take effect.

use super::{BeamSearchParams, NumLogprobs, RequestOutputKind, SamplingParams};
use crate::request::RequestError;

/// Most completions of one prompt (vLLM's `VLLM_MAX_N_SEQUENCES`).
pub const MAX_N: u32 = 16_384;
/// Most top logprobs by default (vLLM's `max_logprobs`).
pub const DEFAULT_MAX_LOGPROBS: u32 = 20;
/// As `max_logprobs`: no limit but the vocabulary (vLLM's -1).
pub const UNLIMITED_LOGPROBS: u32 = u32::MAX;
/// A lower temperature is greedy (vLLM's `_SAMPLING_EPS`).
const SAMPLING_EPS: f32 = 1e-5;
/// Temperatures between 0 and this are raised to it (vLLM's `_MAX_TEMP`).
const MIN_TEMPERATURE: f32 = 0.01;
/// Bounds of a logit bias, both signs.
const MAX_LOGIT_BIAS: f32 = 100.0;

impl SamplingParams {
    /// Whether the most likely token is taken, without a random number.
    pub fn is_greedy(&self) -> bool {
        self.temperature < SAMPLING_EPS
    }

    /// Checks every value against vLLM's ranges and the vocabulary. Call it before `normalized`,
    /// which would hide an invalid `top_p` of a greedy row that vLLM refuses.
    ///
    /// # Errors
    /// The first value that is out of range, code `invalid_parameter`, in vLLM's words.
    pub fn verify(&self, vocab_size: usize, max_logprobs: u32) -> Result<(), RequestError> {
        self.verify_penalties()?;
        self.verify_distribution()?;
        self.verify_lengths()?;
        self.verify_texts()?;
        if let Some(beams) = self.beam_search {
            self.verify_beam_search(beams)?;
        }
        // A temperature between 0 and the least one is raised, so only 0 itself is greedy.
        let samples_one = self.n == 1 || self.beam_search.is_some();
        require(self.temperature != 0.0 || samples_one, || {
            format!("n must be 1 when using greedy sampling, got {}.", self.n)
        })?;
        verify_logprobs("sample", self.logprobs, vocab_size, max_logprobs)?;
        verify_logprobs("prompt", self.prompt_logprobs, vocab_size, max_logprobs)?;
        let last = self.prompt_logprobs_last;
        require(last.is_none() || self.prompt_logprobs.is_some(), || {
            "prompt_logprobs_last goes with prompt_logprobs.".to_owned()
        })?;
        require(last != Some(0), || "prompt_logprobs_last must be at least 1, got 0.".to_owned())?;
        self.verify_token_ids(vocab_size)
    }

    /// The values that are in effect, of verified parameters: small temperatures raised, truncation
    /// off where greedy, biases clamped, repeated stop ids and bad words removed.
    pub fn normalized(mut self) -> Self {
        if self.temperature > 0.0 && self.temperature < MIN_TEMPERATURE {
            self.temperature = MIN_TEMPERATURE;
        }
        if self.is_greedy() {
            (self.top_p, self.top_k, self.min_p) = (1.0, 0, 0.0);
        }
        for (_, bias) in &mut self.logit_bias {
            *bias = bias.clamp(-MAX_LOGIT_BIAS, MAX_LOGIT_BIAS);
        }
        remove_repeated(&mut self.stop_token_ids);
        remove_repeated(&mut self.bad_words);
        self
    }

    fn verify_penalties(&self) -> Result<(), RequestError> {
        require(self.n >= 1, || format!("n must be at least 1, got {}.", self.n))?;
        require(self.n <= MAX_N, || format!("n must be at most {MAX_N}, got {}.", self.n))?;
        let penalties =
            [("presence", self.presence_penalty), ("frequency", self.frequency_penalty)];
        for (name, value) in penalties {
            require((-2.0..=2.0).contains(&value), || {
                format!("{name}_penalty must be in [-2, 2], got {}.", python(value))
            })?;
        }
        let repetition = self.repetition_penalty;
        verify_finite("repetition_penalty", repetition)?;
        require(repetition > 0.0, || {
            format!("repetition_penalty must be greater than zero, got {}.", python(repetition))
        })
    }

    fn verify_distribution(&self) -> Result<(), RequestError> {
        let temperature = self.temperature;
        verify_finite("temperature", temperature)?;
        require(temperature >= 0.0, || {
            format!("temperature must be non-negative, got {}.", python(temperature))
        })?;
        require(temperature <= 2.0, || {
            format!("temperature must be in [0, 2], got {}.", python(temperature))
        })?;
        require(self.top_p > 0.0 && self.top_p <= 1.0, || {
            format!("top_p must be in (0, 1], got {}.", python(self.top_p))
        })?;
        require((0.0..=1.0).contains(&self.min_p), || {
            format!("min_p must be in [0, 1], got {}.", python(self.min_p))
        })
    }

    /// vLLM ignores in silence what has no effect on beams.
    fn verify_beam_search(&self, beams: BeamSearchParams) -> Result<(), RequestError> {
        let BeamSearchParams { beam_width, length_penalty } = beams;
        require(self.n == beam_width, || {
            format!("n must be the beam width, got n={} and beam_width={beam_width}.", self.n)
        })?;
        require(length_penalty.is_finite(), || {
            format!("length_penalty must be a finite number, got {length_penalty}.")
        })?;
        let asked = [
            ("stop", !self.stop.is_empty()),
            ("stop_token_ids", !self.stop_token_ids.is_empty()),
            ("min_tokens", self.min_tokens > 0),
            ("presence_penalty", self.presence_penalty != 0.0),
            ("frequency_penalty", self.frequency_penalty != 0.0),
            ("repetition_penalty", self.repetition_penalty != 1.0),
            ("logit_bias", !self.logit_bias.is_empty()),
            ("allowed_token_ids", self.allowed_token_ids.is_some()),
            ("bad_words", !self.bad_words.is_empty()),
            ("prompt_logprobs", self.prompt_logprobs.is_some()),
            ("structured_outputs", self.structured_outputs.is_some()),
            ("thinking_token_budget", self.thinking_token_budget.is_some()),
            // Which beam is the answer is known at the end.
            ("output_kind", self.output_kind == RequestOutputKind::Delta),
        ];
        for (name, is_asked) in asked {
            require(!is_asked, || match name {
                "repetition_penalty" => format!(
                    "{name} {} does not go with beam search; give {name} 1 (the other value may be \
                     the model's default)",
                    python(self.repetition_penalty)
                ),
                _ => format!("{name} does not go with beam search; leave it out"),
            })?;
        }
        Ok(())
    }

    /// Refuses what is asked of generated tokens, where none is generated.
    ///
    /// # Errors
    /// Something is, code `invalid_parameter`. The message says that it does not go with `what`.
    pub fn verify_generates_nothing(&self, what: &str) -> Result<(), RequestError> {
        let asked = [
            ("beam_width", self.beam_search.is_some()),
            ("n", self.n > 1),
            ("min_tokens", self.min_tokens > 0),
            ("logprobs", self.logprobs.is_some()),
            ("structured_outputs", self.structured_outputs.is_some()),
            ("thinking_token_budget", self.thinking_token_budget.is_some()),
            ("output_kind", self.output_kind == RequestOutputKind::Delta),
        ];
        require_none(&asked, what)
    }

    /// The same where known texts are scored, which are neither cut nor listed token by token.
    ///
    /// # Errors
    /// As `verify_generates_nothing`.
    pub fn verify_scores_texts(&self, what: &str) -> Result<(), RequestError> {
        let asked = [
            ("prompt_logprobs", self.prompt_logprobs.is_some()),
            ("truncate_prompt_tokens", self.truncate_prompt_tokens.is_some()),
        ];
        require_none(&asked, what)?;
        self.verify_generates_nothing(what)
    }

    fn verify_lengths(&self) -> Result<(), RequestError> {
        if self.max_tokens == Some(0) {
            require(self.prompt_logprobs.is_some(), || {
                "max_tokens must be at least 1, got 0 (0 goes with prompt_logprobs).".to_owned()
            })?;
            self.verify_generates_nothing("max_tokens=0")?;
        }
        if let Some(max_tokens) = self.max_tokens {
            let min_tokens = self.min_tokens;
            require(min_tokens <= max_tokens, || {
                format!(
                    "min_tokens must be less than or equal to max_tokens={max_tokens}, \
                     got {min_tokens}."
                )
            })?;
        }
        let kept = self.truncate_prompt_tokens;
        require(kept.is_none_or(|count| count == -1 || count >= 1), || {
            let got = kept.unwrap_or_default();
            format!("truncate_prompt_tokens must be an integer >= 1 or -1, got {got}.")
        })
    }

    fn verify_texts(&self) -> Result<(), RequestError> {
        require(self.stop.iter().all(|text| !text.is_empty()), || {
            "stop cannot contain an empty string.".to_owned()
        })?;
        require(self.bad_words.iter().all(|word| !word.is_empty()), || {
            let words: Vec<String> =
                self.bad_words.iter().map(|word| format!("'{word}'")).collect();
            format!(
                "bad_words cannot contain an empty string. Got bad_words=[{}]",
                words.join(", ")
            )
        })
    }

    fn verify_token_ids(&self, vocab_size: usize) -> Result<(), RequestError> {
        let bias_ids = self.logit_bias.iter().map(|&(id, _)| id);
        verify_in_vocab("logit_bias", bias_ids, vocab_size)?;
        // A NaN would survive the clamp and spoil the row's logits.
        if let Some(&(id, _)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan()) {
            return refuse(format!("logit_bias of token {id} must be a number, got nan."));
        }
        if let Some(allowed) = &self.allowed_token_ids {
            require(!allowed.is_empty(), || "allowed_token_ids is not None and empty!".to_owned())?;
            require(allowed.iter().all(|&id| (id as usize) < vocab_size), || {
                "allowed_token_ids contains out-of-vocab token id!".to_owned()
            })?;
        }
        verify_in_vocab("stop_token_ids", self.stop_token_ids.iter().copied(), vocab_size)
    }
}

fn refuse(message: String) -> Result<(), RequestError> {
    Err(RequestError::new("invalid_parameter", message))
}

fn require(holds: bool, message: impl FnOnce() -> String) -> Result<(), RequestError> {
    if holds { Ok(()) } else { refuse(message()) }
}

/// Refuses the first parameter that is asked for, of those with their names.
fn require_none(asked: &[(&str, bool)], what: &str) -> Result<(), RequestError> {
    let first = asked.iter().find(|(_, is_asked)| *is_asked);
    first
        .map_or(Ok(()), |(name, _)| refuse(format!("{name} does not go with {what}; leave it out")))
}

fn verify_finite(name: &str, value: f32) -> Result<(), RequestError> {
    require(value.is_finite(), || format!("{name} must be a finite number, got {}.", python(value)))
}

fn verify_in_vocab(
    name: &str,
    ids: impl Iterator<Item = u32>,
    vocab_size: usize,
) -> Result<(), RequestError> {
    let unknown: Vec<u32> = ids.filter(|&id| id as usize >= vocab_size).collect();
    require(unknown.is_empty(), || {
        format!(
            "token_id(s) {unknown:?} in {name} contain out-of-vocab token ids. \
             Vocabulary size: {vocab_size}"
        )
    })
}

/// `kind` is vLLM's word for where the logprobs are: sample or prompt.
fn verify_logprobs(
    kind: &str,
    wanted: Option<NumLogprobs>,
    vocab_size: usize,
    max_logprobs: u32,
) -> Result<(), RequestError> {
    let count = match wanted {
        None => return Ok(()),
        Some(NumLogprobs::Top(count)) => count as usize,
        Some(NumLogprobs::All) => vocab_size,
    };
    let max = if max_logprobs == UNLIMITED_LOGPROBS { vocab_size } else { max_logprobs as usize };
    require(count <= max, || {
        format!("Requested {kind} logprobs of {count}, which is greater than max allowed: {max}")
    })
}

/// Keeps the first of each, in order.
fn remove_repeated<T: Clone + Eq + std::hash::Hash>(items: &mut Vec<T>) {
    let mut seen = std::collections::HashSet::new();
    items.retain(|item| seen.insert(item.clone()));
}

/// A number as Python prints it, since the messages are vLLM's: `nan`, `2.5`, `1e-07`.
fn python(value: f32) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let text = format!("{value:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let sign = if exponent.starts_with('-') { '-' } else { '+' };
            format!("{digits}e{sign}{:0>2}", exponent.trim_start_matches('-'))
        }
    }
}
