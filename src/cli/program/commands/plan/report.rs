//! The plan, as lines and as JSON.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::estimate::{Estimate, Limits};
use super::lengths::{Class, Lengths};
use super::sample::Sample;
use super::survey::{Explained, Surveyed};
use vllm_batch_api::request::SamplingParams;
use vllm_batch_checkpoint::spec::Parameters;
use vllm_batch_dataset::terminal::error::{sanitized, sanitized_lines};
use vllm_batch_dataset::terminal::numbers::{grouped, num_rows};
use vllm_batch_engine::EngineInfo;
use vllm_batch_engine::serve::runner::Work;

/// Cells of the longest bar of the histogram.
const BAR_CELLS: u64 = 40;

/// Everything the plan says.
pub struct Report<'a> {
    /// As typed.
    pub model: &'a str,
    /// As typed.
    pub input: &'a str,
    /// What was loaded.
    pub info: &'a EngineInfo,
    /// It completes: then there are output tokens. Else texts are read.
    pub completes: bool,
    /// Tokens of a KV block.
    pub block_size: usize,
    /// To load it.
    pub load_time: Duration,
    /// To make the plan, loading included.
    pub elapsed: Duration,
    /// What bounds a step.
    pub limits: Limits,
    /// All rows.
    pub surveyed: &'a Surveyed,
    /// What was run of them.
    pub sample: Option<&'a Sample>,
    /// The time of all of them.
    pub estimate: Option<Estimate>,
}

impl Report<'_> {
    /// The lines for standard output, without a final line break.
    pub fn text(&self) -> String {
        let mut text = self.rows();
        text += &self.lengths();
        text += &self.memory();
        text += &self.time();
        text += &self.explained();
        text.truncate(text.trim_end().len());
        text
    }

    fn rows(&self) -> String {
        let rows = self.surveyed;
        let good = rows.num_good;
        let mut text = format!(
            "Rows: {} in {}; {} to run, {} that would be error rows\n",
            grouped(rows.num_rows),
            sanitized(self.input),
            grouped(good),
            grouped(rows.num_failed())
        );
        for failures in &rows.failures {
            let (count, example) = (grouped(failures.count), sanitized(&failures.example));
            let _ = writeln!(text, "  {}  {count}\n    {example}", failures.code);
        }
        text
    }

    fn lengths(&self) -> String {
        let Surveyed { prompt_tokens, max_output_tokens, .. } = self.surveyed;
        let texts = match prompt_tokens.count() == self.surveyed.num_good {
            true => String::new(),
            false => format!(" of {} texts", grouped(prompt_tokens.count())),
        };
        let mut text = format!("Prompt tokens{texts}: {}\n", spread(prompt_tokens));
        let classes = prompt_tokens.classes();
        let most = classes.iter().map(|class| class.count).max().unwrap_or(0).max(1);
        for Class { min, max, count } in classes {
            let bar = "█".repeat((count * BAR_CELLS).div_ceil(most) as usize);
            let range = format!("{}-{}", grouped(min as u64), grouped(max as u64));
            let line = format!("{range:>15} {:>9} {bar}", grouped(count));
            let _ = writeln!(text, "{}", line.trim_end());
        }
        let images = &self.surveyed.image_tokens;
        if images.count() > 0 {
            let num_sounds = self.surveyed.num_sounds;
            let of_media = match images.count() {
                1 if num_sounds == 1 => "1 recording".to_owned(),
                1 => "1 image".to_owned(),
                count if num_sounds == count => format!("{} recordings", grouped(count)),
                count if num_sounds == 0 => format!("{} images", grouped(count)),
                count => format!("{} images and recordings", grouped(count)),
            };
            let _ = writeln!(text, "Tokens of {of_media}: {}", spread(images));
        }
        if self.completes {
            let _ = writeln!(text, "Output tokens at most: {}", spread(max_output_tokens));
        }
        text
    }

    fn has_cache(&self) -> bool {
        self.info.num_cache_tokens > 0
    }

    /// Tokens that the KV cache keeps of each row, or of each text.
    fn cache_tokens(&self) -> &Lengths {
        match self.completes {
            true => &self.surveyed.max_cache_tokens,
            false => &self.surveyed.prompt_tokens,
        }
    }

    fn memory(&self) -> String {
        let (info, lengths) = (self.info, self.cache_tokens());
        let (cache, longest) = (info.num_cache_tokens, lengths.max());
        let of_cache = if self.completes { "row" } else { "text" };
        let blocks = |tokens: usize| grouped(tokens.div_ceil(self.block_size) as u64);
        let at_once = |tokens: f64| {
            let fits = (cache as f64 / tokens.max(1.0)).min(self.limits.max_num_seqs as f64);
            grouped(fits as u64)
        };
        let mut text = format!(
            "Model: {} on {}, {}, context of {} tokens, loaded in {:.1} s\n",
            sanitized(self.model),
            info.device_name,
            info.dtype.name(),
            grouped(info.max_model_len as u64),
            self.load_time.as_secs_f64(),
        );
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let Parameters { all, active } = info.parameters;
        let of_token = match active < all {
            true => format!("; a token goes through {} of them", grouped(active)),
            false => String::new(),
        };
        let (weights, all) = (mib(info.weight_bytes), grouped(all));
        let _ = writeln!(text, "Weights: {weights:.1} MiB, {all} parameters{of_token}");
        if self.has_cache() {
            let _ = writeln!(
                text,
                "KV cache: {} blocks of {} tokens, {} tokens in {:.1} MiB\n  a {of_cache} takes {} \
                 blocks at most; {} {of_cache}s of the mean length at once, {} of the longest (--max-num-seqs {})",
                blocks(cache),
                self.block_size,
                grouped(cache as u64),
                mib(info.kv_cache_bytes as u64),
                blocks(longest),
                at_once(lengths.mean()),
                at_once(longest as f64),
                self.limits.max_num_seqs,
            );
        }
        text
    }

    fn time(&self) -> String {
        let (Some(sample), Some(estimate)) = (self.sample, self.estimate) else {
            return "Time: nothing was run to estimate it\n".to_owned();
        };
        let mut text = format!("Time: about {}", duration(estimate.seconds));
        if estimate.max_seconds > 1.05 * estimate.seconds {
            let longest = duration(estimate.max_seconds);
            let _ = write!(text, "; {longest} if every answer is as long as it may be");
        }
        if !self.completes {
            let tokens = sample.steps.iter().map(|step| step.num_prompt_tokens).sum();
            let (rows, tokens) = (num_rows(sample.num_finished as u64), grouped(tokens));
            let seconds = sample.seconds();
            let _ = writeln!(text, "\n  by {rows}, {tokens} tokens, run for {seconds:.1} s");
            return text;
        }
        let _ = writeln!(
            text,
            "\n  by {} run for {:.1} s: {} in full, {} output tokens, {} answers that ended by themselves",
            num_rows(sample.num_rows as u64),
            sample.seconds(),
            grouped(sample.num_finished as u64),
            grouped(sample.num_output_tokens),
            grouped(sample.num_stopped)
        );
        let _ = writeln!(
            text,
            "  {} output tokens in all, {:.0} rows at once",
            grouped(estimate.num_output_tokens as u64),
            estimate.num_running
        );
        text
    }

    fn explained(&self) -> String {
        let Some((number, explained)) = &self.surveyed.explained else { return String::new() };
        match explained {
            Explained::Error(said) => {
                format!("Row {number} would be an error row: {}\n", sanitized(said))
            }
            Explained::Request { texts, request } => {
                let num_tokens: usize = request.prompts().into_iter().map(<[u32]>::len).sum();
                let sampled = match &**request {
                    Work::Generate(request) => format!("; {}", sampling(&request.params)),
                    Work::Pooling(_) => String::new(),
                };
                format!(
                    "Row {number} as the model sees it, {} tokens{sampled}:\n{}\n",
                    grouped(num_tokens as u64),
                    sanitized_lines(&texts.join("\n"))
                )
            }
        }
    }

    /// The document of `--output-json`.
    pub fn json(&self) -> Value {
        let rows = self.surveyed;
        let max_cache_tokens = if self.has_cache() { self.cache_tokens().max() } else { 0 };
        let failures = rows.failures.iter();
        let by_code: serde_json::Map<_, _> =
            failures.map(|failures| (failures.code.to_owned(), failures.count.into())).collect();
        let classes = rows.prompt_tokens.classes();
        let histogram: Vec<Value> =
            classes.iter().map(|c| json!({"min": c.min, "max": c.max, "rows": c.count})).collect();
        json!({
            "schema": 1,
            "elapsed_time": self.elapsed.as_secs_f64(),
            "version": env!("CARGO_PKG_VERSION"),
            "model_id": self.model,
            "input": self.input,
            "rows": { "total": rows.num_rows, "ok": rows.num_good,
                      "failed": rows.num_failed(), "by_code": by_code },
            "prompt_tokens": spread_json(&rows.prompt_tokens),
            "prompt_tokens_histogram": histogram,
            "images": { "num_images": rows.image_tokens.count(),
                        "tokens": spread_json(&rows.image_tokens) },
            "max_output_tokens": spread_json(&rows.max_output_tokens),
            "max_row_blocks": max_cache_tokens.div_ceil(self.block_size.max(1)),
            "load_time": self.load_time.as_secs_f64(),
            "kernel_set": self.info.kernel_set,
            "max_model_len": self.info.max_model_len,
            "weight_bytes": self.info.weight_bytes,
            "parameters": self.info.parameters.all,
            "active_parameters": self.info.parameters.active,
            "block_size": self.block_size,
            "num_blocks": self.info.num_cache_tokens.div_ceil(self.block_size.max(1)),
            "kv_cache_bytes": self.info.kv_cache_bytes,
            "max_num_seqs": self.limits.max_num_seqs,
            "sample": self.sample.map(|sample| json!({
                "rows": sample.num_rows, "finished": sample.num_finished,
                "seconds": sample.seconds(), "steps": sample.steps.len(),
                "output_tokens": sample.num_output_tokens, "stopped": sample.num_stopped,
                "prompt_tokens": sample.num_prompt_tokens,
                "cached_tokens": sample.num_cached_tokens,
            })),
            "estimate": self.estimate.map(|estimate| json!({
                "seconds": estimate.seconds, "max_seconds": estimate.max_seconds,
                "output_tokens": estimate.num_output_tokens,
                "running": estimate.num_running,
                "seconds_per_step": estimate.cost.per_step,
                "seconds_per_prompt_token": estimate.cost.per_prompt_token,
                "seconds_per_output_token": estimate.cost.per_output_token,
            })),
        })
    }
}

fn spread(lengths: &Lengths) -> String {
    format!(
        "{}; mean {:.0}, median {}, 90 % up to {}, longest {}",
        grouped(lengths.total()),
        lengths.mean(),
        grouped(lengths.percentile(50) as u64),
        grouped(lengths.percentile(90) as u64),
        grouped(lengths.max() as u64)
    )
}

fn spread_json(lengths: &Lengths) -> Value {
    json!({
        "total": lengths.total(), "mean": lengths.mean(), "p50": lengths.percentile(50),
        "p90": lengths.percentile(90), "p99": lengths.percentile(99), "max": lengths.max(),
    })
}

/// What decides how long an answer is, and whether it is the most likely one.
fn sampling(params: &SamplingParams) -> String {
    let limit = params.max_tokens.map_or("the rest of the context".to_owned(), |n| n.to_string());
    let chosen = match params.beam_search {
        Some(beams) => format!("{} beams", beams.beam_width),
        None => format!("temperature {}", params.temperature),
    };
    format!("{chosen}, at most {limit} output tokens")
}

/// 42 s, 12 min, 3 h 20 min.
fn duration(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    match seconds {
        ..9.5 => format!("{seconds:.1} s"),
        ..90.0 => format!("{seconds:.0} s"),
        ..5400.0 => format!("{minutes} min"),
        _ => format!("{} h {} min", grouped(minutes / 60), minutes % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_to_what_is_known() {
        let shown = [0.25, 42.4, 89.0, 754.0, 12_000.0].map(duration);
        assert_eq!(shown, ["0.2 s", "42 s", "89 s", "13 min", "3 h 20 min"]);
    }
}
