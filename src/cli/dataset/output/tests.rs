//! Output rows as users see them, to the byte.

use std::io::Cursor;
use std::sync::Arc;

use super::*;
use crate::input::fields::JsonFields;
use crate::input::reader::{InputFormat, Records};
use vllm_batch_api::request::{FinishReason, RequestError};

pub(super) fn token(token_id: u32, logprob: f32, rank: u32) -> TokenLogprob {
    TokenLogprob { token_id, logprob, rank }
}

pub(super) fn completion(index: u32, text: &str) -> CompletionOutput {
    CompletionOutput {
        index,
        text: text.to_owned(),
        token_ids: vec![23, 1],
        cumulative_logprob: None,
        logprobs: None,
        finish_reason: FinishReason::Stop,
        stop_reason: None,
        is_complete: true,
        error: None,
    }
}

pub(super) fn output(outputs: Vec<CompletionOutput>) -> RequestOutput {
    RequestOutput {
        request_id: 0,
        finished: true,
        deltas: Vec::new(),
        prompt_token_ids: vec![0, 17, 9],
        prompt_logprobs: None,
        outputs,
        scored: None,
        num_cached_tokens: 2,
    }
}

fn json(text: &str) -> Passthrough {
    Passthrough::Json(JsonFields::parse(text.to_owned(), 1).expect("valid JSON"))
}

/// `<id>` is the text of a token, and all tokens are thinking.
pub(super) const TOKENS: Tokens<'static> =
    Tokens { text: &|id| format!("<{id}>"), num_reasoning: &|ids, _| ids.len() };

fn row(
    passthrough: &Passthrough,
    result: Result<&RequestOutput, &RowError>,
    change: impl FnOnce(&mut OutputOptions<'_>),
) -> String {
    let parser = AnswerParser::default();
    let facts = RunFacts::default();
    let mut options = OutputOptions {
        out_field: "response",
        more_fields: &[],
        detail: Detail::Auto,
        usage_cached: false,
        facts: &facts,
        parser: &parser,
        tokens: &TOKENS,
    };
    change(&mut options);
    let mut out = b"before\n".to_vec();
    format_row(Asked { passthrough, form: None }, result, &options, &mut out);
    let out = String::from_utf8(out).expect("output is UTF-8");
    let line = out.strip_prefix("before\n").and_then(|row| row.strip_suffix('\n'));
    line.expect("one line, appended").to_owned()
}

#[test]
fn the_row_of_the_handbook() {
    let input = json(r#"{"id":7,"prompt":"2+3=","answer":"5"}"#);
    let answer = output(vec![completion(0, "5")]);
    assert_eq!(
        row(&input, Ok(&answer), |_| {}),
        concat!(
            r#"{"id":7,"prompt":"2+3=","answer":"5","response":"5","finish_reason":"stop","#,
            r#""usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
        )
    );
    assert_eq!(
        row(&input, Ok(&answer), |options| {
            options.out_field = "answer";
            options.usage_cached = true;
        }),
        concat!(
            r#"{"id":7,"prompt":"2+3=","input_answer":"5","answer":"5","#,
            r#""finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2,"#,
            r#""cached_tokens":2}}"#,
        )
    );
}

#[test]
fn outputs_follow_when_there_is_more_to_say() {
    let mut first = completion(0, "5");
    first.cumulative_logprob = Some(-0.2);
    first.logprobs = Some(vec![PositionLogprobs {
        token: token(23, -0.1, 1),
        top: vec![token(23, -0.1, 1), token(4, f32::NEG_INFINITY, 9)],
    }]);
    let logprobs = row(&json("{}"), Ok(&output(vec![first])), |_| {});
    assert_eq!(
        logprobs,
        concat!(
            r#"{"response":"5","finish_reason":"stop","usage":{"prompt_tokens":3,"#,
            r#""completion_tokens":2},"outputs":[{"index":0,"text":"5","token_ids":[23,1],"#,
            r#""finish_reason":"stop","stop_reason":null,"cumulative_logprob":-0.2,"#,
            r#""logprobs":[{"token_id":23,"token":"<23>","logprob":-0.1,"rank":1,"#,
            r#""top_logprobs":[{"token_id":23,"token":"<23>","logprob":-0.1},"#,
            r#"{"token_id":4,"token":"<4>","logprob":null}]}]}],"prompt_token_ids":[0,17,"#,
            r#"9]}"#,
        )
    );
    let mut second = completion(1, "\u{2028}\"");
    second.finish_reason = FinishReason::Length;
    second.stop_reason = Some(StopReason::Text("END".to_owned()));
    let mut third = completion(2, "");
    third.stop_reason = Some(StopReason::TokenId(5));
    let several = row(&json("{}"), Ok(&output(vec![completion(0, "5"), second, third])), |_| {});
    assert_eq!(
        several,
        concat!(
            concat!(
                r#"{"response":"5","finish_reason":"stop","usage":{"prompt_tokens":3,"#,
                r#""completion_tokens":6},"outputs":[{"index":0,"text":"5","token_ids":[23,1],"#,
                r#""finish_reason":"stop","stop_reason":null,"cumulative_logprob":null,"#,
                r#""logprobs":null},{"index":1,"text":""#,
            ),
            "\u{2028}",
            concat!(
                r#"\"","token_ids":[23,1],"finish_reason":"length","stop_reason":"END","#,
                r#""cumulative_logprob":null,"logprobs":null},{"index":2,"text":"","#,
                r#""token_ids":[23,1],"finish_reason":"stop","stop_reason":5,"#,
                r#""cumulative_logprob":null,"logprobs":null}],"prompt_token_ids":[0,17,9]}"#,
            )
        )
    );
}

#[test]
fn full_rows_do_not_repeat_what_the_input_has() {
    let answer = output(vec![completion(0, "5")]);
    let full =
        |input: &str| row(&json(input), Ok(&answer), |options| options.detail = Detail::Full);
    let rest = concat!(
        r#""response":"5","finish_reason":"stop","usage":{"prompt_tokens":3,"#,
        r#""completion_tokens":2},"outputs":[{"index":0,"text":"5","token_ids":[23,1],"#,
        r#""finish_reason":"stop","stop_reason":null,"cumulative_logprob":null,"#,
        r#""logprobs":null}]"#,
    );
    assert_eq!(full(r#"{"a":1}"#), format!("{{\"a\":1,{rest},\"prompt_token_ids\":[0,17,9]}}"));
    let ids = r#""prompt_token_ids":[0, 17, 9]"#;
    assert_eq!(full(&format!("{{{ids}}}")), format!("{{{ids},{rest}}}"));
}

#[test]
fn simple_rows_have_one_answer_whatever_was_asked_for() {
    let several = output(vec![completion(0, "5"), completion(1, "6")]);
    assert_eq!(
        row(&json("{}"), Ok(&several), |options| options.detail = Detail::Simple),
        concat!(
            r#"{"response":"5","finish_reason":"stop","usage":{"prompt_tokens":3,"#,
            r#""completion_tokens":4}}"#,
        )
    );
}

#[test]
fn prompt_logprobs_are_shown_when_asked_for() {
    let mut answer = output(vec![completion(0, "5")]);
    let position = PositionLogprobs { token: token(17, -1.5, 3), top: Vec::new() };
    answer.prompt_logprobs = Some(vec![None, Some(position)]);
    let line = row(&json(r#"{"prompt_logprobs":0}"#), Ok(&answer), |_| {});
    assert!(line.starts_with(r#"{"input_prompt_logprobs":0,"response":"5","#), "{line}");
    let expected = concat!(
        r#","prompt_token_ids":[0,17,9],"prompt_logprobs":[null,{"token_id":17,"#,
        r#""token":"<17>","logprob":-1.5,"rank":3,"top_logprobs":[]}]}"#,
    );
    assert!(line.ends_with(expected), "{line}");
}

#[test]
fn error_rows_of_the_parser_and_of_the_engine() {
    let message = "prompt has 5000 tokens, the limit is 4096";
    let expected = concat!(
        r#"{"id":7,"response":null,"finish_reason":"error","error":{"code":"context_length","#,
        r#""message":"prompt has 5000 tokens, the limit is 4096"}}"#
    );
    let error = RowError::new("context_length", 3, message);
    assert_eq!(row(&json(r#"{"id":7}"#), Err(&error), |_| {}), expected);
    let mut failed = completion(1, "half");
    failed.finish_reason = FinishReason::Error;
    failed.error = Some(RequestError::new("context_length", message));
    let answer = output(vec![completion(0, "5"), failed]);
    assert_eq!(row(&json(r#"{"id":7}"#), Ok(&answer), |_| {}), expected);
}

#[test]
fn collisions_are_named() {
    let input = json(r#"{"prompt":"a","response":1,"usage":2,"finish_reasons":3}"#);
    let collisions = |out_field| collisions(&input, &[out_field], &AnswerParser::default());
    assert_eq!(collisions("response"), ["response", "usage"]);
    assert_eq!(collisions("prompt"), ["prompt", "usage"]);
}

fn cells(names: &[&str], cells: &[&str]) -> Passthrough {
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    Passthrough::Cells { names: Arc::from(owned(names)), cells: owned(cells) }
}

#[test]
fn csv_rows_keep_their_columns_and_line_ends() {
    let answer = output(vec![completion(0, "a,\"b\"\n=1")]);
    let error = RowError::new("bad_csv", 3, "too few");
    let names = ["id", "error", "text"].map(str::to_owned);
    let csv = |delimiter, crlf| {
        let (out_field, parser) = ("response".to_owned(), AnswerParser::default());
        let format = CsvFormat {
            delimiter,
            crlf,
            is_marked: false,
            out_field,
            is_simple: false,
            parser,
            pooled: None,
        };
        let mut out = Vec::new();
        assert_eq!(format.collisions(&names), ["error"]);
        format.format_header(&names, &mut out);
        let of = |values: [&str; 3]| cells(&["id", "error", "text"], &values);
        let (first, second) = (of(["7", "", "x\ry"]), of(["8", "", ""]));
        let asked = |passthrough| Asked { passthrough, form: None };
        format.format_row(asked(&first), Ok(&answer), &mut out);
        format.format_row(asked(&second), Err(&error), &mut out);
        String::from_utf8(out).expect("output is UTF-8")
    };
    assert_eq!(
        csv(b',', false),
        "id,input_error,text,response,finish_reason,prompt_tokens,completion_tokens,error\n\
         7,,\"x\ry\",\"a,\"\"b\"\"\n=1\",stop,3,2,\n8,,,,error,,,bad_csv: too few\n"
    );
    assert_eq!(
        csv(b'\t', true),
        "id\tinput_error\ttext\tresponse\tfinish_reason\tprompt_tokens\tcompletion_tokens\t\
         error\r\n\
         7\t\t\"x\ry\"\t\"a,\"\"b\"\"\n=1\"\tstop\t3\t2\t\r\n\
         8\t\t\t\terror\t\t\tbad_csv: too few\r\n"
    );
}

#[test]
fn a_csv_never_begins_like_another_kind_of_file() {
    let format = CsvFormat {
        delimiter: b',',
        crlf: false,
        is_marked: false,
        out_field: "response".to_owned(),
        is_simple: false,
        parser: AnswerParser::default(),
        pooled: None,
    };
    let marks = ["\u{feff}x", "PK\u{3}\u{4}", "PAR1\u{15}", "BZh9", "P*M\u{18}", "GIF8", "GGUF"];
    for first in marks.into_iter().chain(["PAR1", "{", "column_1", "a"]) {
        // With `a` before it: the length of a safetensors file's header, and its beginning.
        let names = [first, "\0\0\0\0\0\0{", "prompt"].map(str::to_owned);
        let mut out = Vec::new();
        format.format_header(&names, &mut out);
        // A row that is not text says no more of what the file is.
        out.extend_from_slice(b"\0,,\n");
        let again = Records::open(Box::new(Cursor::new(out)), InputFormat::Csv, 1000);
        let header = again.expect(first).headers().expect("a CSV has a header");
        assert_eq!(header[..3], names);
    }
}

#[test]
fn csv_rows_can_be_written_as_json() {
    let line = row(
        &cells(&["id", "error"], &["7", "e\"\n"]),
        Ok(&output(vec![completion(0, "5")])),
        |_| {},
    );
    assert_eq!(
        line,
        concat!(
            r#"{"id":"7","input_error":"e\"\n","response":"5","finish_reason":"stop","#,
            r#""usage":{"prompt_tokens":3,"completion_tokens":2}}"#,
        )
    );
}
