//! `Tally`: the rows of a run, counted by the thread that writes them: what became of each, what is
//! wrong with the first few of each kind, and their tokens.

use std::collections::BTreeMap;

use crate::ledger::Reused;
use crate::ledger::meta::{RowCounts, TokenCounts};
use vllm_batch_api::request::{CompletionOutput, FinishReason, RequestOutput};
use vllm_batch_dataset::input::row_error::RowError;
use vllm_batch_dataset::terminal::error::Location;

/// Messages shown of each kind of error.
const MAX_EXAMPLES: usize = 3;

/// Counts over the rows of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Rows with an answer.
    pub(super) ok: u64,
    /// Error rows.
    pub(super) failed: u64,
    /// Of both, taken over from an earlier run.
    pub(super) reused: u64,
    /// Error rows by the words of their errors.
    pub(super) by_code: BTreeMap<String, Failures>,
    /// Rows cut by `max_tokens`, or by the context.
    pub(super) length_limited: u64,
    /// Those cut by the context.
    pub(super) context_limited: u64,
    /// Those cut by their own `max_tokens`, where the context had room.
    pub(super) row_limited: u64,
    /// Rows with an answer that ended before it matched what was asked of its form.
    pub(super) incomplete: u64,
    /// Prompt tokens of all rows.
    pub(super) input_tokens: u64,
    /// Generated tokens of all rows.
    pub(super) output_tokens: u64,
    /// Of both, those of rows taken over.
    pub(super) reused_tokens: TokenCounts,
    /// Of the rows, as they are written.
    row_bytes: u64,
}

/// Error rows of one kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures {
    /// How many.
    pub rows: u64,
    /// Where the first row of each of the first few messages is, the message, and how many rows
    /// have it.
    pub examples: Vec<(String, String, u64)>,
}

impl Tally {
    /// A row was answered by a model with a context of `max_model_len` tokens.
    ///
    /// `has_own_length`: it says itself how long its answer may be.
    pub fn answered(&mut self, output: &RequestOutput, max_model_len: usize, has_own_length: bool) {
        let num_prompt_tokens = output.num_prompt_tokens();
        self.ok += 1;
        self.input_tokens += num_prompt_tokens as u64;
        self.output_tokens += output.num_output_tokens() as u64;
        let is_complete = |completion: &CompletionOutput| completion.is_complete;
        self.incomplete += u64::from(!output.outputs.iter().all(is_complete));
        let mut limited = output
            .outputs
            .iter()
            // Where none was asked for, no tokens are missing.
            .filter(|completion| !completion.token_ids.is_empty())
            .filter(|completion| completion.finish_reason == FinishReason::Length)
            .peekable();
        let is_limited = limited.peek().is_some();
        self.length_limited += u64::from(is_limited);
        let fills_context = limited
            .any(|completion| num_prompt_tokens + completion.token_ids.len() >= max_model_len);
        self.context_limited += u64::from(fills_context);
        self.row_limited += u64::from(is_limited && !fills_context && has_own_length);
    }

    /// A row of so many tokens became vectors or classes.
    pub fn pooled(&mut self, num_tokens: usize) {
        self.ok += 1;
        self.input_tokens += num_tokens as u64;
    }

    /// A row became an error row.
    pub fn failed(&mut self, error: &RowError, file: &str) {
        let place = Location::of(error, file);
        self.fail(error.code, &place.to_string(), &error.message);
    }

    /// An earlier run answered a row. How it ended is in its output.
    pub fn reused(&mut self, reused: &Reused, line: u64, file: &str) {
        let length = reused.location.length as usize;
        self.kept(reused.input_tokens, reused.output_tokens, length);
        if let Some(code) = &reused.code {
            self.ok -= 1;
            self.fail(code, &format!("{file}:{line}"), "of the run that is continued");
        }
    }

    /// A row with an answer was taken over.
    pub fn kept(&mut self, input_tokens: u32, output_tokens: u32, bytes: usize) {
        self.reused += 1;
        self.ok += 1;
        self.wrote(bytes);
        let (input, output) = (u64::from(input_tokens), u64::from(output_tokens));
        self.input_tokens += input;
        self.output_tokens += output;
        self.reused_tokens.input += input;
        self.reused_tokens.output += output;
    }

    /// Counts the tokens of rows taken over that do not say how many they took.
    pub fn add_untold(&mut self, tokens: &TokenCounts) {
        self.input_tokens += tokens.input;
        self.output_tokens += tokens.output;
        self.reused_tokens.input += tokens.input;
        self.reused_tokens.output += tokens.output;
    }

    fn fail(&mut self, code: &str, place: &str, message: &str) {
        self.failed += 1;
        if !self.by_code.contains_key(code) {
            self.by_code.insert(code.to_owned(), Failures::default());
        }
        let failures = self.by_code.get_mut(code).expect("it is there now");
        failures.rows += 1;
        let examples = &mut failures.examples;
        if let Some((.., rows)) = examples.iter_mut().find(|(_, known, _)| known == message) {
            *rows += 1;
        } else if examples.len() < MAX_EXAMPLES {
            examples.push((place.to_owned(), message.to_owned(), 1));
        }
    }

    /// A row of so many bytes was written.
    pub fn wrote(&mut self, bytes: usize) {
        self.row_bytes += bytes as u64;
    }

    /// Bytes of all rows.
    pub fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Rows by their fate.
    pub fn counts(&self) -> RowCounts {
        let by_code = self.by_code.iter().map(|(code, failures)| (code.clone(), failures.rows));
        let (ok, failed) = (self.ok, self.failed);
        RowCounts { total: self.rows(), ok, failed, by_code: by_code.collect() }
    }

    /// Tokens of all rows.
    pub fn tokens(&self) -> TokenCounts {
        TokenCounts { input: self.input_tokens, output: self.output_tokens }
    }

    /// Rows of this run alone: not those taken over.
    pub fn own_rows(&self) -> u64 {
        self.rows() - self.reused
    }

    /// Tokens of this run alone.
    pub fn own_tokens(&self) -> TokenCounts {
        TokenCounts {
            input: self.input_tokens - self.reused_tokens.input,
            output: self.output_tokens - self.reused_tokens.output,
        }
    }

    /// Rows answered or failed.
    pub fn rows(&self) -> u64 {
        self.ok + self.failed
    }

    /// Error rows.
    pub fn num_failed(&self) -> u64 {
        self.failed
    }
}
