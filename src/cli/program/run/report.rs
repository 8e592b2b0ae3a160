//! `Report`: what a run did, shown at its end and written as JSON (`--stats`). `tally` has counted
//! it.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::tally::Tally;
use crate::model::resolved::Resolved;
use vllm_batch_dataset::terminal::error::sanitized;
use vllm_batch_dataset::terminal::numbers::{grouped, num_rows};
use vllm_batch_dataset::terminal::style::Style;
use vllm_batch_engine::stats::{EngineStats, ImageStats};

/// Everything the summary says.
#[derive(Clone, Debug)]
pub struct Report {
    /// Rows.
    pub tally: Tally,
    /// The engine at the end.
    pub engine: EngineStats,
    /// What it is.
    pub resolved: Resolved,
    /// From the first row to the last; without loading.
    pub elapsed: Duration,
    /// To load the model.
    pub load: Duration,
    /// As typed.
    pub model: String,
    /// Where rows came from.
    pub input: String,
    /// Where rows are; None where none is.
    pub output: Option<String>,
    /// `max_tokens` of rows without their own; None where that is not the same for all.
    pub max_tokens: Option<u32>,
    /// The model's context, in tokens.
    pub max_model_len: usize,
    /// The run came to its end.
    pub complete: bool,
    /// Its rows are judged: an answer that fails there is none that failed here.
    pub is_judged: bool,
}

impl Report {
    fn per_second(&self, number: u64) -> f64 {
        number as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The lines for standard error, without a final line break.
    pub fn summary(&self, style: Style) -> String {
        let tally = &self.tally;
        let (rows, seconds) = (tally.rows(), self.elapsed.as_secs_f64());
        let rate = self.per_second(tally.own_rows());
        let [ok, failed] =
            if self.is_judged { ["answered", "error rows"] } else { ["ok", "failed"] };
        let head = format!("{} {ok}, {} {failed}", grouped(tally.ok), grouped(tally.failed));
        let mut text = format!(
            "{}  in {seconds:.1} s ({rate:.2} rows/s), model loaded in {:.1} s",
            style.strong(&format!("{}: {head}", num_rows(rows))),
            self.load.as_secs_f64(),
        );
        if tally.reused > 0 {
            let (reused, rows) = (&tally.reused_tokens, num_rows(tally.reused));
            let (input, output) = (grouped(reused.input), grouped(reused.output));
            let _ = write!(
                text,
                "\nTaken over from the run before: {rows}, {input} tokens in, {output} out"
            );
        }
        for (code, failures) in &tally.by_code {
            let _ = write!(text, "\n  {}  {}", style.error(code), grouped(failures.rows));
            for (place, message, rows) in &failures.examples {
                let _ = write!(text, "\n    {}", sanitized(&format!("{place}: {message}")));
                if *rows > 1 {
                    let _ = write!(text, " ({})", num_rows(*rows));
                }
            }
        }
        let own = tally.own_tokens();
        let _ = write!(
            text,
            "\nTokens{}: {} in ({} of them cached), {} out; {:.2} in/s, {:.2} out/s",
            if tally.reused > 0 { " of this run" } else { "" },
            grouped(own.input),
            grouped(self.engine.num_cached_tokens),
            grouped(own.output),
            self.per_second(own.input),
            self.per_second(own.output),
        );
        if let Some(images) = images_said(&self.engine.images) {
            let _ = write!(text, "\n{images}");
        }
        if let Some(adapters) = self.resolved.adapters() {
            let (adapters, loads) = (sanitized(&adapters), grouped(self.engine.num_lora_loads));
            let _ = write!(text, "\n{adapters}; loads: {loads}");
        }
        text += &self.remarks();
        let output = self.output.as_deref().map_or("none".to_owned(), sanitized);
        let incomplete = self.output.is_some() && !self.complete;
        let _ = write!(text, "\nOutput: {output}{}", if incomplete { " (incomplete)" } else { "" });
        text
    }

    /// What is said of one answer that is shown alone.
    pub fn of_answer(&self) -> Vec<String> {
        let Tally { length_limited, context_limited, incomplete, .. } = self.tally;
        let mut said = Vec::new();
        if length_limited > context_limited {
            let limit = self.max_tokens.map(|n| format!(" after {n} tokens")).unwrap_or_default();
            said.push(format!("the answer is cut{limit}; raise --max-tokens"));
        }
        if context_limited > 0 {
            let context = grouped(self.max_model_len as u64);
            said.push(format!("the answer is cut: the context of {context} tokens is full"));
        }
        if incomplete > 0 {
            said.push("the answer ends before it matches its structured output".to_owned());
        }
        said
    }

    /// What the user may want to change.
    fn remarks(&self) -> String {
        let mut text = String::new();
        let Tally { length_limited, context_limited, row_limited, .. } = self.tally;
        let cut_by_max_tokens = length_limited - context_limited - row_limited;
        if cut_by_max_tokens > 0 {
            let limit = self.max_tokens.map(|n| format!(" (now {n})")).unwrap_or_default();
            let rows = num_rows(cut_by_max_tokens);
            let _ = write!(text, "\nCut at the length limit: {rows}; raise --max-tokens{limit}");
        }
        // More --max-tokens would not help the others.
        if row_limited > 0 {
            let rows = num_rows(row_limited);
            let _ = write!(text, "\nCut at the max_tokens that the row itself has: {rows}");
        }
        if context_limited > 0 {
            let rows = num_rows(context_limited);
            let context = grouped(self.max_model_len as u64);
            let _ = write!(text, "\n{rows} reached the context of {context} tokens");
        }
        if self.tally.incomplete > 0 {
            let rows = num_rows(self.tally.incomplete);
            let _ = write!(text, "\nEnded before the answer matched its structured output: {rows}");
        }
        if let Some(mean) = self.engine.tokens_per_drafted_row() {
            let drafted = grouped(self.engine.num_draft_tokens);
            let accepted = grouped(self.engine.num_accepted_tokens);
            let _ = write!(
                text,
                "\nGuessed tokens: {drafted}, {accepted} of them right; {mean:.2} tokens a step \
                 where a row had any"
            );
        }
        if self.engine.num_preemptions > 0 {
            let number = grouped(self.engine.num_preemptions);
            let advice = "a larger --kv-cache-memory-bytes or fewer --max-num-seqs avoid them";
            let _ = write!(text, "\nPreemptions: {number}; {advice}");
        }
        text
    }

    /// The document of `--stats`: vLLM's throughput keys, then ours.
    pub fn stats(&self, exit_code: u8) -> Value {
        let tally = &self.tally;
        let own = tally.own_tokens();
        let total = own.input + own.output;
        let by_code = tally.counts().by_code;
        let images = self.engine.images;
        json!({
            "model_id": self.model,
            "elapsed_time": self.elapsed.as_secs_f64(),
            "num_requests": tally.own_rows(),
            "total_num_tokens": total,
            "requests_per_second": self.per_second(tally.own_rows()),
            "tokens_per_second": self.per_second(total),
            "schema": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "complete": self.complete,
            "exit_code": exit_code,
            "input": self.input,
            "output": self.output,
            "load_time": self.load.as_secs_f64(),
            "rows": { "total": tally.rows(), "ok": tally.ok, "failed": tally.failed,
                      "reused": tally.reused, "by_code": by_code, "length_limited": tally.length_limited,
                      "context_limited": tally.context_limited,
                      "row_limited": tally.row_limited, "incomplete": tally.incomplete },
            "tokens": { "input": tally.input_tokens, "output": tally.output_tokens,
                        "reused": { "input": tally.reused_tokens.input,
                                    "output": tally.reused_tokens.output },
                        "cached": self.engine.num_cached_tokens,
                        "computed": self.engine.num_computed_tokens },
            "output_tokens_per_second": self.per_second(own.output),
            "engine": self.resolved.json(),
            "lora": self.resolved.lora_json(self.engine.num_lora_loads),
            "images": images_json(&images),
            "num_steps": self.engine.num_steps,
            "num_preemptions": self.engine.num_preemptions,
            "kv_offloading": {
                "num_offloaded_blocks": self.engine.num_offloaded_blocks,
                "num_returned_blocks": self.engine.num_returned_blocks,
            },
            "num_steps_in_parts": self.engine.num_steps_in_parts,
            "num_steps_with_shared_parts": self.engine.num_steps_with_shared_parts,
            "speculation": {
                "num_drafted_rows": self.engine.num_drafted_rows,
                "num_draft_tokens": self.engine.num_draft_tokens,
                "num_forced_tokens": self.engine.num_forced_tokens,
                "num_accepted_tokens": self.engine.num_accepted_tokens,
                "tokens_per_drafted_row": self.engine.tokens_per_drafted_row(),
            },
        })
    }
}

/// Media of rows, if there were any.
pub fn images_said(images: &ImageStats) -> Option<String> {
    let ImageStats { num_images, num_tokens, num_encoded, encode_time } = *images;
    (num_images > 0).then(|| {
        format!(
            "Media: {}, {} tokens; {} encoded in {:.1} s",
            grouped(num_images),
            grouped(num_tokens),
            grouped(num_encoded),
            encode_time.as_secs_f64()
        )
    })
}

/// The same for documents.
pub fn images_json(images: &ImageStats) -> Value {
    json!({
        "num_images": images.num_images,
        "num_tokens": images.num_tokens,
        "num_encoded": images.num_encoded,
        "encode_time": images.encode_time.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_api::request::{CompletionOutput, FinishReason, RequestOutput};
    use vllm_batch_dataset::input::row_error::RowError;

    fn report() -> Report {
        let completion = |finish_reason| CompletionOutput {
            index: 0,
            text: String::new(),
            token_ids: vec![1; 500],
            cumulative_logprob: None,
            logprobs: None,
            finish_reason,
            stop_reason: None,
            is_complete: true,
            error: None,
        };
        let mut tally = Tally::default();
        for (reason, max_model_len, has_own_length) in [
            (FinishReason::Stop, 1500, true),
            (FinishReason::Length, 1501, false),
            (FinishReason::Length, 1500, true),
            (FinishReason::Length, 1501, true),
        ] {
            let output = RequestOutput {
                request_id: 0,
                finished: true,
                deltas: Vec::new(),
                prompt_token_ids: vec![1; 1000],
                prompt_logprobs: None,
                scored: None,
                outputs: vec![completion(reason)],
                num_cached_tokens: 0,
            };
            tally.answered(&output, max_model_len, has_own_length);
        }
        for line in 4..8 {
            tally.failed(&RowError::new("bad_json", line, "expected \x1b"), "rows.jsonl");
        }
        Report {
            tally,
            engine: EngineStats {
                num_preemptions: 2,
                num_cached_tokens: 32,
                ..EngineStats::default()
            },
            resolved: Resolved::default(),
            elapsed: Duration::from_secs(2),
            load: Duration::from_millis(400),
            model: "m".into(),
            input: "rows.jsonl".into(),
            output: Some("out.jsonl".into()),
            max_tokens: Some(512),
            max_model_len: 1500,
            complete: true,
            is_judged: false,
        }
    }

    #[test]
    fn the_summary_says_all_in_few_lines() {
        let expected = "\
8 rows: 4 ok, 4 failed  in 2.0 s (4.00 rows/s), model loaded in 0.4 s
  bad_json  4
    rows.jsonl:4: expected ␛ (4 rows)
Tokens: 4,000 in (32 of them cached), 2,000 out; 2000.00 in/s, 1000.00 out/s
Cut at the length limit: 1 row; raise --max-tokens (now 512)
Cut at the max_tokens that the row itself has: 1 row
1 row reached the context of 1,500 tokens
Preemptions: 2; a larger --kv-cache-memory-bytes or fewer --max-num-seqs avoid them
Output: out.jsonl";
        assert_eq!(report().summary(Style::plain()), expected);
    }

    #[test]
    fn rows_of_the_run_before_are_counted_apart() {
        let mut report = report();
        report.tally.kept(70, 30, 1);
        report.tally.kept(70, 30, 1);
        let summary = report.summary(Style::plain());
        for wanted in [
            "10 rows: 6 ok, 4 failed  in 2.0 s (4.00 rows/s)",
            "\nTaken over from the run before: 2 rows, 140 tokens in, 60 out\n",
            "\nTokens of this run: 4,000 in (32 of them cached), 2,000 out; 2000.00 in/s, ",
        ] {
            assert!(summary.contains(wanted), "{summary}");
        }
        let tokens = &report.stats(0)["tokens"];
        assert_eq!((&tokens["input"], &tokens["reused"]["input"]), (&json!(4140), &json!(140)));
    }

    #[test]
    fn guesses_are_counted() {
        let mut report = report();
        assert_eq!(report.stats(0)["speculation"]["tokens_per_drafted_row"], Value::Null);
        report.engine.num_drafted_rows = 1000;
        report.engine.num_draft_tokens = 4000;
        report.engine.num_accepted_tokens = 1500;
        let expected = "\nGuessed tokens: 4,000, 1,500 of them right; 2.50 tokens a step where a \
                        row had any\n";
        let summary = report.summary(Style::plain());
        assert!(summary.contains(expected), "{summary}");
        let stats = &report.stats(0)["speculation"];
        assert_eq!(stats["num_accepted_tokens"], 1500);
        assert_eq!(stats["tokens_per_drafted_row"], 2.5);
    }

    #[test]
    fn images_are_counted_where_there_are_any() {
        let mut report = report();
        report.engine.images = ImageStats {
            num_images: 3000,
            num_tokens: 192_000,
            num_encoded: 300,
            encode_time: Duration::from_millis(12_340),
        };
        let summary = report.summary(Style::plain());
        let expected = "\nMedia: 3,000, 192,000 tokens; 300 encoded in 12.3 s\n";
        assert!(summary.contains(expected), "{summary}");
        assert_eq!(report.stats(0)["images"]["encode_time"], 12.34);
    }

    #[test]
    fn the_output_of_an_unfinished_run_is_called_incomplete() {
        let last_line = |output: Option<&str>| {
            let report = Report { output: output.map(str::to_owned), complete: false, ..report() };
            report.summary(Style::plain()).lines().last().map(str::to_owned)
        };
        let named = last_line(Some("out.jsonl.part"));
        assert_eq!(named.as_deref(), Some("Output: out.jsonl.part (incomplete)"));
        assert_eq!(last_line(None).as_deref(), Some("Output: none"));
    }

    #[test]
    fn stats_are_a_superset_of_vllms() {
        let stats = report().stats(3);
        for (key, value) in [
            ("elapsed_time", json!(2.0)),
            ("num_requests", json!(8)),
            ("total_num_tokens", json!(6000)),
            ("requests_per_second", json!(4.0)),
            ("tokens_per_second", json!(3000.0)),
            ("model_id", json!("m")),
            ("exit_code", json!(3)),
        ] {
            assert_eq!(stats[key], value, "{key}");
        }
        let rows = &stats["rows"];
        assert_eq!(rows["by_code"]["bad_json"], 4);
        assert_eq!(rows["row_limited"], 1);
        assert_eq!((&rows["length_limited"], &rows["context_limited"]), (&json!(3), &json!(1)));
    }
}
