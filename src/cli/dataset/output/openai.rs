//! Lines of OpenAI's batch output: an HTTP response in each, its error in `response.body.error`.

use std::borrow::Cow;

use super::RowWriter;
use crate::input::batch_line::{BatchKind, BatchLine, Echo};
use crate::input::overrides::parameter_of;
use crate::input::row_error::{NotRun, RowError, code};
use vllm_batch_api::request::{
    CompletionOutput, FinishReason, PositionLogprobs, RequestOutput, TokenLogprob,
};

/// What stands for a probability of zero, which has no finite logarithm.
const LEAST_LOGPROB: f32 = -9999.0;

/// HTTP's status of an error: the row is wrong, or names what is not there, or we are.
pub(super) fn status(error: &RowError) -> u16 {
    match error.code {
        code::UNSUPPORTED_URL | code::MODEL_NOT_FOUND => 404,
        code::ENGINE | "non_finite_logits" | "tokenize" | "detokenize" => 500,
        _ => 400,
    }
}

impl RowWriter<'_> {
    /// The fields of a line.
    pub(super) fn openai_line(
        &mut self,
        line: &BatchLine,
        result: Result<&RequestOutput, Cow<'_, RowError>>,
    ) {
        let given_up = result.as_ref().err().filter(|error| NotRun::of_code(error.code).is_some());
        if let Some(error) = given_up {
            return self.openai_not_run(line, error);
        }
        let status = result.as_ref().map_or_else(|error| status(error), |_| 200);
        self.openai_envelope(line, status, |row| match &result {
            Ok(output) => row.openai_answer(line, output),
            Err(error) => row.openai_error(line.kind, error),
        });
    }

    /// The fields of the line of a request that nobody answered, and that nothing was wrong with.
    fn openai_not_run(&mut self, line: &BatchLine, error: &RowError) {
        self.field("id", &line.digest.id("batch_req_"));
        self.field("custom_id", &line.custom_id);
        self.field("response", &());
        self.object("error", |row| {
            row.field("code", error.code);
            row.field("message", &error.message);
        });
    }

    /// The body of an answer.
    pub(super) fn openai_answer(&mut self, line: &BatchLine, output: &RequestOutput) {
        match line.kind {
            BatchKind::Response => self.response_body(line, output),
            BatchKind::Transcription => self.transcription_body(line, output),
            _ => self.openai_body(line, output),
        }
    }

    /// The fields of a line around the body of its response.
    pub(super) fn openai_envelope(
        &mut self,
        line: &BatchLine,
        status: u16,
        body: impl FnOnce(&mut Self),
    ) {
        self.field("id", &line.digest.id("batch_req_"));
        self.field("custom_id", &line.custom_id);
        self.object("response", |row| {
            row.field("status_code", &status);
            row.field("request_id", &line.digest.id("req_"));
            row.object("body", body);
        });
        self.field("error", &());
    }

    /// Who answers.
    pub(super) fn model(&mut self, line: &BatchLine) {
        let model = line.lora.as_deref().unwrap_or(&self.options.facts.model);
        self.field("model", model);
    }

    fn openai_body(&mut self, line: &BatchLine, output: &RequestOutput) {
        let facts = self.options.facts;
        let is_chat = line.kind == BatchKind::Chat;
        let (prefix, object) = match is_chat {
            true => ("chatcmpl-", "chat.completion"),
            false => ("cmpl-", "text_completion"),
        };
        self.field("id", &line.digest.id(prefix));
        self.field("object", object);
        self.field("created", &facts.created);
        self.model(line);
        self.key("choices");
        self.list(&output.outputs, |row, completion| {
            row.out.push(b'{');
            let ends_in_calls = match is_chat {
                true => row.chat_choice(completion, line),
                false => row.text_choice(completion, line, output),
            };
            let reason = match ends_in_calls {
                true => "tool_calls",
                false => finish_reason(completion),
            };
            row.field("finish_reason", reason);
            row.out.push(b'}');
        });
        self.openai_usage(output);
        self.field("system_fingerprint", &facts.system_fingerprint);
        // Those of a prompt that is echoed are with those of the text.
        let is_echoed = matches!(line.echo, Some(Echo::Prompt(_)));
        if let Some(positions) = output.prompt_logprobs.as_ref().filter(|_| !is_echoed) {
            self.key("prompt_logprobs");
            self.list(positions, |row, position| match position {
                Some(position) => row.prompt_position(position),
                None => row.value(&()),
            });
        }
    }

    /// `usage`.
    pub(super) fn openai_usage(&mut self, output: &RequestOutput) {
        let (prompt, generated) = (output.prompt_token_ids.len(), output.num_output_tokens());
        self.object("usage", |row| {
            row.counts(prompt, generated);
            if let Some(form) = row.form.filter(|_| row.options.parser.names().0 != "none") {
                let count = row.options.tokens.num_reasoning;
                let counts =
                    output.outputs.iter().map(|completion| count(&completion.token_ids, form));
                let num_reasoning: usize = counts.sum();
                row.object("completion_tokens_details", |row| {
                    row.field("reasoning_tokens", &num_reasoning);
                });
            }
        });
    }

    /// The fields of a usage that all have.
    pub(super) fn counts(&mut self, prompt: usize, generated: usize) {
        self.field("prompt_tokens", &prompt);
        self.field("completion_tokens", &generated);
        self.field("total_tokens", &(prompt + generated));
    }

    /// A message. Returns whether it ends in calls.
    fn chat_choice(&mut self, completion: &CompletionOutput, line: &BatchLine) -> bool {
        let shown = self.shown(completion);
        self.field("index", &completion.index);
        self.object("message", |row| {
            row.field("role", "assistant");
            row.field("content", &shown.content);
            row.no_refusal();
            row.parts(&shown, line.digest, completion.index);
        });
        self.chat_logprobs(completion.logprobs.as_deref());
        shown.ends_in_calls
    }

    pub(super) fn chat_logprobs(&mut self, positions: Option<&[PositionLogprobs]>) {
        let Some(positions) = positions else { return self.field("logprobs", &()) };
        self.object("logprobs", |row| {
            row.key("content");
            row.list(positions, |row, position| {
                row.out.push(b'{');
                row.chat_token(&position.token);
                row.top_logprobs(&position.top, Self::chat_token);
                row.out.push(b'}');
            });
            row.no_refusal();
        });
    }

    /// What OpenAI's models refuse in. Strict clients want the field.
    fn no_refusal(&mut self) {
        self.field("refusal", &());
    }

    fn chat_token(&mut self, token: &TokenLogprob) {
        let text = (self.options.tokens.text)(token.token_id);
        self.field("token", &text);
        self.field("logprob", &finite(token));
        self.field("bytes", text.as_bytes());
    }

    /// A text, which has no calls to end in; after its prompt where that is echoed.
    fn text_choice(
        &mut self,
        completion: &CompletionOutput,
        line: &BatchLine,
        output: &RequestOutput,
    ) -> bool {
        let text = self.options.tokens.text;
        self.field("index", &completion.index);
        let echoed = match &line.echo {
            Some(Echo::Prompt(Some(prompt))) => prompt.clone(),
            Some(Echo::Prompt(None)) => {
                output.prompt_token_ids.iter().map(|id| text(*id)).collect()
            }
            Some(Echo::Fields(_) | Echo::Recording(_)) | None => String::new(),
        };
        self.field("text", &[&*echoed, &completion.text].concat());
        let of_prompt = output.prompt_logprobs.as_ref();
        let of_prompt = of_prompt.filter(|_| matches!(line.echo, Some(Echo::Prompt(_))));
        let prompt = of_prompt.into_iter().flatten().map(Option::as_ref);
        let prompt = output.prompt_token_ids.iter().copied().zip(prompt);
        let generated = completion.logprobs.as_ref().map(|positions| {
            positions.iter().map(|position| (position.token.token_id, Some(position)))
        });
        let positions = generated.map(|generated| prompt.chain(generated).collect::<Vec<_>>());
        self.text_logprobs(positions.as_deref(), 0);
        false
    }

    /// `logprobs` of a text whose tokens are these, beginning after so many characters. Nothing
    /// says how likely the first token of a prompt is.
    pub(super) fn text_logprobs(
        &mut self,
        positions: Option<&[(u32, Option<&PositionLogprobs>)]>,
        begins_at: usize,
    ) {
        let Some(positions) = positions else { return self.field("logprobs", &()) };
        let text = self.options.tokens.text;
        let tokens: Vec<String> = positions.iter().map(|(id, _)| text(*id)).collect();
        let logprobs: Vec<Option<f32>> =
            positions.iter().map(|(_, known)| known.map(|known| finite(&known.token))).collect();
        // In characters, as in vLLM.
        let offsets: Vec<usize> = tokens
            .iter()
            .scan(begins_at, |next, token| {
                Some(std::mem::replace(next, *next + token.chars().count()))
            })
            .collect();
        self.object("logprobs", |row| {
            row.field("tokens", &tokens);
            row.field("token_logprobs", &logprobs);
            row.key("top_logprobs");
            row.list(positions, |row, (_, known)| match known {
                Some(position) => row.text_position(position),
                None => row.value(&()),
            });
            row.field("text_offset", &offsets);
        });
    }

    /// The likeliest tokens, and the one that is there. Of tokens that look alike the likeliest.
    fn text_position(&mut self, position: &PositionLogprobs) {
        let mut shown: Vec<String> = Vec::new();
        self.out.push(b'{');
        for token in distinct(position) {
            let text = (self.options.tokens.text)(token.token_id);
            if !shown.contains(&text) {
                self.field(&text, &finite(token));
                shown.push(text);
            }
        }
        self.out.push(b'}');
    }

    /// vLLM's form, since OpenAI has none: by token id.
    fn prompt_position(&mut self, position: &PositionLogprobs) {
        self.out.push(b'{');
        for token in distinct(position) {
            self.object(&token.token_id.to_string(), |row| {
                row.field("logprob", &finite(token));
                row.field("rank", &token.rank);
                row.field("decoded_token", &(row.options.tokens.text)(token.token_id));
            });
        }
        self.out.push(b'}');
    }

    pub(super) fn openai_error(&mut self, kind: BatchKind, error: &RowError) {
        let kind_of_error = match status(error) {
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        // The one word of OpenAI's that programs look for.
        let (code, param) = match (error.code, kind) {
            ("context_length", BatchKind::Completions) => {
                ("context_length_exceeded", Some("prompt"))
            }
            (
                "context_length",
                BatchKind::Response | BatchKind::Embeddings | BatchKind::Classify,
            ) => ("context_length_exceeded", Some("input")),
            ("context_length", BatchKind::Score | BatchKind::Rerank) => {
                ("context_length_exceeded", error.param)
            }
            ("context_length", _) => ("context_length_exceeded", Some("messages")),
            (code::INVALID_PARAMETER, _) => {
                (error.code, error.param.or_else(|| parameter_of(&error.message)))
            }
            (code, _) => (code, error.param),
        };
        self.object("error", |row| {
            row.field("message", &error.message);
            row.field("type", kind_of_error);
            row.field("param", &param);
            row.field("code", code);
        });
    }
}

/// The likeliest tokens of a position in their order, then the one that is there if it is not
/// among them.
fn distinct(position: &PositionLogprobs) -> impl Iterator<Item = &TokenLogprob> {
    let token = &position.token;
    let is_among = position.top.iter().any(|top| top.token_id == token.token_id);
    position.top.iter().chain((!is_among).then_some(token))
}

pub(super) fn finite(token: &TokenLogprob) -> f32 {
    token.logprob.max(LEAST_LOGPROB)
}

/// OpenAI's word for why a completion ended: of those that its clients know.
pub(super) fn finish_reason(completion: &CompletionOutput) -> &'static str {
    match (completion.finish_reason, &completion.stop_reason) {
        (FinishReason::Length, _) => "length",
        // Its form was not whole yet, at a stop string, or at its last token.
        (FinishReason::Incomplete, None) => "length",
        // An aborted row has no line, and one with an error is an error.
        (FinishReason::Incomplete | FinishReason::Stop | FinishReason::Error, _) => "stop",
    }
}
