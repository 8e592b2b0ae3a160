//! Runs rows through the engine and records every step. What a step was is read from the engine's
//! counters, so nothing here depends on the device.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cost::RowLengths;
use super::workload::BenchRow;
use crate::run::progress::Counters;
use crate::run::signals::Signals;
use vllm_batch_api::request::{RequestError, RequestOutput, RowKey, SamplingParams};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;
use vllm_batch_engine::Engine;
use vllm_batch_engine::request::Request;
use vllm_batch_engine::serve::input_processor::{InputProcessor, ProcessError};
use vllm_batch_engine::stats::{EngineStats, StepTime};

/// One step of the engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Wall time.
    pub seconds: f64,
    /// Rows that ran before the step.
    pub num_rows: usize,
    /// Tokens computed.
    pub num_tokens: u64,
    /// Tokens generated.
    pub num_output_tokens: u64,
    /// Each running row computed exactly one token and nothing else was computed.
    pub is_decode: bool,
    /// Positions that the tokens of a decode step attend to, themselves included, summed over its
    /// rows. Meaningful while no row was preempted.
    pub num_positions: u64,
    /// What the time went to.
    pub time: StepTime,
}

/// What a run of rows did.
#[derive(Clone, Debug)]
pub struct Measured {
    /// From the first request to the last output.
    pub elapsed: Duration,
    /// Part of it that turned prompts into requests.
    pub input_time: Duration,
    /// In order.
    pub steps: Vec<Step>,
    /// Counters of this run alone.
    pub stats: EngineStats,
    /// In order of finishing.
    pub rows: Vec<RowLengths>,
    /// A signal ended it before the last row.
    pub stopped: Option<Exit>,
}

/// The request of a row: greedy, and past the end of text that the model gives, so that it has
/// exactly its tokens.
///
/// # Errors
/// The row cannot be answered.
pub fn request(
    processor: &InputProcessor,
    index: usize,
    row: BenchRow,
) -> Result<Request, ProcessError> {
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(row.max_tokens.unwrap_or(row.num_tokens)),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let request = processor.process(index as u64, row.prompt, params, RowKey(index as u64))?;
    let eos_after = row.max_tokens.map(|_| row.num_tokens as usize);
    Ok(Request { lora: row.lora, eos_after, ..request })
}

/// Why there is no request, as the error of the benchmark.
pub fn refuse(index: u64, error: ProcessError) -> CliError {
    match error.of_row() {
        Ok(error) => refuse_row(index, &error),
        Err(error) => error.into(),
    }
}

/// A row that cannot be run ends the benchmark: its figures would be of something else.
pub fn refuse_row(index: u64, error: &RequestError) -> CliError {
    let row = index + 1;
    if error.code == "context_length" {
        let message = format!("row {row}: the prompt does not fit the context");
        let help = "shorten --input-len or the dataset's prompts, or raise --max-model-len";
        return CliError::refused(error.code, message).help(help);
    }
    let message = format!("row {row}: {}", error.message);
    CliError::new(Exit::Refused, error.code, message)
}

/// Runs all rows, unless a signal comes. The engine has no other requests.
///
/// # Errors
/// The device failed, or a row could not be answered.
pub fn run(
    engine: &mut Engine,
    rows: Vec<BenchRow>,
    counters: &Counters,
    signals: &Signals,
) -> Result<Measured, CliError> {
    let base = engine.stats();
    let processor = engine.input_processor();
    let started = Instant::now();
    let mut wanted = HashMap::with_capacity(rows.len());
    for (index, row) in rows.into_iter().enumerate() {
        wanted.insert(index as u64, row.num_tokens as usize);
        let request = request(&processor, index, row);
        engine.add_request(request.map_err(|error| refuse(index as u64, error))?);
    }
    let input_time = started.elapsed();
    let (mut steps, mut rows) = (Vec::new(), Vec::with_capacity(wanted.len()));
    let mut before = since(engine.stats(), &base);
    // Tokens of finished rows that are no longer in the KV cache's use.
    let mut num_left = 0;
    let mut stopped = None;
    while engine.has_unfinished_requests() && stopped.is_none() {
        let step_started = Instant::now();
        let outputs = engine.step()?;
        let seconds = step_started.elapsed().as_secs_f64();
        let after = since(engine.stats(), &base);
        steps.push(step(seconds, &before, &after, num_left));
        counters.set_engine(&after);
        before = after;
        for output in &outputs {
            let row = finished(output, wanted[&output.request_id])?;
            num_left += (row.prompt + row.output - 1) as u64;
            counters.row_done(row.output as u64);
            rows.push(row);
        }
        stopped = signals.exit();
    }
    // A signal in the last step has stopped nothing.
    let stopped = stopped.filter(|_| engine.has_unfinished_requests());
    Ok(Measured { elapsed: started.elapsed(), input_time, steps, stats: before, rows, stopped })
}

fn step(seconds: f64, before: &EngineStats, after: &EngineStats, num_left: u64) -> Step {
    let num_tokens = after.num_computed_tokens - before.num_computed_tokens;
    let num_output_tokens = after.num_generation_tokens - before.num_generation_tokens;
    let num_rows = before.num_running;
    let same_rows =
        after.num_waiting == before.num_waiting && after.num_preemptions == before.num_preemptions;
    let is_decode = same_rows
        && num_rows > 0
        && [num_tokens, num_output_tokens].iter().all(|number| *number == num_rows as u64);
    let in_cache = after.num_computed_tokens + after.num_cached_tokens;
    let num_positions = in_cache.saturating_sub(num_left);
    let time = after.time - before.time;
    Step { seconds, num_rows, num_tokens, num_output_tokens, is_decode, num_positions, time }
}

/// Lengths of a finished row, which are those that were asked for.
fn finished(output: &RequestOutput, wanted: usize) -> Result<RowLengths, CliError> {
    let [completion] = output.outputs.as_slice() else { panic!("one completion was asked for") };
    if let Some(error) = &completion.error {
        return Err(refuse_row(output.request_id, error));
    }
    let num_tokens = completion.token_ids.len();
    assert_eq!(num_tokens, wanted, "output tokens of row {}", output.request_id + 1);
    let (prompt, cached) = (output.prompt_token_ids.len(), output.num_cached_tokens);
    Ok(RowLengths { prompt, output: num_tokens, cached })
}

/// Counters since `base`; queue lengths as they are.
fn since(now: EngineStats, base: &EngineStats) -> EngineStats {
    EngineStats {
        num_steps: now.num_steps - base.num_steps,
        num_computed_tokens: now.num_computed_tokens - base.num_computed_tokens,
        num_prompt_tokens: now.num_prompt_tokens - base.num_prompt_tokens,
        num_generation_tokens: now.num_generation_tokens - base.num_generation_tokens,
        num_cached_tokens: now.num_cached_tokens - base.num_cached_tokens,
        num_preemptions: now.num_preemptions - base.num_preemptions,
        num_steps_in_parts: now.num_steps_in_parts - base.num_steps_in_parts,
        num_steps_with_shared_parts: now.num_steps_with_shared_parts
            - base.num_steps_with_shared_parts,
        num_drafted_rows: now.num_drafted_rows - base.num_drafted_rows,
        num_draft_tokens: now.num_draft_tokens - base.num_draft_tokens,
        num_forced_tokens: now.num_forced_tokens - base.num_forced_tokens,
        num_accepted_tokens: now.num_accepted_tokens - base.num_accepted_tokens,
        time: now.time - base.time,
        ..now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(computed: u64, generated: u64, running: usize, waiting: usize) -> EngineStats {
        EngineStats {
            num_computed_tokens: computed,
            num_generation_tokens: generated,
            num_running: running,
            num_waiting: waiting,
            ..EngineStats::default()
        }
    }

    #[test]
    fn a_decode_step_is_one_token_of_every_running_row() {
        let before = stats(100, 10, 4, 2);
        let is_decode = |after: EngineStats| step(1.0, &before, &after, 0).is_decode;
        assert!(is_decode(stats(104, 14, 4, 2)));
        assert!(is_decode(stats(104, 14, 3, 2)), "one finished in it");
        assert!(!is_decode(stats(104, 13, 4, 2)), "one computed a prompt");
        assert!(!is_decode(stats(120, 14, 4, 2)), "one computed a longer prompt");
        assert!(!is_decode(stats(103, 13, 4, 2)), "one waited for the token budget");
        assert!(!is_decode(stats(104, 14, 4, 1)), "one was admitted");
        let preempted = EngineStats { num_preemptions: 1, ..stats(104, 14, 4, 2) };
        assert!(!is_decode(preempted));
        assert!(!step(1.0, &stats(0, 0, 0, 1), &stats(0, 0, 0, 1), 0).is_decode);
    }
}
