//! Lines of Anthropic's message batches: `custom_id` and `result`.

use std::borrow::Cow;

use super::RowWriter;
use super::openai::status;
use crate::cli::input::batch_line::BatchLine;
use crate::cli::input::row_error::RowError;
use crate::engine::request::{CompletionOutput, FinishReason, RequestOutput, StopReason};

impl RowWriter<'_> {
    /// The fields of a line.
    pub(super) fn anthropic_line(
        &mut self,
        line: &BatchLine,
        result: Result<&RequestOutput, Cow<'_, RowError>>,
    ) {
        self.field("custom_id", &line.custom_id);
        self.object("result", |row| match &result {
            Ok(output) => {
                row.field("type", "succeeded");
                row.object("message", |row| row.message(line, output));
            }
            Err(error) => {
                row.field("type", "errored");
                row.object("error", |row| row.error_response(line, error));
            }
        });
    }

    /// The first completion: Anthropic's messages have one.
    fn message(&mut self, line: &BatchLine, output: &RequestOutput) {
        let first = output.outputs.first();
        self.field("id", &line.digest.id("msg_"));
        self.field("type", "message");
        self.field("role", "assistant");
        self.key("content");
        self.list(first.as_slice(), |row, completion| {
            row.out.push(b'{');
            row.field("type", "text");
            row.field("text", &completion.text);
            row.out.push(b'}');
        });
        self.field("model", &self.options.facts.model);
        let (stop_reason, stop_sequence) = first.map_or((None, None), stopped_by);
        self.field("stop_reason", &stop_reason);
        self.field("stop_sequence", &stop_sequence);
        self.object("usage", |row| {
            row.field("input_tokens", &output.prompt_token_ids.len());
            row.field("output_tokens", &output.num_output_tokens());
        });
    }

    fn error_response(&mut self, line: &BatchLine, error: &RowError) {
        let kind = match status(error) {
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        self.field("type", "error");
        self.object("error", |row| {
            row.field("type", kind);
            row.field("message", &error.message);
        });
        self.field("request_id", &line.digest.id("req_"));
    }
}

/// `stop_reason` and `stop_sequence`.
fn stopped_by(completion: &CompletionOutput) -> (Option<&'static str>, Option<&str>) {
    match (completion.finish_reason, &completion.stop_reason) {
        (FinishReason::Length, _) => (Some("max_tokens"), None),
        (FinishReason::Stop | FinishReason::Incomplete, Some(StopReason::Text(text))) => {
            (Some("stop_sequence"), Some(text))
        }
        (FinishReason::Stop, _) => (Some("end_turn"), None),
        (FinishReason::Incomplete, _) => (Some(completion.finish_reason.name()), None),
        (FinishReason::Abort | FinishReason::Error, _) => (None, None),
    }
}
