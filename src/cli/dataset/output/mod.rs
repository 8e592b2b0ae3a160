//! Rows out: the input's fields in their order, then the answer or the error; or lines as OpenAI's
//! and Anthropic's batch APIs give them. Knows a file by its name only.

mod anthropic;
pub mod anthropic_events;
#[cfg(test)]
mod batch_tests;
#[cfg(test)]
mod chat_tests;
#[cfg(test)]
mod chunk_tests;
mod csv;
mod finished;
pub mod format_settings;
mod growing;
mod likelihoods;
pub mod line_breaks;
pub mod npy;
#[cfg(test)]
mod odd_inputs;
mod openai;
pub mod openai_chunks;
pub mod parquet;
mod pooled;
pub mod response;
pub mod response_events;
mod responses;
pub mod row_format;
mod scores;
mod shown;
#[cfg(test)]
mod tests;
mod transcriptions;

use std::borrow::Cow;

use serde::Serialize;

pub use self::csv::CsvFormat;
pub use self::finished::{FinishedRow, FinishedRows, csv_record_end};
use self::format_settings::Detail;
pub use self::pooled::PooledForm;
pub use self::row_format::{FileFormat, JsonFormat, RowFormat};
use crate::input::batch_line::{BatchKind, RowDigest};
use crate::input::fields::{Field, Passthrough};
use crate::input::row::are_functions;
use crate::input::row_error::RowError;
use vllm_batch_api::request::{
    CompletionOutput, PositionLogprobs, RequestOutput, SamplingParams, StopReason, TokenLogprob,
};
use vllm_batch_text::{AnswerForm, AnswerParser};

/// Fields that every row may get, besides the one with the text. An input's own field of such a
/// name is kept as `input_<name>`. `prompt_token_ids` is not among them: where the input has it, it
/// says the same, and ours is left out.
const RESERVED: &[&str] = &["finish_reason", "usage", "error", "outputs", "prompt_logprobs"];

/// Fields with tools, as JSON writes their names.
const TOOLS: [&str; 2] = ["\"tools\"", "\"functions\""];

/// Values that all batch lines of a run share. They come from outside, so that a row's bytes do
/// not depend on when it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunFacts {
    /// As `--model` names it.
    pub model: String,
    /// When the run began, in seconds since 1970.
    pub created: i64,
    /// What else an answer is a function of.
    pub system_fingerprint: Option<String>,
}

/// Options of an output row.
pub struct OutputOptions<'a> {
    /// Name of the field with the text (`--out-field`).
    pub out_field: &'a str,
    /// Names of more fields that rows get.
    pub more_fields: &'a [&'a str],
    /// Whether every output is written.
    pub detail: Detail,
    /// Write `usage.cached_tokens` (`--usage-cached`). It depends on scheduling, and a run must
    /// give the same bytes every time, so it is not written by default.
    pub usage_cached: bool,
    /// Facts of batch lines.
    pub facts: &'a RunFacts,
    /// Splits the answers of chats.
    pub parser: &'a AnswerParser,
    /// By the model's tokenizer.
    pub tokens: &'a Tokens<'a>,
}

/// Tokens that rows show.
pub struct Tokens<'a> {
    /// Text of a token, for logprobs.
    pub text: &'a dyn Fn(u32) -> String,
    /// Number of an answer's tokens that are thinking.
    pub num_reasoning: &'a dyn Fn(&[u32], &AnswerForm) -> usize,
}

impl Tokens<'_> {
    /// Tokens of rows that show none.
    fn none() -> Self {
        Self { text: &|_| String::new(), num_reasoning: &|_, _| 0 }
    }
}

/// A row, and what its answer may be.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// Part of the input row that the output shows.
    pub passthrough: &'a Passthrough,
    /// Form of a chat's answer.
    pub form: Option<&'a AnswerForm>,
}

/// Appends one JSON row, newline included. A request whose completions carry an error is an error
/// row.
pub fn format_row(
    Asked { passthrough, form }: Asked<'_>,
    result: Result<&RequestOutput, &RowError>,
    options: &OutputOptions<'_>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let mut row = RowWriter { out, options, form };
    let result = resolve(result);
    row.out.push(b'{');
    match passthrough {
        Passthrough::Batch(line) if line.kind == BatchKind::Message => {
            row.anthropic_line(line, result);
        }
        Passthrough::Batch(line) => row.openai_line(line, result),
        _ => {
            row.input(passthrough);
            match result {
                Ok(output) => row.answer(output, passthrough),
                Err(error) => row.error(&error),
            }
        }
    }
    row.out.extend_from_slice(b"}\n");
    if matches!(passthrough, Passthrough::Batch(_)) {
        line_breaks::escape(out, start);
    }
}

/// The parameter, if any, that asks for more than the text of one completion.
fn asks_for_more_than_text(params: &SamplingParams) -> Option<&'static str> {
    let asked = [
        ("n", params.n > 1),
        ("logprobs", params.logprobs.is_some()),
        ("prompt_logprobs", params.prompt_logprobs.is_some()),
    ];
    asked.into_iter().find(|(_, is_asked)| *is_asked).map(|(name, _)| name)
}

/// Appends the text of an answer, a line break at its end, and nothing else: no thinking. An error
/// has none.
pub fn format_answer(
    Asked { form, .. }: Asked<'_>,
    result: Result<&RequestOutput, &RowError>,
    options: &OutputOptions<'_>,
    out: &mut Vec<u8>,
) {
    let Ok(output) = resolve(result) else { return };
    let row = RowWriter { out, options, form };
    let Some(completion) = output.outputs.first() else { return };
    let shown = row.shown(completion);
    let text = shown.content.as_deref().unwrap_or_default();
    row.out.extend_from_slice(text.as_bytes());
    if !text.ends_with('\n') {
        row.out.push(b'\n');
    }
}

/// Appends the beginning of a JSON row: what it shows of its input.
pub fn format_input(passthrough: &Passthrough, options: &OutputOptions<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    RowWriter { out, options, form: None }.input(passthrough);
}

/// The answer, or the error of the row or of its request.
fn resolve<'a>(
    result: Result<&'a RequestOutput, &'a RowError>,
) -> Result<&'a RequestOutput, Cow<'a, RowError>> {
    let output = result.map_err(Cow::Borrowed)?;
    // Where the row is does not appear in its output.
    RowError::from_output(output, 0).map_or(Ok(output), |error| Err(Cow::Owned(error)))
}

/// Whether a field of the input is named like one of ours. Names of parts are ours only where an
/// answer may have them: for calls that is in rows that bring tools.
fn is_ours(
    name: &str,
    passthrough: &Passthrough,
    out_fields: &[&str],
    parser: &AnswerParser,
) -> bool {
    match name {
        _ if out_fields.contains(&name) => true,
        // Harmony's answers have it by either parser.
        "reasoning" => parser.names().0 != "none" || parser.needs_special_tokens_to_think(),
        "tool_calls" => match passthrough {
            Passthrough::Json(fields) => {
                let is_request = |name| fields.get(name).is_some_and(|json| json.starts_with('{'));
                // Messages inside of a field may have them beside them.
                let has_inside = |field: Field<'_>| {
                    let is_of = |name| field.value.contains(name);
                    field.value.starts_with(['{', '[']) && TOOLS.into_iter().any(is_of)
                };
                are_functions(fields)
                    || is_request("body")
                    || is_request("params")
                    || fields.iter().any(has_inside)
            }
            Passthrough::Cells { .. } | Passthrough::Batch(_) => false,
        },
        "language" | "segments" if parser.is_of_transcripts() => true,
        _ => RESERVED.contains(&name),
    }
}

/// Names of input fields that are also ours; they appear as `input_<name>`. Warn once about them.
/// `out_fields`: that of the answer, and what this run has beside it.
pub fn collisions(
    passthrough: &Passthrough,
    out_fields: &[&str],
    parser: &AnswerParser,
) -> Vec<String> {
    let is_ours = |name: &str| is_ours(name, passthrough, out_fields, parser);
    match passthrough {
        Passthrough::Json(fields) => {
            fields.iter().map(|f| f.name.into_owned()).filter(|name| is_ours(name)).collect()
        }
        Passthrough::Cells { names, .. } => {
            names.iter().filter(|name| is_ours(name)).cloned().collect()
        }
        Passthrough::Batch(_) => Vec::new(),
    }
}

/// A name for an input field whose own is taken: `input_` before it, until no other field has it.
pub fn kept_name(name: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut kept = format!("input_{name}");
    while is_taken(&kept) {
        kept.insert_str(0, "input_");
    }
    kept
}

/// What rows call a column of a Parquet input; None: that may be another name in another row.
fn shown_name(name: &str, out_fields: &[&str], is_taken: &dyn Fn(&str) -> bool) -> Option<String> {
    match name {
        "reasoning" | "tool_calls" => None,
        _ if out_fields.contains(&name) || RESERVED.contains(&name) => {
            Some(kept_name(name, is_taken))
        }
        _ => Some(name.to_owned()),
    }
}

/// Appends the parts of one row.
struct RowWriter<'a> {
    out: &'a mut Vec<u8>,
    options: &'a OutputOptions<'a>,
    /// Form of the row's answer; `None`: a text that is completed.
    form: Option<&'a AnswerForm>,
}

impl RowWriter<'_> {
    fn input(&mut self, passthrough: &Passthrough) {
        let OutputOptions { out_field, more_fields, parser, .. } = *self.options;
        let out_fields = [&[out_field], more_fields].concat();
        let is_ours = |name: &str| is_ours(name, passthrough, &out_fields, parser);
        match passthrough {
            Passthrough::Json(fields) => {
                for field in fields.iter() {
                    match is_ours(&field.name) {
                        true => self.key(&kept_name(&field.name, |n| fields.get(n).is_some())),
                        false => self.raw_key(field.raw_name),
                    }
                    self.out.extend_from_slice(field.value.as_bytes());
                }
            }
            Passthrough::Cells { names, cells } => {
                let is_taken = |wanted: &str| names.iter().any(|name| name == wanted);
                for (name, cell) in names.iter().zip(cells) {
                    match is_ours(name) {
                        true => self.key(&kept_name(name, is_taken)),
                        false => self.key(name),
                    }
                    self.value(cell);
                }
            }
            Passthrough::Batch(_) => {}
        }
    }

    fn answer(&mut self, output: &RequestOutput, passthrough: &Passthrough) {
        let digest = shown::digest(passthrough);
        let first = output.outputs.first();
        let shown = first.map(|completion| self.shown(completion));
        self.field(
            self.options.out_field,
            &shown.as_ref().and_then(|shown| shown.content.as_deref()),
        );
        if let Some(shown) = &shown {
            self.parts(shown, digest, 0);
        }
        if let (Some(completion), Some(shown)) = (first, &shown) {
            self.transcript(completion, shown);
        }
        let ends_in_calls = shown.is_some_and(|shown| shown.ends_in_calls);
        self.field(
            "finish_reason",
            &first.map(|completion| match ends_in_calls {
                true => "tool_calls",
                false => completion.finish_reason.name(),
            }),
        );
        self.usage(output);
        if let Some(scored) = &output.scored {
            return self.scored(scored);
        }
        let has_logprobs = output.outputs.iter().any(|completion| completion.logprobs.is_some());
        let has_more = output.outputs.len() > 1 || has_logprobs || output.prompt_logprobs.is_some();
        let has_detail = match self.options.detail {
            Detail::Auto => has_more,
            Detail::Full => true,
            Detail::Simple => false,
        };
        if !has_detail {
            return;
        }
        self.key("outputs");
        self.list(&output.outputs, |row, completion| row.completion(completion, digest));
        let input_has_ids = match passthrough {
            Passthrough::Json(fields) => fields.get("prompt_token_ids").is_some(),
            Passthrough::Cells { names, .. } => names.iter().any(|n| n == "prompt_token_ids"),
            Passthrough::Batch(_) => false,
        };
        if !input_has_ids {
            self.field("prompt_token_ids", &output.prompt_token_ids);
        }
        if let Some(positions) = &output.prompt_logprobs {
            self.key("prompt_logprobs");
            self.list(positions, |row, position| match position {
                Some(position) => row.position(position),
                None => row.value(&()),
            });
        }
    }

    fn usage(&mut self, output: &RequestOutput) {
        let generated = output.num_output_tokens();
        self.object("usage", |row| {
            row.field("prompt_tokens", &output.num_prompt_tokens());
            row.field("completion_tokens", &generated);
            if row.options.usage_cached {
                row.field("cached_tokens", &output.num_cached_tokens);
            }
        });
    }

    /// The whole text, and its parts where it has any.
    fn completion(&mut self, completion: &CompletionOutput, digest: RowDigest) {
        self.out.push(b'{');
        self.field("index", &completion.index);
        self.field("text", &completion.text);
        let shown = self.shown(completion);
        if shown.has_parts() {
            self.field("content", &shown.content);
            self.parts(&shown, digest, completion.index);
        }
        self.field("token_ids", &completion.token_ids);
        self.field("finish_reason", completion.finish_reason.name());
        match &completion.stop_reason {
            None => self.field("stop_reason", &()),
            Some(StopReason::TokenId(id)) => self.field("stop_reason", id),
            Some(StopReason::Text(text)) => self.field("stop_reason", text),
        }
        self.field("cumulative_logprob", &completion.cumulative_logprob);
        self.key("logprobs");
        match &completion.logprobs {
            None => self.value(&()),
            Some(positions) => self.list(positions, |row, position| row.position(position)),
        }
        self.out.push(b'}');
    }

    fn position(&mut self, position: &PositionLogprobs) {
        self.out.push(b'{');
        self.token(&position.token);
        self.field("rank", &position.token.rank);
        self.top_logprobs(&position.top, Self::token);
        self.out.push(b'}');
    }

    fn top_logprobs(&mut self, top: &[TokenLogprob], token: fn(&mut Self, &TokenLogprob)) {
        self.key("top_logprobs");
        self.list(top, |row, entry| {
            row.out.push(b'{');
            token(row, entry);
            row.out.push(b'}');
        });
    }

    /// Numbers are the shortest that give the same f32 again; minus infinity has no JSON and is
    /// null.
    fn token(&mut self, token: &TokenLogprob) {
        self.field("token_id", &token.token_id);
        self.field("token", &(self.options.tokens.text)(token.token_id));
        self.field("logprob", &token.logprob);
    }

    fn error(&mut self, error: &RowError) {
        self.field(self.options.out_field, &());
        self.field("finish_reason", "error");
        self.object("error", |row| {
            row.field("code", error.code);
            row.field("message", &error.message);
        });
    }

    /// A field that holds an object.
    fn object(&mut self, name: &str, fields: impl FnOnce(&mut Self)) {
        self.key(name);
        self.out.push(b'{');
        fields(self);
        self.out.push(b'}');
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.out.push(b'[');
        for (index, value) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            item(self, value);
        }
        self.out.push(b']');
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.key(name);
        self.value(value);
    }

    fn key(&mut self, name: &str) {
        self.separate();
        self.value(name);
        self.out.push(b':');
    }

    fn raw_key(&mut self, raw_name: &str) {
        self.separate();
        self.out.extend_from_slice(raw_name.as_bytes());
        self.out.push(b':');
    }

    fn separate(&mut self) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        serde_json::to_writer(&mut *self.out, value).expect("plain values into memory");
    }
}
