//! `Shown`: the parts of a completion as rows show them, and the calls among them.

use std::borrow::Cow;

use super::RowWriter;
use crate::input::batch_line::RowDigest;
use crate::input::fields::Passthrough;
use vllm_batch_api::request::{CompletionOutput, FinishReason};
use vllm_batch_text::{
    AnswerForm, AnswerParser, Language, ParsedAnswer, Segment, ToolCall, ToolChoice,
};

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
    /// Pieces of a transcript.
    pub(super) segments: Vec<Segment>,
}

impl<'a> Shown<'a> {
    /// The parts of a chat's answer. A text that was completed, without a form, has one.
    pub(super) fn new(
        completion: &'a CompletionOutput,
        form: Option<&AnswerForm>,
        parser: &AnswerParser,
    ) -> Self {
        let Some(form) = form else { return Self::text(&completion.text) };
        let mut answer = parser.parse(&completion.text, form);
        let is_stopped = completion.finish_reason == FinishReason::Stop;
        let ends_in_calls = !answer.tool_calls.is_empty()
            && match form.tool_choice {
                ToolChoice::Auto => true,
                ToolChoice::Required => is_stopped,
                ToolChoice::None | ToolChoice::Named(_) => false,
            };
        let content = match answer.content.take() {
            Some(content) => Some(Cow::Owned(content)),
            // An answer of nothing is an empty one.
            None => completion.text.is_empty().then_some(Cow::Borrowed("")),
        };
        let ParsedAnswer { reasoning, tool_calls, segments, .. } = answer;
        Self { reasoning, content, tool_calls, ends_in_calls, segments }
    }

    fn text(text: &'a str) -> Self {
        let content = Some(Cow::Borrowed(text));
        let (tool_calls, segments) = Default::default();
        Self { reasoning: None, content, tool_calls, ends_in_calls: false, segments }
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

    /// `language` where the model has found it, and `segments` where there are timestamps.
    pub(super) fn transcript(&mut self, completion: &CompletionOutput, shown: &Shown<'_>) {
        if !self.options.parser.is_of_transcripts() {
            return;
        }
        if let Some(language) = self.language_found(completion) {
            self.field("language", language.code);
        }
        if shown.segments.is_empty() {
            return;
        }
        self.key("segments");
        self.list(&shown.segments, |row, segment| {
            row.out.push(b'{');
            row.segment(segment);
            row.out.push(b'}');
        });
    }

    /// The fields of a piece of a transcript.
    pub(super) fn segment(&mut self, segment: &Segment) {
        let seconds = |hundredths: u32| f64::from(hundredths) / 100.0;
        self.field("start", &seconds(segment.start));
        self.field("end", &segment.end.map(seconds));
        self.field("text", &segment.text);
    }

    /// The language that an answer begins with, where the model has found it.
    pub(super) fn language_found(&self, completion: &CompletionOutput) -> Option<Language> {
        let first = completion.token_ids.first()?;
        Language::of_token(&(self.options.tokens.text)(*first))
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
