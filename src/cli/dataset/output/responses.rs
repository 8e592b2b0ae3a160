//! Bodies of OpenAI's `/v1/responses` in lines of its batch output.

use super::RowWriter;
use super::openai::finite;
use crate::input::batch_line::{BatchLine, Echo};
use vllm_batch_api::request::{
    CompletionOutput, FinishReason, PositionLogprobs, RequestOutput, TokenLogprob,
};

impl RowWriter<'_> {
    /// A `response`, with the first completion: it has one.
    pub(super) fn response_body(&mut self, line: &BatchLine, output: &RequestOutput) {
        let first = output.outputs.first();
        let is_cut = first.is_some_and(|completion| {
            matches!(completion.finish_reason, FinishReason::Length | FinishReason::Incomplete)
        });
        let status = if is_cut { "incomplete" } else { "completed" };
        self.response_head(line, status);
        self.key("output");
        self.out.push(b'[');
        if let Some(completion) = first {
            self.items(completion, (line, status));
        }
        self.out.push(b']');
        self.echoed(line);
        self.response_usage(output);
    }

    /// A `response` before its first token.
    pub(super) fn begun_response(&mut self, line: &BatchLine) {
        self.response_head(line, "in_progress");
        self.key("output");
        self.out.extend_from_slice(b"[]");
        self.echoed(line);
        self.field("usage", &());
    }

    fn response_head(&mut self, line: &BatchLine, status: &str) {
        self.field("id", &line.digest.id("resp_"));
        self.field("object", "response");
        self.field("created_at", &self.options.facts.created);
        self.field("status", status);
        self.field("error", &());
        match status {
            "incomplete" => self.object("incomplete_details", |row| {
                row.field("reason", "max_output_tokens");
            }),
            _ => self.field("incomplete_details", &()),
        }
        self.model(line);
    }

    /// The parameters of the request.
    fn echoed(&mut self, line: &BatchLine) {
        if let Some(Echo::Fields(fields)) = &line.echo {
            self.separate();
            self.out.extend_from_slice(fields.as_bytes());
        }
    }

    /// Thinking, a message and calls, where there are any.
    fn items(&mut self, completion: &CompletionOutput, (line, status): (&BatchLine, &str)) {
        let shown = self.shown(completion);
        if let Some(reasoning) = &shown.reasoning {
            self.item("reasoning", &line.digest.id("rs_"), |row| {
                row.key("summary");
                row.out.extend_from_slice(b"[]");
                row.key("content");
                row.list(&[reasoning], |row, text| {
                    row.out.push(b'{');
                    row.field("type", "reasoning_text");
                    row.field("text", *text);
                    row.out.push(b'}');
                });
            });
        }
        let is_alone = shown.reasoning.is_none() && shown.tool_calls.is_empty();
        let content = shown.content.as_deref().filter(|text| is_alone || !text.is_empty());
        if let Some(text) = content {
            self.item("message", &line.digest.id("msg_"), |row| {
                row.field("status", status);
                row.field("role", "assistant");
                row.key("content");
                row.list(&[text], |row, text| {
                    row.out.push(b'{');
                    row.field("type", "output_text");
                    row.field("text", *text);
                    row.key("annotations");
                    row.out.extend_from_slice(b"[]");
                    row.key("logprobs");
                    let positions = completion.logprobs.as_deref().unwrap_or_default();
                    row.list(positions, Self::response_position);
                    row.out.push(b'}');
                });
            });
        }
        for (number, call) in shown.tool_calls.iter().enumerate() {
            let digest = line.digest.call(completion.index, number);
            self.item("function_call", &digest.id("fc_"), |row| {
                row.field("call_id", &digest.id("call_"));
                row.field("name", &call.name);
                row.field("arguments", &call.arguments);
                row.field("status", status);
            });
        }
    }

    fn item(&mut self, kind: &str, id: &str, fields: impl FnOnce(&mut Self)) {
        if self.out.last() != Some(&b'[') {
            self.out.push(b',');
        }
        self.out.push(b'{');
        self.field("type", kind);
        self.field("id", id);
        fields(self);
        self.out.push(b'}');
    }

    pub(super) fn response_position(&mut self, position: &PositionLogprobs) {
        self.out.push(b'{');
        self.response_token(&position.token);
        self.top_logprobs(&position.top, Self::response_token);
        self.out.push(b'}');
    }

    fn response_token(&mut self, token: &TokenLogprob) {
        let text = (self.options.tokens.text)(token.token_id);
        self.field("token", &text);
        self.field("bytes", text.as_bytes());
        self.field("logprob", &finite(token));
    }

    /// Cached tokens depend on what else is computed: a row shows none.
    fn response_usage(&mut self, output: &RequestOutput) {
        let (input, generated) = (output.prompt_token_ids.len(), output.num_output_tokens());
        let count = self.options.tokens.num_reasoning;
        let num_reasoning: usize = self.form.map_or(0, |form| {
            output.outputs.iter().map(|completion| count(&completion.token_ids, form)).sum()
        });
        self.object("usage", |row| {
            row.field("input_tokens", &input);
            row.object("input_tokens_details", |row| {
                row.field("cached_tokens", &0);
                row.field("cache_write_tokens", &0);
            });
            row.field("output_tokens", &generated);
            row.object("output_tokens_details", |row| {
                row.field("reasoning_tokens", &num_reasoning);
            });
            row.field("total_tokens", &(input + generated));
        });
    }
}
