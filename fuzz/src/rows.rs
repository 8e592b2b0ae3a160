//! An input through reader, parser and output, with answers that are made up: what the targets of
//! rows have in common.

use std::io::Cursor;

use serde_json::de::IoRead;
use serde_json::value::RawValue;
use vllm_batch::cli::input::fields::Passthrough;
use vllm_batch::cli::input::reader::{InputError, Layout, Records};
use vllm_batch::cli::input::row::{RowOptions, RowParser};
use vllm_batch::cli::input::row_error::RowError;
use vllm_batch::cli::output::format_settings::Detail;
use vllm_batch::cli::output::{Asked, JsonFormat, PooledForm, RowFormat, RunFacts, Tokens};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    CompletionOutput, FinishReason, PositionLogprobs, RequestOutput, SamplingParams, StopReason,
    TokenLogprob,
};
use vllm_batch::engine::api::sampling_params::UNLIMITED_LOGPROBS;
use vllm_batch::engine::text::AnswerParser;

/// Longer inputs show nothing that these do not.
pub const MAX_INPUT: usize = 16 << 10;

/// Longest line of the targets: within reach of their inputs.
pub const MAX_LINE: usize = 1024;

const VOCAB_SIZE: usize = 1000;

/// How many records an input had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Rows, bad ones included.
    pub rows: u64,
    /// Blank lines.
    pub blank_lines: u64,
}

/// Whether the reader would decompress an input. A few bytes may hold gigabytes, so the targets
/// take short ones only.
pub fn is_compressed(input: &[u8]) -> bool {
    let is_skippable = matches!(input, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
    input.starts_with(b"\x1f\x8b") || input.starts_with(b"\x28\xb5\x2f\xfd") || is_skippable
}

/// Runs an input as `run` does, and checks that every row gives one line of JSON, in order. `see`
/// gets what a row shows again, and its line.
pub fn run(
    input: &[u8],
    layout: impl Into<Layout>,
    options: &RowOptions,
    output: RowFormat,
    see: &mut dyn FnMut(&Passthrough, &[u8]),
) -> Result<Counts, InputError> {
    let input = Box::new(Cursor::new(input.to_vec()));
    let layout: Layout = layout.into();
    let mut records = Records::open(input, layout, MAX_LINE)?;
    let mut parser = RowParser::new(&mut records, options)?;
    let (mut rows, mut last_line) = (0, 0);
    for record in records.by_ref() {
        let record = record?;
        assert!(record.line > last_line, "line {} after {last_line}", record.line);
        last_line = record.line;
        let (index, line, passthrough, form, result) = match parser.parse(record)? {
            Ok(row) => {
                let params = row.overrides.apply(&SamplingParams::default()).and_then(|params| {
                    params.verify(VOCAB_SIZE, UNLIMITED_LOGPROBS)?;
                    Ok(params.normalized())
                });
                let result = params
                    .map(|params| answer(&row.prompt, &params))
                    .map_err(|error| RowError::from_request(&error, row.line));
                (row.index, row.line, row.passthrough, row.answer_form, result)
            }
            Err(bad) => (bad.index, bad.error.line, bad.passthrough, None, Err(bad.error)),
        };
        assert_eq!((index, line), (rows, last_line), "a row is in another place");
        rows += 1;
        let mut text = Vec::new();
        let tokens = Tokens { text: &|id| format!("<{id}\n>"), num_reasoning: &|ids, _| ids.len() };
        let asked = Asked { passthrough: &passthrough, form: form.as_ref() };
        output.format_row(asked, result.as_ref(), &tokens, &mut text);
        see(&passthrough, &text);
    }
    Ok(Counts { rows, blank_lines: records.blank_lines() })
}

/// JSON lines, as the flags `--output-format simple`, `full` and none ask for them.
pub fn json_format(choice: u8) -> RowFormat {
    let detail = [Detail::Auto, Detail::Full, Detail::Simple][usize::from(choice % 3)];
    let facts = RunFacts { model: "m\"\n".to_owned(), created: 1, system_fingerprint: None };
    let (out_field, parser) = ("response".to_owned(), AnswerParser::default());
    let (pooled, more_fields) = (PooledForm::Vectors, Vec::new());
    RowFormat::Json(JsonFormat {
        out_field,
        detail,
        facts,
        parser,
        is_answer_alone: false,
        pooled,
        more_fields,
    })
}

/// Fails unless a row is one line that holds one JSON object and nothing else.
pub fn assert_one_json_line(line: &[u8]) {
    let shown = String::from_utf8_lossy(line);
    let (end, inner) = line.split_last().expect("a row is not empty");
    assert!(*end == b'\n' && !inner.contains(&b'\n'), "not one line: {shown}");
    assert!(inner.starts_with(b"{"), "not an object: {shown}");
    let mut reader = serde_json::Deserializer::new(IoRead::new(inner));
    let value = <Box<RawValue> as serde::Deserialize>::deserialize(&mut reader);
    let end = value.and_then(|_| reader.end());
    end.unwrap_or_else(|error| panic!("not JSON: {error}: {shown}"));
}

/// A completion whose text is the prompt, with as much beside it as the parameters ask for.
fn answer(prompt: &Prompt, params: &SamplingParams) -> RequestOutput {
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::TokenIds(ids) => format!("{ids:?}"),
        Prompt::Messages(chat) => chat.messages.to_string(),
        other => format!("{other:?}"),
    };
    let token = |token_id, logprob| TokenLogprob { token_id, logprob, rank: 1 };
    let position = || PositionLogprobs {
        token: token(3, f32::NEG_INFINITY),
        top: vec![token(4, -0.5), token(5, -0.75)],
    };
    let completion = |index| CompletionOutput {
        index,
        text: text.clone(),
        token_ids: vec![3],
        cumulative_logprob: params.logprobs.map(|_| -1.5),
        logprobs: params.logprobs.map(|_| vec![position()]),
        finish_reason: if index == 0 { FinishReason::Stop } else { FinishReason::Length },
        stop_reason: params.stop.first().cloned().map(StopReason::Text),
        is_complete: true,
        error: None,
    };
    RequestOutput {
        request_id: 0,
        finished: true,
        deltas: Vec::new(),
        prompt_token_ids: vec![1, 2],
        prompt_logprobs: params.prompt_logprobs.map(|_| vec![None, Some(position())]),
        outputs: (0..params.n.min(3)).map(completion).collect(),
        scored: None,
        num_cached_tokens: 0,
    }
}
