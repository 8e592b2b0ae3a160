//! `Metrics`: what is counted of requests, in Prometheus' text form under vLLM's names, which
//! dashboards know.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Instant;

use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::FinishReason;
use vllm_batch_engine::stats::EngineStats;

/// Upper bounds of a histogram's buckets, in seconds: vLLM's of times to tokens.
const SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];

/// The same of tokens.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0, 100_000.0, 200_000.0,
];

/// Why requests ended, by vLLM's names.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// Counts and sums of values.
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    fn write(&self, name: &str, label: &str, out: &mut String) {
        let mut total = 0;
        let _ = writeln!(out, "# TYPE vllm:{name} histogram");
        let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(&self.counts) {
            total += count;
            let _ = writeln!(out, "vllm:{name}_bucket{{{label},le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(out, "vllm:{name}_sum{{{label}}} {}", self.sum);
        let _ = writeln!(out, "vllm:{name}_count{{{label}}} {total}");
    }
}

/// A request that goes on.
struct Begun {
    at: Instant,
    last_token: Option<Instant>,
}

/// What is counted.
pub(crate) struct Metrics {
    begun: HashMap<u64, Begun>,
    num_ended: [u64; REASONS.len()],
    /// Requests that were not admitted.
    pub(crate) num_rejections: u64,
    to_first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            begun: HashMap::new(),
            num_ended: [0; REASONS.len()],
            num_rejections: 0,
            to_first_token: Histogram::new(SECONDS),
            between_tokens: Histogram::new(SECONDS),
            whole: Histogram::new(SECONDS),
            prompt_tokens: Histogram::new(TOKENS),
            generation_tokens: Histogram::new(TOKENS),
        }
    }
}

impl Metrics {
    /// A request came to the engine.
    pub(crate) fn begun(&mut self, request_id: u64) {
        self.begun.insert(request_id, Begun { at: Instant::now(), last_token: None });
    }

    /// Nobody waits for a request any more.
    pub(crate) fn aborted(&mut self, request_id: u64) {
        if self.begun.remove(&request_id).is_some() {
            self.ended("abort");
        }
    }

    /// The engine answered, or said what is new.
    pub(crate) fn answered(&mut self, answer: &Answer) {
        let now = Instant::now();
        let Some(begun) = self.begun.get_mut(&answer.request_id()) else { return };
        let has_tokens = match answer {
            Answer::Generate(output) => !output.deltas.is_empty(),
            Answer::Pooling(_) => false,
        };
        if has_tokens {
            match begun.last_token.replace(now) {
                None => self.to_first_token.add(now.duration_since(begun.at).as_secs_f64()),
                Some(last) => self.between_tokens.add(now.duration_since(last).as_secs_f64()),
            }
        }
        if !answer.is_finished() {
            return;
        }
        let whole = now.duration_since(begun.at).as_secs_f64();
        self.begun.remove(&answer.request_id());
        self.whole.add(whole);
        let (prompt, generated) = answer.num_tokens();
        self.prompt_tokens.add(prompt as f64);
        self.generation_tokens.add(generated as f64);
        self.ended(match answer {
            _ if answer.error().is_some() => "error",
            Answer::Pooling(_) => "stop",
            Answer::Generate(output) => {
                let first = output.outputs.first().map(|completion| completion.finish_reason);
                match first {
                    Some(FinishReason::Length) => "length",
                    Some(FinishReason::Error) => "error",
                    _ => "stop",
                }
            }
        });
    }

    fn ended(&mut self, reason: &str) {
        let index = REASONS.iter().position(|known| *known == reason);
        self.num_ended[index.expect("a known reason")] += 1;
    }

    /// All of it, with the counters of the engine.
    pub(crate) fn text(&self, stats: &EngineStats, model: &str) -> String {
        let label = format!("model_name={}", serde_json::Value::from(model));
        let mut out = String::new();
        let mut one = |kind: &str, name: &str, value: f64| {
            let _ = writeln!(out, "# TYPE vllm:{name} {kind}");
            let _ = writeln!(out, "vllm:{name}{{{label}}} {value}");
        };
        let usage = stats.num_used_blocks as f64 / stats.num_blocks.max(1) as f64;
        one("gauge", "num_requests_running", stats.num_running as f64);
        one("gauge", "num_requests_waiting", stats.num_waiting as f64);
        one("gauge", "num_batch_rows_running", stats.num_running_batch as f64);
        one("gauge", "num_batch_rows_waiting", stats.num_waiting_batch as f64);
        one("gauge", "kv_cache_usage_perc", usage);
        one("counter", "prefix_cache_queries_total", stats.num_prompt_tokens as f64);
        one("counter", "prefix_cache_hits_total", stats.num_cached_tokens as f64);
        one("counter", "num_preemptions_total", stats.num_preemptions as f64);
        one("counter", "num_batch_preemptions_total", stats.num_batch_preemptions as f64);
        one("counter", "prompt_tokens_total", stats.num_prompt_tokens as f64);
        one("counter", "generation_tokens_total", stats.num_generation_tokens as f64);
        one("counter", "admission_rejections_total", self.num_rejections as f64);
        let _ = writeln!(out, "# TYPE vllm:request_success_total counter");
        for (reason, count) in REASONS.iter().zip(self.num_ended) {
            let name = "vllm:request_success_total";
            let _ = writeln!(out, "{name}{{{label},finished_reason=\"{reason}\"}} {count}");
        }
        self.to_first_token.write("time_to_first_token_seconds", &label, &mut out);
        self.between_tokens.write("inter_token_latency_seconds", &label, &mut out);
        self.whole.write("e2e_request_latency_seconds", &label, &mut out);
        self.prompt_tokens.write("request_prompt_tokens", &label, &mut out);
        self.generation_tokens.write("request_generation_tokens", &label, &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_is_not_larger_than_their_bound() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 9.0].into_iter().for_each(|value| histogram.add(value));
        let mut text = String::new();
        histogram.write("x", "m=\"a\"", &mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "vllm:x_bucket{m=\"a\",le=\"1\"} 2");
        assert_eq!(lines[2], "vllm:x_bucket{m=\"a\",le=\"2\"} 3");
        assert_eq!(lines[3], "vllm:x_bucket{m=\"a\",le=\"+Inf\"} 4");
        assert_eq!(lines[4..], ["vllm:x_sum{m=\"a\"} 12", "vllm:x_count{m=\"a\"} 4"]);
    }

    #[test]
    fn an_abort_counts_once() {
        let mut metrics = Metrics::default();
        metrics.begun(1);
        metrics.aborted(1);
        metrics.aborted(1);
        let text = metrics.text(&EngineStats::default(), "a\"b");
        let wanted = "{model_name=\"a\\\"b\",finished_reason=\"abort\"} 1";
        assert!(text.contains(wanted), "{text}");
    }
}
