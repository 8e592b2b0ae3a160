//! Runs some rows for a few seconds, and records what each step was and took.

use std::time::Instant;

use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::FinishReason;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_engine::serve::runner::{Runner, Work};
use vllm_batch_engine::stats::EngineStats;

/// The time is not over before so many tokens are out: without any, nothing is known of decoding.
const MIN_OUTPUT_TOKENS: u64 = 8;

/// Texts of so many full steps are there at a time: the last step of them is smaller.
const STEPS_AHEAD: usize = 4;

/// A step of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Wall time.
    pub seconds: f64,
    /// Tokens computed that gave no output token: nearly all of them of prompts.
    pub num_prompt_tokens: u64,
    /// Tokens generated.
    pub num_output_tokens: u64,
}

/// What the sample did.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// In order.
    pub steps: Vec<Step>,
    /// Rows begun.
    pub num_rows: usize,
    /// Rows that were answered in the time.
    pub num_finished: usize,
    /// Completions that ended by themselves, not by a limit.
    pub num_stopped: u64,
    /// Tokens generated.
    pub num_output_tokens: u64,
    /// Prompt tokens of the rows begun; of whole texts, as far as all of them are done.
    pub num_prompt_tokens: u64,
    /// Prompt tokens found in the prefix cache, or of texts that were computed before.
    pub num_cached_tokens: u64,
}

impl Sample {
    /// Wall time of all steps.
    pub fn seconds(&self) -> f64 {
        self.steps.iter().map(|step| step.seconds).sum()
    }

    /// Share of prompt tokens that the prefix cache had.
    pub fn cached_share(&self) -> f64 {
        self.num_cached_tokens as f64 / self.num_prompt_tokens.max(1) as f64
    }
}

/// Runs rows for `seconds`. A row joins before each step as long as half of that is left for those
/// that decode: steps of many sizes tell what a step, a prompt token and an output token cost.
///
/// # Errors
/// The device failed.
pub fn run(
    engine: &mut Runner,
    requests: Vec<Work>,
    seconds: f64,
    max_num_seqs: usize,
) -> Result<Sample, CliError> {
    let mut sample = Sample::default();
    let mut waiting = requests.into_iter().peekable();
    let started = Instant::now();
    let mut prompt_seconds = 0.0;
    let base = engine.stats();
    let mut before = base;
    loop {
        let has_room = before.num_running + before.num_waiting < max_num_seqs;
        if waiting.peek().is_some()
            && (!engine.has_unfinished_requests() || has_room && prompt_seconds < seconds / 2.0)
        {
            engine.add_request(waiting.next().expect("it was looked at"));
            sample.num_rows += 1;
        }
        let is_over = started.elapsed().as_secs_f64() >= seconds
            && sample.num_output_tokens >= MIN_OUTPUT_TOKENS;
        if is_over || !engine.has_unfinished_requests() {
            break;
        }
        let step_started = Instant::now();
        let outputs = engine.step()?;
        let after = engine.stats();
        let step = step(step_started.elapsed().as_secs_f64(), &before, &after);
        let num_tokens = (step.num_prompt_tokens + step.num_output_tokens).max(1);
        prompt_seconds += step.seconds * step.num_prompt_tokens as f64 / num_tokens as f64;
        sample.num_output_tokens += step.num_output_tokens;
        sample.steps.push(step);
        sample.num_finished += outputs.len();
        let completions = outputs.iter().flat_map(|answer| match answer {
            Answer::Generate(output) => &output.outputs[..],
            Answer::Pooling(_) => &[],
        });
        let stopped = completions.filter(|c| c.finish_reason == FinishReason::Stop);
        sample.num_stopped += stopped.count() as u64;
        before = after;
    }
    sample.num_prompt_tokens = before.num_prompt_tokens - base.num_prompt_tokens;
    sample.num_cached_tokens = before.num_cached_tokens - base.num_cached_tokens;
    Ok(sample)
}

/// The same of whole texts: as many rows as fill some steps, again and again.
///
/// # Errors
/// The device failed.
pub fn run_texts(
    engine: &mut Runner,
    requests: Vec<Work>,
    seconds: f64,
    max_num_tokens: usize,
) -> Result<Sample, CliError> {
    let mut sample = Sample::default();
    let mut waiting = requests.into_iter();
    let started = Instant::now();
    let base = engine.stats();
    let mut before = base;
    let is_over = || started.elapsed().as_secs_f64() >= seconds;
    while !is_over() {
        let mut num_tokens = 0;
        while num_tokens < STEPS_AHEAD * max_num_tokens
            && let Some(request) = waiting.next()
        {
            num_tokens += request.prompts().into_iter().map(<[u32]>::len).sum::<usize>();
            engine.add_request(request);
            sample.num_rows += 1;
        }
        if !engine.has_unfinished_requests() {
            break;
        }
        while engine.has_unfinished_requests() && !is_over() {
            let step_started = Instant::now();
            sample.num_finished += engine.step()?.len();
            let after = engine.stats();
            sample.steps.push(step(step_started.elapsed().as_secs_f64(), &before, &after));
            before = after;
        }
        if !engine.has_unfinished_requests() {
            // Texts that rows have in common are computed once.
            let num_computed = before.num_computed_tokens - base.num_computed_tokens;
            sample.num_prompt_tokens = before.num_prompt_tokens - base.num_prompt_tokens;
            sample.num_cached_tokens = sample.num_prompt_tokens - num_computed;
        }
    }
    Ok(sample)
}

fn step(seconds: f64, before: &EngineStats, after: &EngineStats) -> Step {
    let num_output_tokens = after.num_generation_tokens - before.num_generation_tokens;
    let num_tokens = after.num_computed_tokens - before.num_computed_tokens;
    let num_prompt_tokens = num_tokens.saturating_sub(num_output_tokens);
    Step { seconds, num_prompt_tokens, num_output_tokens }
}
