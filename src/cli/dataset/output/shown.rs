//! `Shown`: the parts of a completion as rows show them, and the calls among them.

use std::borrow::Cow;

use super::RowWriter;
use crate::input::batch_line::RowDigest;
use crate::input::fields::Passthrough;
use vllm_batch_api::request::{CompletionOutput, FinishReason};
use vllm_batch_text::{AnswerForm, AnswerParser, ToolCall, ToolChoice};

/// The parts of a completion.
pub(super) struct Shown<'a> {
    /// What was thought before the answer, where the row shows it.
    pub(super) reasoning: Option<String>,
    /// The text. None: there is none beside the thinking or the calls.
    pub(super) content: Option<Cow<'a, str>>,
    /// Calls of tools.
    pub(super) tool_calls: Vec<ToolCall>,
    /// OpenAI's `finish_reason` is `tool_calls`: as in vLLM not where the row named the function.
    pub(super) ends_in_calls: bool,
}

impl<'a> Shown<'a> {
    /// The parts of a chat's answer. A text that was completed, without a form, has one.
    pub(super) fn new(
        completion: &'a CompletionOutput,
        form: Option<&AnswerForm>,
        parser: &AnswerParser,
    ) -> Self {
        let Some(form) = form else { return Self::text(&completion.text) };
        let answer = parser.parse(&completion.text, form);
        let is_stopped = completion.finish_reason == FinishReason::Stop;
        let ends_in_calls = !answer.tool_calls.is_empty()
            && match form.tool_choice {
                ToolChoice::Auto => true,
                ToolChoice::Required => is_stopped,
                ToolChoice::None | ToolChoice::Named(_) => false,
            };
        let content = match answer.content {
            Some(content) => Some(Cow::Owned(content)),
            // An answer of nothing is an empty one.
            None => completion.text.is_empty().then_some(Cow::Borrowed("")),
        };
        let (reasoning, tool_calls) = (answer.reasoning, answer.tool_calls);
        Self { reasoning, content, tool_calls, ends_in_calls }
    }

    fn text(text: &'a str) -> Self {
        let content = Some(Cow::Borrowed(text));
        Self { reasoning: None, content, tool_calls: Vec::new(), ends_in_calls: false }
    }

    /// Whether it has more than a text.
    pub(super) fn has_parts(&self) -> bool {
        self.reasoning.is_some() || !self.tool_calls.is_empty()
    }
}

impl RowWriter<'_> {
    /// The parts of a completion of the row.
    pub(super) fn shown<'a>(&self, completion: &'a CompletionOutput) -> Shown<'a> {
        Shown::new(completion, self.form, self.options.parser)
    }

    /// `reasoning` and `tool_calls`, where there are any.
    pub(super) fn parts(&mut self, shown: &Shown<'_>, digest: RowDigest, index: u32) {
        if let Some(reasoning) = &shown.reasoning {
            self.field("reasoning", reasoning);
        }
        if shown.tool_calls.is_empty() {
            return;
        }
        self.key("tool_calls");
        let numbered: Vec<_> = shown.tool_calls.iter().enumerate().collect();
        self.list(&numbered, |row, (number, call)| {
            row.out.push(b'{');
            row.tool_call(call, digest.call(index, *number));
            row.out.push(b'}');
        });
    }

    /// The fields of a call.
    pub(super) fn tool_call(&mut self, call: &ToolCall, digest: RowDigest) {
        let id = match self.options.parser.names().1 {
            "mistral" => digest.short_id(),
            _ => digest.id("chatcmpl-tool-"),
        };
        self.field("id", &id);
        self.field("type", "function");
        self.object("function", |row| {
            row.field("name", &call.name);
            row.field("arguments", &call.arguments);
        });
    }
}

/// The hash that the ids of a row's calls are made of.
pub(super) fn digest(passthrough: &Passthrough) -> RowDigest {
    match passthrough {
        Passthrough::Batch(line) => line.digest,
        Passthrough::Json(fields) => RowDigest::of_text(fields.text()),
        Passthrough::Cells { cells, .. } => RowDigest::of_text(&cells.join("\n")),
    }
}
