//! `Previous`: the good rows of a complete output, for `--retry-failed`. They are found by what
//! they show of their row, in the order of the input.

use std::fs::File;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::cli::input::fields::Passthrough;
use crate::cli::input::reader::{Content, InputFormat, MAX_LINE, Records};
use crate::cli::ledger::meta::Meta;
use crate::cli::output::FileFormat;
use crate::cli::output::RowFormat;
use crate::cli::terminal::error::CliError;

/// The rows of an output, one after the other.
pub struct Previous {
    records: Records,
    /// The next good row that was not taken, and its place among all rows of the output.
    next: Option<(u64, Good)>,
    num_read: u64,
    /// Error rows are in another file: a row's place says nothing of its place in the input.
    is_split: bool,
}

/// A row with an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Good {
    /// Its bytes, line end included.
    pub row: Vec<u8>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
}

impl Previous {
    /// Opens an output that is complete.
    ///
    /// # Errors
    /// It cannot be read, or has no JSON lines.
    pub fn open(path: &Path, meta: &Meta) -> Result<Self, CliError> {
        if meta.format != FileFormat::Jsonl {
            let message = format!("--retry-failed: {} is no file of JSON lines", path.display());
            return Err(CliError::refused("retry_failed", message)
                .help("start over with --overwrite, or write JSON lines (--out FILE.jsonl)"));
        }
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| {
            CliError::refused("retry_failed", format!("cannot read {name}: {error}"))
        })?;
        let records = Records::open(Box::new(file), InputFormat::Jsonl, MAX_LINE)
            .map_err(|error| CliError::from_input(error, &name))?;
        Ok(Self { records, next: None, num_read: 0, is_split: meta.errors.is_some() })
    }

    /// The good row of an input row, if the next one is it. `place`: its place in the output, where
    /// its answer depends on that.
    ///
    /// # Errors
    /// The output cannot be read.
    pub fn take(
        &mut self,
        passthrough: &Passthrough,
        format: &RowFormat,
        place: Option<u64>,
    ) -> io::Result<Option<Good>> {
        if self.next.is_none() {
            self.next = self.read_good()?;
        }
        let is_split = self.is_split;
        let is_it = |(found, good): &mut (u64, Good)| {
            let stands_there = place.is_none_or(|place| !is_split && place == *found);
            stands_there && format.answers(passthrough, &good.row)
        };
        Ok(self.next.take_if(is_it).map(|(_, good)| good))
    }

    fn read_good(&mut self) -> io::Result<Option<(u64, Good)>> {
        for record in &mut self.records {
            let record = record?;
            let place = self.num_read;
            self.num_read += 1;
            let Content::Line(line) = record.content else { continue };
            if record.error.is_none()
                && let Some((input_tokens, output_tokens)) = tokens_of_answer(&line)
            {
                let row = (line + "\n").into_bytes();
                return Ok(Some((place, Good { row, input_tokens, output_tokens })));
            }
        }
        Ok(None)
    }
}

/// Tokens in and out of a row with an answer: ours, OpenAI's or Anthropic's. None of an error row.
fn tokens_of_answer(line: &str) -> Option<(u32, u32)> {
    let row: Value = serde_json::from_str(line).ok()?;
    let number = |usage: &Value, name: &str| u32::try_from(usage.get(name)?.as_u64()?).ok();
    // Vectors have no tokens of an answer.
    let generated = |usage: &Value| match usage.get("completion_tokens") {
        Some(_) => number(usage, "completion_tokens"),
        None => Some(0),
    };
    if let Some(response) = row.get("response").filter(|value| value.is_object()) {
        let usage = response.get("body")?.get("usage")?;
        if usage.get("input_tokens").is_some() {
            return Some((number(usage, "input_tokens")?, number(usage, "output_tokens")?));
        }
        return Some((number(usage, "prompt_tokens")?, generated(usage)?));
    }
    if let Some(message) = row.get("result").and_then(|result| result.get("message")) {
        let usage = message.get("usage")?;
        return Some((number(usage, "input_tokens")?, number(usage, "output_tokens")?));
    }
    let usage = row.get("usage").filter(|_| row.get("error").is_none_or(|e| !e.is_object()))?;
    Some((number(usage, "prompt_tokens")?, generated(usage)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_from_errors_in_every_form() {
        let own = r#"{"id":1,"response":"a","finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
        let openai = r#"{"id":"x","response":{"status_code":200,"body":{"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}},"error":null}"#;
        let of_responses =
            r#"{"response":{"body":{"usage":{"input_tokens":3,"output_tokens":2}}}}"#;
        let anthropic = r#"{"custom_id":"a","result":{"type":"succeeded","message":{"usage":{"input_tokens":3,"output_tokens":2}}}}"#;
        let vector = r#"{"id":1,"embedding":[1.0],"usage":{"prompt_tokens":3,"total_tokens":3}}"#;
        assert_eq!(tokens_of_answer(vector), Some((3, 0)));
        for good in [own, openai, of_responses, anthropic] {
            assert_eq!(tokens_of_answer(good), Some((3, 2)), "{good}");
        }
        for bad in [
            r#"{"id":1,"response":null,"finish_reason":"error","error":{"code":"a","message":"b"}}"#,
            r#"{"usage":{"prompt_tokens":3,"completion_tokens":2},"error":{"code":"a"}}"#,
            r#"{"response":{"status_code":400,"body":{"error":{"message":"m"}}},"error":null}"#,
            r#"{"custom_id":"a","result":{"type":"errored","error":{}}}"#,
            "no JSON",
        ] {
            assert_eq!(tokens_of_answer(bad), None, "{bad}");
        }
    }
}
