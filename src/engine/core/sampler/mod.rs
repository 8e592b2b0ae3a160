//! Sampling: pure functions of one row of logits, in vLLM V1's order of application:
//! the mask of structured output, raw logprobs, `allowed_token_ids`, `bad_words`, `min_tokens`,
//! `logit_bias`, penalties (repetition, frequency, presence), then greedy argmax, or temperature,
//! `min_p`, `top_k`, `top_p` and a draw.

pub mod draw;
mod logprobs;
mod masks;
mod penalties;
pub mod philox;
mod reduce;
mod truncation;
pub mod wide;

use crate::request::StopIds;
pub use masks::forbidden_ids;
use penalties::Occurrences;
use reduce::RowMax;
pub use truncation::Survivors;
use truncation::TruncationScratch;
use vllm_batch_api::request::{PositionLogprobs, RowKey};
use vllm_batch_api::sampling_params::{NumLogprobs, SamplingParams};
use wide::{Baseline, Divide, Draw, LogprobsOf, MaxOf, Truncate, Vectors};

/// What to do with one row of logits.
#[derive(Clone, Copy, Debug)]
pub enum RowTask<'a> {
    /// The position before a prompt token: what did the model think of that token?
    PromptLogprobs {
        /// The prompt token that follows the position, in the vocabulary.
        target: u32,
        /// How many of the most likely tokens are wanted besides it.
        num_logprobs: NumLogprobs,
    },
    /// The end of a sequence: sample its next token.
    Sample(SampleTask<'a>),
    /// A draft, after which a token is sampled in a later round if the drafts until there are
    /// right: nothing is done.
    Later,
}

/// Tokens that may come next, by structured output.
#[derive(Clone, Copy, Debug)]
pub struct TokenMask<'a> {
    /// Bit i of word j: whether token 32 * j + i may come. Those past the last word may not.
    pub words: &'a [u32],
    /// The token, if it is the only one.
    pub only: Option<u32>,
    /// The first of the last ids, timestamps: where all of these together are likelier than each of
    /// the others, one of them comes.
    pub weighed: Option<u32>,
}

/// Everything that decides a sampled token, besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct SampleTask<'a> {
    /// Verified and normalized parameters.
    pub params: &'a SamplingParams,
    /// The prompt; counts for the repetition penalty.
    pub prompt_token_ids: &'a [u32],
    /// The output so far; its length is the position in the random stream.
    pub output_token_ids: &'a [u32],
    /// How many of its last tokens are guesses that the step verifies.
    pub num_drafts: usize,
    /// The output has one token more, which nobody knows yet: this row of the step before samples
    /// it. A GPU alone takes such a task.
    pub sampled_row: Option<usize>,
    /// Masked until `min_tokens` are out.
    pub stop_ids: &'a StopIds,
    /// `params.bad_words` as token ids.
    pub bad_words_token_ids: &'a [Vec<u32>],
    /// Key of the row's random numbers; ignored when the row has its own `params.seed`.
    pub row_key: RowKey,
    /// The engine's seed; ignored when the row has its own `params.seed`.
    pub engine_seed: u64,
    /// The request, which with `sample_index` tells sequences apart that are under way at a time.
    pub request_id: u64,
    /// Which of the `n` completions, 0..n.
    pub sample_index: u32,
    /// Tokens that may come, before everything else: logprobs are of the logits that it leaves.
    pub token_mask: Option<TokenMask<'a>>,
}

impl SampleTask<'_> {
    /// Tokens of the output, the unknown one included.
    pub fn num_output_tokens(&self) -> usize {
        self.output_token_ids.len() + usize::from(self.sampled_row.is_some())
    }

    /// The output without its drafts.
    pub fn known_output(&self) -> &[u32] {
        &self.output_token_ids[..self.output_token_ids.len() - self.num_drafts]
    }

    /// The last tokens of the output that are guesses.
    pub fn drafts(&self) -> &[u32] {
        &self.output_token_ids[self.output_token_ids.len() - self.num_drafts..]
    }

    /// Whether the task takes the likeliest of the tokens that the mask leaves, and nothing else
    /// changes which one that is, or looks at the others.
    pub fn takes_likeliest(&self) -> bool {
        let params = self.params;
        params.is_greedy()
            && params.logprobs.is_none()
            && params.allowed_token_ids.is_none()
            && params.logit_bias.is_empty()
            && !params.has_penalties()
            && forbidden_ids(self).next().is_none()
    }

    /// The token, where the mask leaves one and nothing else is asked: logits are not looked at.
    pub fn forced(&self) -> Option<u32> {
        let only = self.token_mask?.only?;
        let is_allowed =
            self.params.allowed_token_ids.is_none() && forbidden_ids(self).all(|id| id != only);
        (is_allowed && self.params.logprobs.is_none()).then_some(only)
    }
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum RowResult {
    /// Logprobs of a prompt position.
    PromptLogprobs(PositionLogprobs),
    /// The next token.
    Sampled {
        /// Its id.
        token_id: u32,
        /// When `params.logprobs` asks for them: from the untouched logits.
        logprobs: Option<PositionLogprobs>,
    },
    /// The model gave a NaN, +inf or nothing but -inf, or penalties and temperature took the
    /// logits out of the range of f32: no token would mean anything.
    NonFinite,
    /// The parameters contradict each other: `allowed_token_ids`, `bad_words` and `min_tokens`
    /// together forbid every token. vLLM samples garbage here.
    NoTokenAllowed,
    /// The row is a state, which whoever asked for it has taken.
    State,
    /// Nothing was done with the row.
    Later,
}

/// Buffers that are reused from row to row: in the steady state a row allocates only its result.
/// Holds nothing that could carry over from one row to the next.
#[derive(Debug, Default)]
pub struct SamplerScratch {
    /// Untouched logits, when logprobs are wanted.
    raw: Vec<f32>,
    /// Logits of the allowed tokens while the row is masked.
    saved: Vec<f32>,
    occurrences: Occurrences,
    truncation: TruncationScratch,
    block_sums: Vec<f64>,
}

/// Runs one row. `logits` (vocab_size), not empty, are scratch space afterwards.
/// The result is a function of logits and task: not of the scratch, nor of any other row.
pub fn run_row(logits: &mut [f32], task: &RowTask, scratch: &mut SamplerScratch) -> RowResult {
    run_row_with(Baseline, logits, task, scratch)
}

/// `run_row` with other vectors, to the same bits.
pub fn run_row_with(
    vectors: impl Vectors,
    logits: &mut [f32],
    task: &RowTask,
    scratch: &mut SamplerScratch,
) -> RowResult {
    if let RowTask::Sample(task) = task {
        if let Some(token_id) = task.forced() {
            return RowResult::Sampled { token_id, logprobs: None };
        }
        if let Some(mask) = task.token_mask {
            masks::apply_token_mask(logits, mask);
        }
    }
    let Some(raw_max) = usable_max(vectors, logits) else {
        return RowResult::NonFinite;
    };
    match task {
        RowTask::Later => RowResult::Later,
        &RowTask::PromptLogprobs { target, num_logprobs } => {
            RowResult::PromptLogprobs(vectors.run(LogprobsOf {
                row: logits,
                max: raw_max.value,
                token_id: target,
                num_logprobs,
                scratch: &mut scratch.truncation,
            }))
        }
        RowTask::Sample(task) => sample(vectors, logits, raw_max, task, scratch),
    }
}

/// The likeliest token of a row; None where `run_row` would give `NonFinite`.
pub fn likeliest(vectors: impl Vectors, logits: &[f32]) -> Option<u32> {
    usable_max(vectors, logits).map(|max| max.index as u32)
}

/// What `run_row` gives for a row of which the likeliest token is known, and wanted alone.
///
/// # Panics
/// More is wanted.
pub fn of_likeliest(likeliest: Option<u32>, task: &RowTask) -> RowResult {
    let takes_it = matches!(task, RowTask::Sample(task) if task.takes_likeliest());
    assert!(takes_it, "logits were not kept for {task:?}");
    likeliest
        .map_or(RowResult::NonFinite, |token_id| RowResult::Sampled { token_id, logprobs: None })
}

/// The tokens that a sampling row may draw from: one for a greedy row.
///
/// # Errors
/// `NonFinite` or `NoTokenAllowed`, as `run_row`.
pub fn surviving_token_ids(
    logits: &mut [f32],
    task: &SampleTask,
    scratch: &mut SamplerScratch,
) -> Result<Vec<u32>, RowResult> {
    if let Some(mask) = task.token_mask {
        masks::apply_token_mask(logits, mask);
    }
    let raw_max = usable_max(Baseline, logits).ok_or(RowResult::NonFinite)?;
    let max = process(Baseline, logits, raw_max, task, scratch)?;
    if task.params.is_greedy() {
        return Ok(vec![max.index as u32]);
    }
    Ok(survivors(Baseline, logits, max, task.params, &mut scratch.truncation)?.token_ids())
}

fn usable_max(vectors: impl Vectors, logits: &[f32]) -> Option<RowMax> {
    vectors.run(MaxOf(logits)).filter(|max| max.value > f32::NEG_INFINITY)
}

fn sample(
    vectors: impl Vectors,
    logits: &mut [f32],
    raw_max: RowMax,
    task: &SampleTask,
    scratch: &mut SamplerScratch,
) -> RowResult {
    if task.params.logprobs.is_some() {
        scratch.raw.clear();
        scratch.raw.extend_from_slice(logits);
    }
    let token_id = match choose(vectors, logits, raw_max, task, scratch) {
        Ok(token_id) => token_id,
        Err(result) => return result,
    };
    let (row, scratch) = (&scratch.raw, &mut scratch.truncation);
    let logprobs = task.params.logprobs.map(|num_logprobs| {
        vectors.run(LogprobsOf { row, max: raw_max.value, token_id, num_logprobs, scratch })
    });
    RowResult::Sampled { token_id, logprobs }
}

/// The next token, or why there is none.
fn choose(
    vectors: impl Vectors,
    logits: &mut [f32],
    raw_max: RowMax,
    task: &SampleTask,
    scratch: &mut SamplerScratch,
) -> Result<u32, RowResult> {
    let max = process(vectors, logits, raw_max, task, scratch)?;
    if task.params.is_greedy() {
        return Ok(max.index as u32);
    }
    let survivors = survivors(vectors, logits, max, task.params, &mut scratch.truncation)?;
    let (uniform, block_sums) = (draw::uniform(task), &mut scratch.block_sums);
    Ok(vectors.run(Draw { survivors, uniform, block_sums }))
}

/// Masks, bias and penalties; returns the new maximum.
fn process(
    vectors: impl Vectors,
    logits: &mut [f32],
    raw_max: RowMax,
    task: &SampleTask,
    scratch: &mut SamplerScratch,
) -> Result<RowMax, RowResult> {
    let is_masked = masks::apply_masks(logits, task, &mut scratch.saved);
    let is_penalized = penalties::apply_penalties(logits, task, &mut scratch.occurrences);
    if !is_masked && !is_penalized {
        return Ok(raw_max);
    }
    let max = vectors.run(MaxOf(logits)).ok_or(RowResult::NonFinite)?;
    if max.value == f32::NEG_INFINITY {
        return Err(RowResult::NoTokenAllowed);
    }
    Ok(max)
}

/// Temperature, then truncation.
fn survivors<'a>(
    vectors: impl Vectors,
    logits: &'a mut [f32],
    max: RowMax,
    params: &'a SamplingParams,
    scratch: &'a mut TruncationScratch,
) -> Result<Survivors<'a>, RowResult> {
    let temperature = params.temperature;
    if temperature != 1.0 {
        vectors.run(Divide(logits, temperature));
    }
    // Division rounds monotonically: the maximum stays the maximum.
    let max = max.value / temperature;
    if !max.is_finite() {
        return Err(RowResult::NonFinite);
    }
    Ok(vectors.run(Truncate { logits, max, params, scratch }))
}
