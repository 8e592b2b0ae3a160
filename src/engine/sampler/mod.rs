//! Sampling: pure functions of one row of logits. Order of application as vLLM's V1 runner.
//! (Placeholder until branch `sampler` is merged.)

use super::request::{
    NumLogprobs, PositionLogprobs, RowKey, SamplingParams, StopIds, TokenLogprob,
};

/// What is wanted of one row of logits.
#[derive(Debug)]
pub enum RowTask<'a> {
    /// The logprobs of a prompt token.
    PromptLogprobs {
        /// The prompt token at the next position.
        target: u32,
        /// How many top ones.
        num_logprobs: NumLogprobs,
    },
    /// A token.
    Sample(SampleTask<'a>),
}

/// Everything that sampling one token depends on.
#[derive(Debug)]
pub struct SampleTask<'a> {
    /// Parameters.
    pub params: &'a SamplingParams,
    /// Prompt.
    pub prompt_token_ids: &'a [u32],
    /// Output so far.
    pub output_token_ids: &'a [u32],
    /// Masked by `min_tokens`.
    pub stop_ids: &'a StopIds,
    /// Words that must not come.
    pub bad_words_token_ids: &'a [Vec<u32>],
    /// Key of the random numbers.
    pub row_key: RowKey,
    /// The engine's seed.
    pub engine_seed: u64,
    /// Which of the n completions.
    pub sample_index: u32,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum RowResult {
    /// Logprobs of a prompt token.
    PromptLogprobs(PositionLogprobs),
    /// A token.
    Sampled {
        /// The token.
        token_id: u32,
        /// Its logprobs, when asked for.
        logprobs: Option<PositionLogprobs>,
    },
    /// The row had no usable number.
    NonFinite,
}

/// Reused buffers.
#[derive(Debug, Default)]
pub struct SamplerScratch {}

/// Samples, greedily.
pub fn run_row(logits: &mut [f32], task: &RowTask, _scratch: &mut SamplerScratch) -> RowResult {
    if logits.iter().any(|l| l.is_nan()) {
        return RowResult::NonFinite;
    }
    match task {
        RowTask::PromptLogprobs { target, num_logprobs } => {
            RowResult::PromptLogprobs(position_logprobs(logits, *target, *num_logprobs))
        }
        RowTask::Sample(task) => {
            let raw = task.params.logprobs.map(|_| logits.to_vec());
            if task.output_token_ids.len() < task.params.min_tokens as usize {
                for &id in task.stop_ids.stop_token_ids.iter().chain(&task.stop_ids.eos_token_id) {
                    logits[id as usize] = f32::NEG_INFINITY;
                }
            }
            let token_id = argmax(logits);
            let logprobs = raw.map(|raw| {
                position_logprobs(&raw, token_id, task.params.logprobs.expect("asked for"))
            });
            RowResult::Sampled { token_id, logprobs }
        }
    }
}

fn argmax(logits: &[f32]) -> u32 {
    (1..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

fn position_logprobs(logits: &[f32], token_id: u32, count: NumLogprobs) -> PositionLogprobs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let norm = max + logits.iter().map(|l| (l - max).exp()).sum::<f32>().ln();
    let entry = |id: u32| TokenLogprob {
        token_id: id,
        logprob: logits[id as usize] - norm,
        rank: logits.iter().filter(|&&l| l >= logits[id as usize]).count() as u32,
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    if let NumLogprobs::Top(k) = count {
        ids.truncate(k as usize);
    }
    PositionLogprobs { token: entry(token_id), top: ids.into_iter().map(entry).collect() }
}
