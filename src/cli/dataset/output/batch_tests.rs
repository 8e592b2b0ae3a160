//! Lines of batch APIs as their readers see them, to the byte.

use super::tests::{TOKENS, completion, output, token};
use super::*;
use crate::input::batch_line::BatchLine;
use crate::input::row_error::code;
use vllm_batch_api::request::{FinishReason, RequestError};

/// The line of a result, with facts of a run; `<id>` is the text of a token.
fn shown(kind: BatchKind, result: Result<&RequestOutput, &RowError>) -> String {
    shown_with(kind, result, &TOKENS)
}

fn shown_with(
    kind: BatchKind,
    result: Result<&RequestOutput, &RowError>,
    tokens: &Tokens<'_>,
) -> String {
    let facts = RunFacts {
        model: "m".to_owned(),
        created: 1711652795,
        system_fingerprint: Some("fp_123".to_owned()),
    };
    let options = OutputOptions {
        out_field: "response",
        more_fields: &[],
        detail: Detail::Auto,
        usage_cached: false,
        facts: &facts,
        parser: &AnswerParser::default(),
        tokens,
    };
    let passthrough = Passthrough::Batch(BatchLine::new(kind, None, "{}"));
    let mut out = Vec::new();
    let asked = Asked { passthrough: &passthrough, form: None };
    format_row(asked, result, &options, &mut out);
    let out = String::from_utf8(out).expect("output is UTF-8");
    out.strip_suffix('\n').expect("one line").to_owned()
}

#[test]
fn an_answer_of_chat() {
    let mut second = completion(1, "6\"");
    second.finish_reason = FinishReason::Length;
    let answer = output(vec![completion(0, "5"), second]);
    assert_eq!(
        shown(BatchKind::Chat, Ok(&answer)),
        concat!(
            r#"{"id":"batch_req_6f5469db4375af4a","custom_id":null,"response":{"#,
            r#""status_code":200,"request_id":"req_6f5469db4375af4a","body":{"#,
            r#""id":"chatcmpl-6f5469db4375af4a","object":"chat.completion","#,
            r#""created":1711652795,"model":"m","choices":["#,
            r#"{"index":0,"message":{"role":"assistant","content":"5","refusal":null},"logprobs":null,"#,
            r#""finish_reason":"stop"},"#,
            r#"{"index":1,"message":{"role":"assistant","content":"6\"","refusal":null},"logprobs":null,"#,
            r#""finish_reason":"length"}],"#,
            r#""usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7},"#,
            r#""system_fingerprint":"fp_123"}},"error":null}"#,
        )
    );
}

#[test]
fn an_answer_of_completions() {
    let line = shown(BatchKind::Completions, Ok(&output(vec![completion(0, "5")])));
    assert_eq!(
        line,
        concat!(
            r#"{"id":"batch_req_6f5469db4375af4a","custom_id":null,"response":{"#,
            r#""status_code":200,"request_id":"req_6f5469db4375af4a","body":{"#,
            r#""id":"cmpl-6f5469db4375af4a","object":"text_completion","#,
            r#""created":1711652795,"model":"m","choices":["#,
            r#"{"index":0,"text":"5","logprobs":null,"finish_reason":"stop"}],"#,
            r#""usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5},"#,
            r#""system_fingerprint":"fp_123"}},"error":null}"#,
        )
    );
}

fn with_logprobs() -> RequestOutput {
    let mut completion = completion(0, "5");
    completion.logprobs = Some(vec![
        PositionLogprobs {
            token: token(23, -0.5, 2),
            top: vec![token(4, -0.25, 1), token(23, -0.5, 2)],
        },
        PositionLogprobs { token: token(100, f32::NEG_INFINITY, 9), top: vec![token(4, -0.0, 1)] },
    ]);
    output(vec![completion])
}

#[test]
fn logprobs_of_chat_are_a_list_of_tokens() {
    let line = shown(BatchKind::Chat, Ok(&with_logprobs()));
    let expected = concat!(
        r#""logprobs":{"content":["#,
        r#"{"token":"<23>","logprob":-0.5,"bytes":[60,50,51,62],"top_logprobs":["#,
        r#"{"token":"<4>","logprob":-0.25,"bytes":[60,52,62]},"#,
        r#"{"token":"<23>","logprob":-0.5,"bytes":[60,50,51,62]}]},"#,
        r#"{"token":"<100>","logprob":-9999.0,"bytes":[60,49,48,48,62],"top_logprobs":["#,
        r#"{"token":"<4>","logprob":-0.0,"bytes":[60,52,62]}]}],"refusal":null},"#,
        r#""finish_reason":"stop""#,
    );
    assert!(line.contains(expected), "{line}");
}

#[test]
fn logprobs_of_completions_are_lists_side_by_side() {
    let line = shown(BatchKind::Completions, Ok(&with_logprobs()));
    let expected = concat!(
        r#""logprobs":{"tokens":["<23>","<100>"],"token_logprobs":[-0.5,-9999.0],"#,
        r#""top_logprobs":[{"<4>":-0.25,"<23>":-0.5},{"<4>":-0.0,"<100>":-9999.0}],"#,
        r#""text_offset":[0,4]},"finish_reason":"stop""#,
    );
    assert!(line.contains(expected), "{line}");
    // Two ids of the same text: a reader of JSON would see one of them.
    let same = Tokens { text: &|_| "é".to_owned(), ..TOKENS };
    let line = shown_with(BatchKind::Completions, Ok(&with_logprobs()), &same);
    let expected = r#""top_logprobs":[{"é":-0.25},{"é":-0.0}],"text_offset":[0,1]}"#;
    assert!(line.contains(expected), "{line}");
}

#[test]
fn logprobs_of_the_prompt_have_vllms_form() {
    let mut answer = output(vec![completion(0, "5")]);
    let position = PositionLogprobs { token: token(17, -1.5, 3), top: vec![token(4, -0.5, 1)] };
    answer.prompt_logprobs = Some(vec![None, Some(position)]);
    let line = shown(BatchKind::Chat, Ok(&answer));
    let expected = concat!(
        r#""system_fingerprint":"fp_123","prompt_logprobs":[null,"#,
        r#"{"4":{"logprob":-0.5,"rank":1,"decoded_token":"<4>"},"#,
        r#""17":{"logprob":-1.5,"rank":3,"decoded_token":"<17>"}}]}},"error":null}"#,
    );
    assert!(line.ends_with(expected), "{line}");
}

#[test]
fn errors_are_responses_with_a_status() {
    let head = r#"{"id":"batch_req_6f5469db4375af4a","custom_id":null,"response":{"status_code":"#;
    let cases = [
        (
            RowError::new("context_length", 3, "too long"),
            "400",
            r#""type":"invalid_request_error","param":"messages","code":"context_length_exceeded""#,
        ),
        (
            RowError::new("unsupported_url", 3, "too long").of_param("url"),
            "404",
            r#""type":"invalid_request_error","param":"url","code":"unsupported_url""#,
        ),
        (
            RowError::new("non_finite_logits", 3, "too long"),
            "500",
            r#""type":"server_error","param":null,"code":"non_finite_logits""#,
        ),
    ];
    for (error, status, rest) in cases {
        assert_eq!(
            shown(BatchKind::Chat, Err(&error)),
            format!(
                "{head}{status},\"request_id\":\"req_6f5469db4375af4a\",\"body\":{{\"error\":\
                 {{\"message\":\"too long\",{rest}}}}}}},\"error\":null}}"
            )
        );
    }
    let prompt = shown(BatchKind::Completions, Err(&RowError::new("context_length", 3, "x")));
    assert!(prompt.contains(r#""param":"prompt""#), "{prompt}");
    let named = RowError::new("invalid_parameter", 3, "top_p must be in (0, 1], got 2.");
    let named = shown(BatchKind::Chat, Err(&named));
    assert!(named.contains(r#""param":"top_p","code":"invalid_parameter""#), "{named}");
    // A part missing is no answer.
    let mut failed = completion(1, "half");
    failed.finish_reason = FinishReason::Error;
    failed.error = Some(RequestError::new("non_finite_logits", "NaN"));
    let line = shown(BatchKind::Chat, Ok(&output(vec![completion(0, "5"), failed])));
    assert!(line.contains(r#""status_code":500"#), "{line}");
}

#[test]
fn answers_and_errors_of_anthropic() {
    let message = |completion| shown(BatchKind::Message, Ok(&output(vec![completion])));
    assert_eq!(
        message(completion(0, "5")),
        concat!(
            r#"{"custom_id":null,"result":{"type":"succeeded","message":{"#,
            r#""id":"msg_6f5469db4375af4a","type":"message","role":"assistant","#,
            r#""content":[{"type":"text","text":"5"}],"model":"m","stop_reason":"end_turn","#,
            r#""stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":2}}}}"#,
        )
    );
    let mut stopped = completion(0, "5");
    stopped.stop_reason = Some(StopReason::Text("END".to_owned()));
    let stopped = message(stopped);
    assert!(stopped.contains(r#""stop_reason":"stop_sequence","stop_sequence":"END""#));
    let mut cut = completion(0, "5");
    cut.finish_reason = FinishReason::Length;
    assert!(message(cut).contains(r#""stop_reason":"max_tokens","stop_sequence":null"#));
    let error = RowError::new("invalid_prompt", 3, "why");
    assert_eq!(
        shown(BatchKind::Message, Err(&error)),
        concat!(
            r#"{"custom_id":null,"result":{"type":"errored","error":{"type":"error","error":{"#,
            r#""type":"invalid_request_error","message":"why"},"#,
            r#""request_id":"req_6f5469db4375af4a"}}}"#,
        )
    );
    let fault = shown(BatchKind::Message, Err(&RowError::new("non_finite_logits", 3, "NaN")));
    assert!(fault.contains(r#""type":"api_error""#), "{fault}");
}

#[test]
fn rows_that_were_given_up_have_no_response() {
    let row = |kind, code| shown(kind, Err(&RowError::new(code, 3, "why")));
    assert_eq!(
        row(BatchKind::Chat, code::BATCH_CANCELLED),
        concat!(
            r#"{"id":"batch_req_6f5469db4375af4a","custom_id":null,"response":null,"#,
            r#""error":{"code":"batch_cancelled","message":"why"}}"#,
        )
    );
    let expired = row(BatchKind::Embeddings, code::BATCH_EXPIRED);
    assert!(expired.contains(r#""response":null,"error":{"code":"batch_expired""#), "{expired}");
    for (code, kind) in [(code::BATCH_CANCELLED, "canceled"), (code::BATCH_EXPIRED, "expired")] {
        let expected = format!(r#"{{"custom_id":null,"result":{{"type":"{kind}"}}}}"#);
        assert_eq!(row(BatchKind::Message, code), expected);
    }
}

#[test]
fn no_reader_breaks_a_line_of_a_batch() {
    let answer = output(vec![completion(0, "a\u{85}b\u{2028}c\u{2029}é")]);
    for kind in [BatchKind::Chat, BatchKind::Completions, BatchKind::Response, BatchKind::Message] {
        let line = shown(kind, Ok(&answer));
        assert!(line.contains(r"a\u0085b\u2028c\u2029é"), "{line}");
    }
}
