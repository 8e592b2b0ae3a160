//! `Chunks`: an answer of OpenAI's in pieces, while it is made. Joined they are the whole answer.
//!
//! Clients are strict about the order: each choice begins with a role, in the order of their
//! numbers, and ends with one empty piece that says why; usage comes last. Text that may yet be
//! taken back (thinking, calls of tools) waits for what decides it.

use super::growing::Growing;
use super::openai::finish_reason;
use super::shown::Shown;
use super::{JsonFormat, RowWriter, Tokens};
use crate::input::batch_line::{BatchKind, BatchLine};
use vllm_batch_api::request::{CompletionDelta, CompletionOutput, PositionLogprobs, RequestOutput};
use vllm_batch_text::{AnswerForm, ToolCall};

/// `stream_options` of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// A last chunk has the usage of the whole answer.
    pub include_usage: bool,
    /// Every chunk has the usage so far.
    pub continuous_usage_stats: bool,
}

/// What is known of a request that is streamed, beside its deltas.
#[derive(Debug)]
pub struct Streamed {
    /// What chunks show of the request.
    pub line: BatchLine,
    /// Form of a chat's answer.
    pub form: Option<AnswerForm>,
    /// `stream_options`.
    pub options: StreamOptions,
    /// Completions.
    pub num_choices: u32,
    /// Tokens of the prompt.
    pub num_prompt_tokens: usize,
}

/// Chunks of an answer that goes on.
#[derive(Debug)]
pub struct Chunks {
    streamed: Streamed,
    choices: Vec<Choice>,
}

/// What is out of a choice.
#[derive(Debug, Default)]
struct Choice {
    growing: Growing,
    num_tokens: usize,
    /// Positions whose logprobs are out.
    num_positions: usize,
    /// Characters of the tokens with logprobs that are out.
    num_chars: usize,
}

/// A piece of a choice.
enum Piece<'a> {
    Role,
    Text(&'a str),
    Reasoning(&'a str),
    /// Its number, and the call without its arguments.
    Call(usize, &'a ToolCall),
    Arguments(usize, &'a ToolCall),
    End(&'a str),
}

impl Chunks {
    /// Nothing is out.
    pub fn new(streamed: Streamed) -> Self {
        let choices = (0..streamed.num_choices).map(|_| Choice::default()).collect();
        Self { streamed, choices }
    }

    /// What comes before the first token.
    pub fn begin(&mut self, format: &JsonFormat, tokens: &Tokens<'_>) -> Vec<String> {
        let indices = 0..self.streamed.num_choices;
        let is_chat = self.streamed.line.kind == BatchKind::Chat;
        let roles = indices.filter(|_| is_chat);
        roles.map(|index| self.chunk((format, tokens), index, &Piece::Role, None)).collect()
    }

    /// What is new.
    pub fn take_in(
        &mut self,
        deltas: &[CompletionDelta],
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<String> {
        let mut chunks = Vec::new();
        for delta in deltas {
            let choice = &mut self.choices[delta.index as usize];
            choice.num_tokens += delta.token_ids.len();
            let form = self.streamed.form.as_ref();
            let new = choice.growing.take_in(&delta.text, form, &format.parser);
            if let Some(reasoning) = &new.reasoning {
                let piece = Piece::Reasoning(reasoning);
                chunks.push(self.chunk((format, tokens), delta.index, &piece, None));
            }
            let positions = delta.logprobs.as_deref().filter(|positions| !positions.is_empty());
            if !new.content.is_empty() || positions.is_some() {
                let piece = Piece::Text(&new.content);
                chunks.push(self.chunk((format, tokens), delta.index, &piece, positions));
            }
        }
        chunks
    }

    /// What is left of an answer that is whole, why each choice has ended, and the usage.
    pub fn finish(
        &mut self,
        output: &RequestOutput,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<String> {
        let mut chunks = Vec::new();
        for completion in &output.outputs {
            chunks.extend(self.end(completion, format, tokens));
        }
        if self.streamed.options.include_usage {
            let options = format.options(tokens);
            let mut out = Vec::from(b"{");
            let form = self.streamed.form.as_ref();
            let mut row = RowWriter { out: &mut out, options: &options, form };
            row.chunk_head(&self.streamed.line);
            row.key("choices");
            row.out.extend_from_slice(b"[]");
            row.openai_usage(output);
            row.out.push(b'}');
            chunks.push(String::from_utf8(out).expect("JSON is text"));
        }
        chunks
    }

    /// The same of one choice.
    fn end(
        &mut self,
        completion: &CompletionOutput,
        format: &JsonFormat,
        tokens: &Tokens<'_>,
    ) -> Vec<String> {
        let (index, mut chunks) = (completion.index, Vec::new());
        let options = format.options(tokens);
        let form = self.streamed.form.as_ref();
        let shown = Shown::new(completion, form, options.parser);
        let choice = &mut self.choices[index as usize];
        choice.num_tokens = completion.token_ids.len();
        let reasoning = choice.growing.left_of_reasoning(shown.reasoning.as_deref());
        let content = choice.growing.left_of_content(shown.content.as_deref());
        let positions = completion.logprobs.as_deref();
        let positions = positions.and_then(|all| all.get(choice.num_positions..));
        let positions = positions.filter(|positions| !positions.is_empty());
        let mut push = |piece: Piece<'_>, positions: Option<&[PositionLogprobs]>| {
            chunks.push(self.chunk((format, tokens), index, &piece, positions));
        };
        if !reasoning.is_empty() {
            push(Piece::Reasoning(reasoning), None);
        }
        if !content.is_empty() || positions.is_some() {
            push(Piece::Text(content), positions);
        }
        for (number, call) in shown.tool_calls.iter().enumerate() {
            push(Piece::Call(number, call), None);
            push(Piece::Arguments(number, call), None);
        }
        let reason = match shown.ends_in_calls {
            true => "tool_calls",
            false => finish_reason(completion),
        };
        push(Piece::End(reason), None);
        chunks
    }

    fn chunk(
        &mut self,
        (format, tokens): (&JsonFormat, &Tokens<'_>),
        index: u32,
        piece: &Piece<'_>,
        positions: Option<&[PositionLogprobs]>,
    ) -> String {
        let options = format.options(tokens);
        let (line, form) = (&self.streamed.line, self.streamed.form.as_ref());
        let choice = &mut self.choices[index as usize];
        let mut out = Vec::from(b"{");
        let mut row = RowWriter { out: &mut out, options: &options, form };
        row.chunk_head(line);
        row.key("choices");
        row.list(&[()], |row, ()| {
            row.out.push(b'{');
            row.field("index", &index);
            match line.kind {
                BatchKind::Chat => {
                    row.object("delta", |row| row.delta(piece, (line, index)));
                    row.chat_logprobs(positions);
                }
                _ => {
                    row.field("text", if let Piece::Text(text) = piece { *text } else { "" });
                    let known = positions.map(|positions| {
                        positions.iter().map(|known| (known.token.token_id, Some(known)))
                    });
                    let known: Option<Vec<_>> = known.map(Iterator::collect);
                    row.text_logprobs(known.as_deref(), choice.num_chars);
                }
            }
            let reason = if let Piece::End(reason) = piece { Some(*reason) } else { None };
            row.field("finish_reason", &reason);
            row.out.push(b'}');
        });
        let positions = positions.unwrap_or_default();
        choice.num_positions += positions.len();
        let text = |position: &PositionLogprobs| (tokens.text)(position.token.token_id);
        choice.num_chars +=
            positions.iter().map(|position| text(position).chars().count()).sum::<usize>();
        if self.streamed.options.continuous_usage_stats {
            let generated: usize = self.choices.iter().map(|choice| choice.num_tokens).sum();
            let prompt = self.streamed.num_prompt_tokens;
            row.object("usage", |row| row.counts(prompt, generated));
        }
        row.out.push(b'}');
        String::from_utf8(out).expect("JSON is text")
    }
}

impl RowWriter<'_> {
    /// What all chunks of an answer have.
    fn chunk_head(&mut self, line: &BatchLine) {
        let facts = self.options.facts;
        let (prefix, object) = match line.kind {
            BatchKind::Chat => ("chatcmpl-", "chat.completion.chunk"),
            _ => ("cmpl-", "text_completion"),
        };
        self.field("id", &line.digest.id(prefix));
        self.field("object", object);
        self.field("created", &facts.created);
        self.model(line);
        self.field("system_fingerprint", &facts.system_fingerprint);
    }

    /// The fields of a message that a piece adds to. Fields that add nothing are not there: some
    /// clients join a second role to the first.
    fn delta(&mut self, piece: &Piece<'_>, (line, index): (&BatchLine, u32)) {
        match piece {
            Piece::Role => {
                self.field("role", "assistant");
                self.field("content", "");
            }
            Piece::Text("") | Piece::End(_) => {}
            Piece::Text(text) => self.field("content", text),
            Piece::Reasoning(text) => self.field("reasoning", text),
            Piece::Call(number, call) => {
                let call = ToolCall { arguments: String::new(), ..(*call).clone() };
                let digest = line.digest.call(index, *number);
                self.call_piece(*number, |row| row.tool_call(&call, digest));
            }
            // Of what was said of a call before some clients make a second one.
            Piece::Arguments(number, call) => self.call_piece(*number, |row| {
                row.object("function", |row| row.field("arguments", &call.arguments));
            }),
        }
    }

    /// `tool_calls` with a part of one call.
    fn call_piece(&mut self, number: usize, fields: impl Fn(&mut Self)) {
        self.key("tool_calls");
        self.list(&[number], |row, number| {
            row.out.push(b'{');
            row.field("index", number);
            fields(row);
            row.out.push(b'}');
        });
    }
}
