//! Lines of Anthropic's message batches: `custom_id` and `result`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::RowWriter;
use super::openai::status;
use super::shown::Shown;
use crate::input::batch_line::BatchLine;
use crate::input::row_error::{NotRun, RowError};
use vllm_batch_api::request::{CompletionOutput, FinishReason, RequestOutput, StopReason};
use vllm_batch_text::{AnswerForm, ToolCall, ToolChoice};

/// A part of a message.
pub(super) enum Block<'a> {
    Thinking(String),
    Text(Cow<'a, str>),
    /// Its number among the calls, the tool, its arguments.
    ToolUse(usize, String, Box<RawValue>),
}

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
            Err(error) => match NotRun::of_code(error.code) {
                Some(NotRun::Cancelled) => row.field("type", "canceled"),
                Some(NotRun::Expired) => row.field("type", "expired"),
                None => {
                    row.field("type", "errored");
                    row.object("error", |row| row.error_response(line, error));
                }
            },
        });
    }

    /// The first completion: Anthropic's messages have one.
    pub(super) fn message(&mut self, line: &BatchLine, output: &RequestOutput) {
        let first = output.outputs.first();
        self.field("id", &line.digest.id("msg_"));
        self.field("type", "message");
        self.field("role", "assistant");
        let blocks = first.map_or_else(Vec::new, |completion| self.blocks(completion));
        self.key("content");
        self.list(&blocks, |row, block| row.block(block, line));
        self.model(line);
        let has_calls = blocks.iter().any(|block| matches!(block, Block::ToolUse(..)));
        let (stop_reason, stop_sequence) = stopped_by(first, has_calls);
        self.field("stop_reason", &stop_reason);
        self.field("stop_sequence", &stop_sequence);
        self.object("usage", |row| {
            row.field("input_tokens", &output.prompt_token_ids.len());
            row.field("output_tokens", &output.num_output_tokens());
        });
    }

    /// The parts of an answer. Arguments must be objects here: where they are not, the calls stay
    /// text.
    pub(super) fn blocks<'a>(&self, completion: &'a CompletionOutput) -> Vec<Block<'a>> {
        let mut shown = self.shown(completion);
        let mut inputs = inputs(&shown.tool_calls);
        if inputs.is_none() {
            let form = self.form.cloned().unwrap_or_default();
            let form = AnswerForm { tool_choice: ToolChoice::None, ..form };
            shown = Shown::new(completion, Some(&form), self.options.parser);
            inputs = Some(Vec::new());
        }
        let inputs = inputs.unwrap_or_default();
        let thinking = shown.reasoning.map(Block::Thinking);
        let is_alone = thinking.is_none() && inputs.is_empty();
        let text = shown.content.filter(|text| is_alone || !text.is_empty()).map(Block::Text);
        let calls = shown.tool_calls.into_iter().zip(inputs).enumerate();
        let calls = calls.map(|(number, (call, input))| Block::ToolUse(number, call.name, input));
        thinking.into_iter().chain(text).chain(calls).collect()
    }

    fn block(&mut self, block: &Block<'_>, line: &BatchLine) {
        self.out.push(b'{');
        match block {
            Block::Thinking(thinking) => {
                self.field("type", "thinking");
                self.field("thinking", thinking);
                // Nobody vouches for it.
                self.field("signature", "");
            }
            Block::Text(text) => {
                self.field("type", "text");
                self.field("text", text);
            }
            Block::ToolUse(number, name, input) => {
                self.field("type", "tool_use");
                self.field("id", &line.digest.call(0, *number).id("toolu_"));
                self.field("name", name);
                self.field("input", input);
            }
        }
        self.out.push(b'}');
    }

    pub(super) fn error_response(&mut self, line: &BatchLine, error: &RowError) {
        let kind = match status(error) {
            500.. => "api_error",
            404 => "not_found_error",
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

/// The arguments of calls as the model wrote them, on one line; None if one is no object.
fn inputs(calls: &[ToolCall]) -> Option<Vec<Box<RawValue>>> {
    let input = |call: &ToolCall| {
        // Between the tokens of JSON any white space is as good.
        let line = call.arguments.trim().replace(['\n', '\r'], " ");
        line.starts_with('{').then(|| RawValue::from_string(line).ok()).flatten()
    };
    calls.iter().map(input).collect()
}

/// `stop_reason` and `stop_sequence`.
pub(super) fn stopped_by(
    completion: Option<&CompletionOutput>,
    has_calls: bool,
) -> (Option<&'static str>, Option<&str>) {
    let Some(completion) = completion else { return (None, None) };
    match (completion.finish_reason, &completion.stop_reason) {
        (FinishReason::Length, _) => (Some("max_tokens"), None),
        (FinishReason::Stop | FinishReason::Incomplete, Some(StopReason::Text(text))) => {
            (Some("stop_sequence"), Some(text))
        }
        (FinishReason::Stop, _) if has_calls => (Some("tool_use"), None),
        (FinishReason::Stop, _) => (Some("end_turn"), None),
        (FinishReason::Incomplete, _) => (Some("max_tokens"), None),
        (FinishReason::Error, _) => (None, None),
    }
}
