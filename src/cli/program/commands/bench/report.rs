//! What was measured, as a few lines and as JSON. Rates of a mode divide by the time of its steps,
//! vLLM's rates by the time of the whole run.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::cost::{ModelCost, Rates, RowLengths};
use super::measure::{Measured, Step};
use super::op_table::{self, OpTable};
use super::workload::RandomRows;
use crate::args::ModeArg;
use crate::run::report::{images_json, images_said};
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::stats::{OpTimes, StepTime};

/// Everything the result says.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was asked for.
    pub mode: ModeArg,
    /// As typed.
    pub model: String,
    /// As typed.
    pub dataset: Option<String>,
    /// The random rows, where there is no dataset.
    pub random: RandomRows,
    /// Rows run before.
    pub num_warmups: usize,
    /// As run.
    pub enable_prefix_caching: bool,
    /// What the model costs by its shape.
    pub cost: ModelCost,
    /// What was loaded.
    pub info: EngineInfo,
    /// To load it.
    pub load_time: Duration,
    /// What was measured.
    pub measured: Measured,
    /// What its ops cost; None on a GPU that was not asked.
    pub op_times: Option<OpTimes>,
    /// GB/s, as typed.
    pub memory_bandwidth: Option<f64>,
    /// TFLOP/s, as typed.
    pub peak_tflops: Option<f64>,
    /// The same of attention and the output layer.
    pub attention_tflops: Option<f64>,
}

/// What something takes at least, in seconds: products, then attention.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Floor {
    products: f64,
    attention: f64,
    /// What it took.
    measured: f64,
}

impl Floor {
    fn share(self) -> f64 {
        (self.products + self.attention) / self.measured.max(1e-9)
    }

    fn json(self) -> Value {
        json!({
            "products_seconds": self.products,
            "attention_seconds": self.attention,
            "measured_seconds": self.measured,
            "share": self.share(),
        })
    }
}

/// Steps of one kind.
struct Steps<'a>(Vec<&'a Step>);

impl Steps<'_> {
    fn seconds(&self) -> f64 {
        // Not `sum`, which is -0.0 of nothing.
        self.0.iter().fold(0.0, |sum, step| sum + step.seconds)
    }

    fn mean_ms(&self) -> f64 {
        1e3 * self.seconds() / self.0.len().max(1) as f64
    }

    /// The smallest time that `percent` of the steps do not exceed.
    fn percentile_ms(&self, percent: usize) -> f64 {
        let mut seconds: Vec<f64> = self.0.iter().map(|step| step.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let rank = (seconds.len() * percent).div_ceil(100).max(1);
        seconds.get(rank - 1).map_or(0.0, |seconds| 1e3 * seconds)
    }

    fn num_output_tokens(&self) -> u64 {
        self.0.iter().map(|step| step.num_output_tokens).sum()
    }

    fn text(&self) -> String {
        format!(
            "{:.2} ms median, {:.2} mean, {:.2} p90, {:.2} p99, {:.2} max",
            self.percentile_ms(50),
            self.mean_ms(),
            self.percentile_ms(90),
            self.percentile_ms(99),
            self.percentile_ms(100)
        )
    }

    /// Mean milliseconds of scheduling, executing, sampling and taking in.
    fn parts_ms(&self) -> [f64; 4] {
        let mean = |part: fn(&StepTime) -> Duration| {
            let sum: Duration = self.0.iter().map(|step| part(&step.time)).sum();
            1e3 * sum.as_secs_f64() / self.0.len().max(1) as f64
        };
        [mean(|t| t.schedule), mean(|t| t.execute), mean(|t| t.sample), mean(|t| t.update)]
    }

    fn json(&self) -> Value {
        let [schedule, execute, sample, update] = self.parts_ms();
        json!({
            "count": self.0.len(),
            "schedule_ms": schedule,
            "execute_ms": execute,
            "sample_ms": sample,
            "update_ms": update,
            "seconds": self.seconds(),
            "mean_ms": self.mean_ms(),
            "p50_ms": self.percentile_ms(50),
            "p90_ms": self.percentile_ms(90),
            "p99_ms": self.percentile_ms(99),
            "max_ms": self.percentile_ms(100),
        })
    }
}

/// As the flag has it.
pub fn mode_name(mode: ModeArg) -> &'static str {
    match mode {
        ModeArg::Throughput => "throughput",
        ModeArg::Decode => "decode",
        ModeArg::Prefill => "prefill",
    }
}

impl Report {
    /// Whether there is nothing that decode could be measured by.
    pub fn has_no_full_step(&self) -> bool {
        self.full_steps().0.is_empty()
    }

    /// The lines for standard output, without a final line break. The first three are vLLM's.
    pub fn text(&self) -> String {
        let (num_prompt, num_output) = self.num_tokens();
        let mut text = format!(
            "Throughput: {:.2} requests/s, {:.2} total tokens/s, {:.2} output tokens/s\n\
             Total num prompt tokens:  {num_prompt}\n\
             Total num output tokens:  {num_output}\n",
            self.per_second(self.measured.rows.len()),
            self.per_second(num_prompt + num_output),
            self.per_second(num_output),
        );
        match self.mode {
            ModeArg::Throughput => {}
            ModeArg::Prefill => {
                let steps = self.all_steps();
                let rate = num_prompt as f64 / steps.seconds();
                let per_step = 1e-3 * steps.mean_ms();
                let _ = writeln!(text, "Prefill: {rate:.2} prompt tokens/s, {per_step:.4} s/step");
            }
            ModeArg::Decode => self.decode_text(&mut text),
        }
        if self.mode != ModeArg::Decode {
            let share = share(self.model_tflops(), self.peak_tflops, "TFLOP/s");
            let _ = writeln!(text, "Compute: {:.3} model TFLOP/s{share}", self.model_tflops());
        }
        if let Some(floor) = self.floor() {
            let Floor { products, attention, measured } = floor;
            let _ = writeln!(
                text,
                "Floor: {products:.4} s products + {attention:.4} s attention, {:.1}% of \
                 {measured:.4} s{}",
                100.0 * floor.share(),
                if self.mode == ModeArg::Decode { " a step" } else { "" },
            );
        }
        let _ = writeln!(text, "{}", self.circumstances());
        text + &op_table::text(self.op_table().as_ref())
    }

    fn decode_text(&self, text: &mut String) {
        let steps = self.full_steps();
        let rate = steps.num_output_tokens() as f64 / steps.seconds();
        let num_rows = self.measured.rows.len();
        let _ = writeln!(text, "Decode: {rate:.2} tokens/s, {num_rows} rows");
        let _ = writeln!(text, "Decode steps: {}, {}", steps.0.len(), steps.text());
        let achieved = self.decode_gb_per_second();
        let share = share(achieved, self.memory_bandwidth, "GB/s");
        let (weights, kv) = (1e-9 * self.weight_bytes_per_step(), 1e-9 * self.kv_bytes_per_step());
        let states = match self.state_bytes_per_step() {
            0.0 => String::new(),
            bytes => format!(" + {:.3} GB states", 1e-9 * bytes),
        };
        let _ = writeln!(
            text,
            "Memory: {weights:.3} GB weights + {kv:.3} GB KV{states} per step, {achieved:.2} \
             GB/s{share}"
        );
    }

    /// What ran it, and what else happened.
    fn circumstances(&self) -> String {
        let Self { info, measured, .. } = self;
        let stats = &measured.stats;
        let all = self.all_steps();
        let input = format!("{:.2} s prompts to ids", measured.input_time.as_secs_f64());
        let of_mode = match self.mode {
            ModeArg::Decode => self.full_steps(),
            ModeArg::Prefill | ModeArg::Throughput => self.all_steps(),
        };
        let [schedule, execute, sample, update] = of_mode.parts_ms();
        let in_parts = match (stats.num_steps_in_parts, stats.num_steps_with_shared_parts) {
            (0, _) => String::new(),
            (all, shared) => format!(", {all} steps in parts ({shared} with shared ones)"),
        };
        let images = images_said(&stats.images).map(|said| format!("{said}\n"));
        let images = images.unwrap_or_default();
        format!(
            "{images}Of a step: {schedule:.2} ms schedule, {execute:.2} execute, {sample:.2} sample, \
             {update:.2} update\n\
             Steps: {}, {}\n\
             Time: {:.2} s = {:.2} s decode steps + {:.2} s other steps + {input} + rest\n\
             Engine: {} {} x{}, {} cached tokens, {} preemptions{in_parts}, loaded in \
             {:.2} s",
            all.0.len(),
            all.text(),
            measured.elapsed.as_secs_f64(),
            self.decode_steps().seconds(),
            self.other_steps().seconds(),
            info.dtype.name(),
            sanitized(&info.kernel_set),
            info.num_threads,
            stats.num_cached_tokens,
            stats.num_preemptions,
            self.load_time.as_secs_f64(),
        )
    }

    /// The document of `--output-json`: vLLM's keys, then ours.
    pub fn json(&self) -> Value {
        let (num_prompt, num_output) = self.num_tokens();
        let Self { measured, info, random, .. } = self;
        let num_rows = measured.rows.len();
        let of_random = |value: Value| if self.dataset.is_none() { value } else { Value::Null };
        json!({
            "model_id": self.model,
            "elapsed_time": measured.elapsed.as_secs_f64(),
            "num_requests": num_rows,
            "total_num_tokens": num_prompt + num_output,
            "requests_per_second": self.per_second(num_rows),
            "tokens_per_second": self.per_second(num_prompt + num_output),
            "schema": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "debug_build": cfg!(debug_assertions),
            "mode": mode_name(self.mode),
            "output_tokens_per_second": self.per_second(num_output),
            "num_prompt_tokens": num_prompt,
            "num_output_tokens": num_output,
            "num_cached_tokens": measured.stats.num_cached_tokens,
            "num_computed_tokens": measured.stats.num_computed_tokens,
            "num_steps": measured.stats.num_steps,
            "num_preemptions": measured.stats.num_preemptions,
            "num_steps_in_parts": measured.stats.num_steps_in_parts,
            "num_steps_with_shared_parts": measured.stats.num_steps_with_shared_parts,
            "images": images_json(&measured.stats.images),
            "num_draft_tokens": measured.stats.num_draft_tokens,
            "num_forced_tokens": measured.stats.num_forced_tokens,
            "num_accepted_tokens": measured.stats.num_accepted_tokens,
            "load_time": self.load_time.as_secs_f64(),
            "input_time": measured.input_time.as_secs_f64(),
            "workload": {
                "dataset": self.dataset,
                "prefix_len": of_random(random.prefix_len.into()),
                "input_len": of_random(random.input_len.into()),
                "num_long_prompts": of_random(random.long.0.into()),
                "long_input_len": of_random(random.long.1.into()),
                "end_of_text": of_random(random.end_of_text.into()),
                "output_len": of_random(random.output_len.into()),
                "random_range_ratio": of_random(random.range_ratio.into()),
                "seed": random.seed,
                "num_warmups": self.num_warmups,
            },
            "engine": {
                "kernel_set": info.kernel_set,
                "dtype": info.dtype.name(),
                "num_threads": info.num_threads,
                "max_model_len": info.max_model_len,
                "max_num_seqs": info.step_sizes.max_num_seqs,
                "max_num_batched_tokens": info.step_sizes.max_num_batched_tokens,
                "enable_prefix_caching": self.enable_prefix_caching,
                "num_cache_tokens": info.num_cache_tokens,
                "kv_cache_bytes": info.kv_cache_bytes,
            },
            "steps": {
                "all": self.all_steps().json(),
                "decode": self.decode_steps().json(),
                "other": self.other_steps().json(),
            },
            "ops": self.op_table().as_ref().map(OpTable::json),
            "limits": self.op_table().as_ref().map(OpTable::limits_json),
            "model_tflops": self.model_tflops(),
            "peak_tflops": self.peak_tflops,
            "peak_tflops_share": self.peak_tflops.map(|peak| self.model_tflops() / peak),
            "floor": self.floor().map(Floor::json),
            "prefill": if self.mode == ModeArg::Prefill { self.prefill_json() } else { Value::Null },
            "decode": if self.mode == ModeArg::Decode { self.decode_json() } else { Value::Null },
        })
    }

    fn prefill_json(&self) -> Value {
        let (num_prompt, _) = self.num_tokens();
        let steps = self.all_steps();
        json!({
            "num_steps": steps.0.len(),
            "prompt_tokens_per_second": num_prompt as f64 / steps.seconds(),
            "seconds_per_step": 1e-3 * steps.mean_ms(),
        })
    }

    fn decode_json(&self) -> Value {
        let steps = self.full_steps();
        let achieved = self.decode_gb_per_second();
        json!({
            "num_steps": steps.0.len(),
            "batch_size": self.measured.rows.len(),
            "step_ms_median": steps.percentile_ms(50),
            "step_ms_mean": steps.mean_ms(),
            "tokens_per_second": steps.num_output_tokens() as f64 / steps.seconds(),
            "weight_bytes_per_step": self.weight_bytes_per_step(),
            "kv_bytes_per_step": self.kv_bytes_per_step(),
            "state_bytes_per_step": self.state_bytes_per_step(),
            "gb_per_second": achieved,
            "memory_bandwidth": self.memory_bandwidth,
            "memory_bandwidth_share": self.memory_bandwidth.map(|peak| achieved / peak),
        })
    }

    /// Of the steps, or in decode mode of one of them; None: the limits are not known.
    fn floor(&self) -> Option<Floor> {
        let (peak, bandwidth) = self.peak_tflops.zip(self.memory_bandwidth)?;
        let rates = Rates {
            flops: 1e12 * peak,
            attention_flops: 1e12 * self.attention_tflops.unwrap_or(peak),
            bandwidth: 1e9 * bandwidth,
        };
        let products = |steps: &Steps<'_>| -> f64 {
            let of_step = |step: &&Step| {
                let num_tokens = step.num_tokens as usize;
                self.cost.products_seconds(num_tokens, step.num_output_tokens, rates)
            };
            steps.0.iter().map(of_step).sum()
        };
        if self.mode == ModeArg::Decode {
            let steps = self.full_steps();
            let of_step = |step: &&Step| {
                self.cost.decode_attention_seconds(step.num_rows, step.num_positions, rates)
            };
            let attention: f64 = steps.0.iter().map(of_step).sum();
            let mean = |seconds: f64| seconds / steps.0.len().max(1) as f64;
            return Some(Floor {
                products: mean(products(&steps)),
                attention: mean(attention),
                measured: 1e-3 * steps.percentile_ms(50),
            });
        }
        let steps = self.all_steps();
        let of_row = |row: &RowLengths| self.cost.attention_seconds(*row, rates);
        let attention = self.measured.rows.iter().map(of_row).sum();
        Some(Floor { products: products(&steps), attention, measured: steps.seconds() })
    }

    /// (prompt, output) tokens of all rows.
    fn num_tokens(&self) -> (usize, usize) {
        let rows = &self.measured.rows;
        (rows.iter().map(|row| row.prompt).sum(), rows.iter().map(|row| row.output).sum())
    }

    fn per_second(&self, number: usize) -> f64 {
        number as f64 / self.measured.elapsed.as_secs_f64().max(1e-9)
    }

    fn steps(&self, wanted: impl Fn(&Step) -> bool) -> Steps<'_> {
        Steps(self.measured.steps.iter().filter(|step| wanted(step)).collect())
    }

    fn all_steps(&self) -> Steps<'_> {
        self.steps(|_| true)
    }

    fn decode_steps(&self) -> Steps<'_> {
        self.steps(|step| step.is_decode)
    }

    fn other_steps(&self) -> Steps<'_> {
        self.steps(|step| !step.is_decode)
    }

    /// Decode steps of all rows: what `--mode decode` is about.
    fn full_steps(&self) -> Steps<'_> {
        self.steps(|step| step.is_decode && step.num_rows == self.measured.rows.len())
    }

    fn op_table(&self) -> Option<OpTable<'_>> {
        let table = |times| OpTable::new(times, self.all_steps().seconds());
        self.op_times.as_ref().map(table)
    }

    /// Operations of the model, recomputation not counted, by the time of all steps.
    fn model_tflops(&self) -> f64 {
        let flops: f64 = self.measured.rows.iter().map(|row| self.cost.row_flops(*row)).sum();
        1e-12 * flops / self.all_steps().seconds().max(1e-9)
    }

    /// Of a decode step of all rows.
    fn weight_bytes_per_step(&self) -> f64 {
        self.cost.weight_bytes(self.measured.rows.len())
    }

    /// Mean over the decode steps of all rows.
    fn kv_bytes_per_step(&self) -> f64 {
        let steps = self.full_steps();
        let bytes = steps.0.iter().map(|s| self.cost.kv_bytes(s.num_rows, s.num_positions));
        bytes.sum::<f64>() / steps.0.len().max(1) as f64
    }

    /// Read and written by a decode step of all rows.
    fn state_bytes_per_step(&self) -> f64 {
        self.cost.state_bytes(self.measured.rows.len())
    }

    fn decode_gb_per_second(&self) -> f64 {
        let kept = self.kv_bytes_per_step() + self.state_bytes_per_step();
        let per_step = self.weight_bytes_per_step() + kept;
        1e-9 * per_step / (1e-3 * self.full_steps().mean_ms()).max(1e-9)
    }
}

/// `, 20.4% of 4800 GB/s`, where the ceiling is known.
fn share(achieved: f64, ceiling: Option<f64>, unit: &str) -> String {
    let text = |ceiling| format!(", {:.1}% of {ceiling} {unit}", 100.0 * achieved / ceiling);
    ceiling.map(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let step = |ms: f64| Step {
            seconds: 1e-3 * ms,
            num_rows: 1,
            num_tokens: 1,
            num_output_tokens: 1,
            is_decode: true,
            num_positions: 1,
            time: StepTime::default(),
        };
        let steps: Vec<Step> = [40.0, 10.0, 20.0, 30.0].map(step).to_vec();
        let steps = Steps(steps.iter().collect());
        for (percent, ms) in [(0, 10.0), (25, 10.0), (50, 20.0), (51, 30.0), (90, 40.0)] {
            assert!((steps.percentile_ms(percent) - ms).abs() < 1e-9, "{percent}");
        }
        assert!((steps.mean_ms() - 25.0).abs() < 1e-9);
        assert_eq!(Steps(Vec::new()).percentile_ms(50), 0.0);
    }

    #[test]
    fn a_share_is_shown_where_there_is_a_ceiling() {
        assert_eq!(share(979.2, Some(4800.0), "GB/s"), ", 20.4% of 4800 GB/s");
        assert_eq!(share(979.2, None, "GB/s"), "");
    }
}
