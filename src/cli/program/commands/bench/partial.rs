//! The result of a benchmark that was stopped: what the engine had done of all rows, those that are
//! not finished too.

use serde_json::{Value, json};

use super::Bench;
use super::measure::Measured;
use super::report::mode_name;
use crate::args::ModeArg;

/// What was measured until a signal came.
pub struct Partial<'a> {
    model: &'a str,
    mode: ModeArg,
    measured: &'a Measured,
    num_rows: usize,
    prompt: u64,
    output: u64,
}

impl<'a> Partial<'a> {
    /// Of a benchmark of so many rows.
    pub fn new(bench: &'a Bench, measured: &'a Measured, num_rows: usize) -> Self {
        let stats = &measured.stats;
        let output = stats.num_generation_tokens;
        let prompt = stats.num_computed_tokens.saturating_sub(output) + stats.num_cached_tokens;
        let (model, mode) = (&*bench.config.model.name, bench.mode);
        Self { model, mode, measured, num_rows, prompt, output }
    }

    fn per_second(&self, number: u64) -> f64 {
        number as f64 / self.measured.elapsed.as_secs_f64().max(1e-9)
    }

    /// The lines for standard output, without a final line break.
    pub fn text(&self) -> String {
        let Self { measured, num_rows, prompt, output, .. } = self;
        let finished = measured.rows.len();
        format!(
            "Partial result: {finished} of {num_rows} rows in {:.2} s\n\
             Throughput so far: {:.2} requests/s, {:.2} total tokens/s, {:.2} output tokens/s\n\
             Prompt tokens so far:  {prompt}\n\
             Output tokens so far:  {output}",
            measured.elapsed.as_secs_f64(),
            self.per_second(finished as u64),
            self.per_second(prompt + output),
            self.per_second(*output),
        )
    }

    /// For `--output-json` and `--progress json`: keys of a whole result, as far as they are known.
    pub fn json(&self, exit_code: u8) -> Value {
        let Self { model, mode, measured, num_rows, prompt, output } = self;
        let finished = measured.rows.len();
        json!({
            "model_id": model,
            "elapsed_time": measured.elapsed.as_secs_f64(),
            "num_requests": finished,
            "total_num_tokens": prompt + output,
            "requests_per_second": self.per_second(finished as u64),
            "tokens_per_second": self.per_second(prompt + output),
            "schema": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
            "mode": mode_name(*mode),
            "partial": true,
            "exit_code": exit_code,
            "num_requests_asked": num_rows,
            "output_tokens_per_second": self.per_second(*output),
            "num_prompt_tokens": prompt,
            "num_output_tokens": output,
            "num_steps": measured.stats.num_steps,
        })
    }
}
