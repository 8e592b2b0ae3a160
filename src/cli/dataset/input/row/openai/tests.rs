//! Batch requests of OpenAI and Anthropic to prompts and parameters, and every way to be refused.

use std::io::Cursor;

use serde_json::json;

use crate::input::batch_line::{BatchKind, BatchLine, BatchLines, Echo};
use crate::input::fields::Passthrough;
use crate::input::reader::{InputFormat, Records};
use crate::input::row::{BadRow, Row, RowOptions, RowParser};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{NumLogprobs, SamplingParams};
use vllm_batch_text::ChatEnding;

fn parse(input: &str, lines: BatchLines) -> Vec<Result<Row, BadRow>> {
    parse_by(input, &RowOptions { lines, ..RowOptions::default() })
}

fn parse_by(input: &str, options: &RowOptions) -> Vec<Result<Row, BadRow>> {
    let input = Box::new(Cursor::new(input.to_owned()));
    let mut records = Records::open(input, InputFormat::Jsonl, 1 << 20).expect("text");
    let mut parser = RowParser::new(&mut records, options).expect("a shape");
    let rows = records.map(|record| parser.parse(record?));
    rows.collect::<Result<_, _>>().expect("a shape")
}

fn one(input: &str) -> Result<Row, Box<BadRow>> {
    parse(input, BatchLines::Own).pop().expect("a row").map_err(Box::new)
}

fn chat(body: &str) -> String {
    format!(
        r#"{{"custom_id":"c","method":"POST","url":"/v1/chat/completions","body":{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{body}}}}}"#
    )
}

fn completions(body: &str) -> String {
    format!(r#"{{"custom_id":"c","url":"/v1/completions","body":{{{body}}}}}"#)
}

fn message(params: &str) -> String {
    format!(
        r#"{{"custom_id":"c","params":{{"model":"m","max_tokens":9,"messages":[{{"role":"user","content":"hi"}}]{params}}}}}"#
    )
}

/// The parameters over a base that says no length.
fn params(row: &str) -> Result<SamplingParams, String> {
    let base = SamplingParams { max_tokens: None, ..SamplingParams::default() };
    let row = one(row).unwrap_or_else(|bad| panic!("{:?}: {row}", bad.error));
    row.overrides.apply(&base).map_err(|error| error.message)
}

fn line(passthrough: &Passthrough) -> &BatchLine {
    match passthrough {
        Passthrough::Batch(line) => line,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_url_says_what_a_row_asks_for() {
    let hi = Prompt::Messages(json!([{"role": "user", "content": "hi"}]).into());
    let text = |text: &str| Prompt::Text(text.to_owned());
    let cases = [
        (chat(""), hi, BatchKind::Chat),
        (completions(r#""prompt":"p\n""#), text("p\n"), BatchKind::Completions),
        (completions(r#""prompt":["p"]"#), text("p"), BatchKind::Completions),
        (completions(r#""prompt":[1, 2]"#), Prompt::TokenIds(vec![1, 2]), BatchKind::Completions),
        (completions(r#""prompt":[[1]]"#), Prompt::TokenIds(vec![1]), BatchKind::Completions),
    ];
    // One file may hold them all.
    let input: String = cases.iter().map(|(row, _, _)| format!("{row}\n")).collect();
    let rows = parse(&input, BatchLines::Own);
    assert_eq!(rows.len(), cases.len());
    for (row, (input, prompt, kind)) in rows.into_iter().zip(cases) {
        let row = row.unwrap_or_else(|bad| panic!("{:?}", bad.error));
        assert_eq!((row.prompt, row.id.as_deref()), (prompt, Some("c")), "{input}");
        let expected = BatchLine::new(kind, Some("c".to_owned()), &input);
        assert_eq!(row.passthrough, Passthrough::Batch(expected));
    }
}

#[test]
fn parameters_are_those_of_the_body() {
    let context = SamplingParams { max_tokens: None, ..SamplingParams::default() };
    assert_eq!(params(&chat("")), Ok(context.clone()));
    let given = r#","max_tokens":3,"max_completion_tokens":7,"stop":["a"],"seed":5,"top_k":4,
        "logit_bias":{"9":1},"user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto",
        "stream":false,"tools":null,"tool_choice":"none","response_format":{"type":"text"},
        "stream_options":null,"parallel_tool_calls":true"#
        .replace('\n', "");
    let expected = SamplingParams {
        max_tokens: Some(7),
        stop: vec!["a".to_owned()],
        seed: Some(5),
        top_k: 4,
        logit_bias: vec![(9, 1.0)],
        ..context.clone()
    };
    assert_eq!(params(&chat(&given)), Ok(expected));
    let completion =
        |logprobs| SamplingParams { max_tokens: Some(16), logprobs, ..context.clone() };
    assert_eq!(params(&completions(r#""prompt":"p""#)), Ok(completion(None)));
    let asked = completions(r#""prompt":"p","logprobs":2,"echo":false,"suffix":null,"best_of":1"#);
    assert_eq!(params(&asked), Ok(completion(Some(NumLogprobs::Top(2)))));
    let asked = message(
        r#","system":[],"temperature":0.5,"top_k":5,"stop_sequences":["a","\""],"metadata":{},
        "thinking":{"type":"disabled"}"#,
    )
    .replace('\n', "");
    let expected = SamplingParams {
        max_tokens: Some(9),
        temperature: 0.5,
        top_k: 5,
        stop: vec!["a".to_owned(), "\"".to_owned()],
        ..context
    };
    assert_eq!(params(&asked), Ok(expected));
    // What a flag or the model says wins over an endpoint's default.
    let base = SamplingParams { max_tokens: Some(99), ..SamplingParams::default() };
    for row in [chat(""), completions(r#""prompt":"p""#)] {
        let applied = one(&row).expect("a row").overrides.apply(&base).expect("no parameters");
        assert_eq!(applied.max_tokens, Some(99));
    }
}

#[test]
fn chat_has_a_switch_for_logprobs_and_a_number() {
    let cases = [
        ("", None),
        (r#","logprobs":true"#, Some(NumLogprobs::Top(0))),
        (r#","logprobs":true,"top_logprobs":3"#, Some(NumLogprobs::Top(3))),
        (r#","logprobs":true,"top_logprobs":null"#, Some(NumLogprobs::Top(0))),
        (r#","logprobs":false"#, None),
        (r#","logprobs":null,"top_logprobs":0"#, None),
    ];
    for (body, expected) in cases {
        assert_eq!(params(&chat(body)).expect(body).logprobs, expected, "{body}");
    }
}

#[test]
fn system_text_of_anthropic_is_the_first_message() {
    let user = json!({"role": "user", "content": "hi"});
    for (system, expected) in [
        (r#","system":"S""#, Some("S")),
        (r#","system":[{"type":"text","text":"S"},{"type":"text","text":"T"}]"#, Some("ST")),
        (r#","system":"""#, None),
        ("", None),
    ] {
        let first = expected.map(|text| json!({"role": "system", "content": text}));
        let messages: serde_json::Value = first.into_iter().chain([user.clone()]).collect();
        let expected = Prompt::Messages(messages.into());
        let row = one(&message(system)).expect("a row");
        assert_eq!(row.prompt, expected, "{system}");
        assert_eq!(line(&row.passthrough).kind, BatchKind::Message);
    }
}

#[test]
fn chats_end_as_their_api_ends_them() {
    let answer = r#"{"role":"assistant","content":"So"}"#;
    let ending = |row: &str| match one(row).expect("a row").prompt {
        Prompt::Messages(chat) => (chat.ending, chat.messages.as_array().unwrap().len()),
        other => panic!("{other:?}"),
    };
    let ended =
        |row: &str| row.replace(r#"content":"hi"}"#, &format!(r#"content":"hi"}},{answer}"#));
    assert_eq!(ending(&ended(&chat(""))), (ChatEnding::NewTurn, 2));
    let open = r#","continue_final_message":true,"add_generation_prompt":false"#;
    assert_eq!(ending(&ended(&chat(open))), (ChatEnding::OpenMessage, 2));
    assert_eq!(ending(&ended(&message(""))), (ChatEnding::OpenMessage, 2));
    let body = r#","reasoning_effort":"high","documents":[{"text":"d"}],"metadata":{},"store":true,"service_tier":"flex""#;
    let Prompt::Messages(chat) = one(&chat(body)).expect("a row").prompt else { panic!() };
    assert_eq!(chat.documents, Some(json!([{"text": "d"}])));
    assert_eq!(chat.kwargs["reasoning_effort"], "high");
}

#[test]
fn a_prompt_that_is_echoed_has_the_log_probabilities_of_the_text() {
    let echoed = |body: &str| {
        let row = one(&completions(body)).expect("a row");
        let Passthrough::Batch(line) = row.passthrough else { panic!() };
        let params = row.overrides.apply(&SamplingParams::default()).unwrap();
        (line.echo, params.prompt_logprobs)
    };
    let text = Some(Echo::Prompt(Some("p".to_owned())));
    assert_eq!(echoed(r#""prompt":"p","echo":true"#), (text.clone(), None));
    let two = Some(NumLogprobs::Top(2));
    assert_eq!(echoed(r#""prompt":["p"],"echo":true,"logprobs":2"#), (text, two));
    let ids = echoed(r#""prompt":[1,2],"echo":true,"logprobs":2"#);
    assert_eq!(ids, (Some(Echo::Prompt(None)), two));
    assert_eq!(echoed(r#""prompt":"p","echo":false,"logprobs":2"#), (None, None));
    let (code, param, _) = refused(&completions(r#""prompt":"p","echo":"yes""#));
    assert_eq!((code, param), ("invalid_parameter", Some("echo")));
}

/// Code, parameter and message of a bad row.
fn refused(row: &str) -> (&'static str, Option<&'static str>, String) {
    // After a row that decides the shape.
    let first = if row.contains("params") { message("") } else { chat("") };
    let bad = one(&format!("{first}\n{row}")).expect_err(row);
    assert_eq!(bad.error.line, 2, "{row}");
    line(&bad.passthrough);
    (bad.error.code, bad.error.param, bad.error.message)
}

#[test]
fn requests_that_cannot_be_honoured_are_refused_by_name() {
    for (body, param) in [
        (r#","stream":true"#, "stream"),
        (r#","tools":[{"type":"custom"}]"#, "tools"),
        (r#","chat_template":"x""#, "chat_template"),
        (r#","guided_json":{}"#, "guided_json"),
        (r#","echo":true"#, "echo"),
        (r#","modalities":["text","audio"]"#, "modalities"),
    ] {
        let (code, found, _) = refused(&chat(body));
        assert_eq!((code, found), ("unsupported_field", Some(param)), "{body}");
    }
    for (body, param) in [
        (r#""prompt":"p","suffix":"s""#, "suffix"),
        (r#""prompt":"p","best_of":2"#, "best_of"),
        (r#""prompt":"p","stream":true"#, "stream"),
        (r#""prompt":"p","tools":[{"type":"function"}]"#, "tools"),
    ] {
        let (code, found, _) = refused(&completions(body));
        assert_eq!((code, found), ("unsupported_field", Some(param)), "{body}");
    }
    assert!(one(&completions(r#""prompt":"p","best_of":2,"n":2"#)).is_ok());
    for (body, param) in [
        (r#","mcp_servers":[{"name":"f"}]"#, "mcp_servers"),
        (r#","stream":true"#, "stream"),
        (r#","n":2"#, "n"),
    ] {
        let (code, found, _) = refused(&message(body));
        assert_eq!((code, found), ("unsupported_field", Some(param)), "{body}");
    }
}

/// Rows with code, parameter and a part of the message.
fn check_refused(cases: &[(String, &str, &str, &str)]) {
    for (row, code, param, message) in cases {
        let found = refused(row);
        assert_eq!((found.0, found.1), (*code, Some(*param)), "{row}: {}", found.2);
        assert!(found.2.contains(message), "{row}: {}", found.2);
    }
}

#[test]
fn wrong_requests_of_anthropic_name_what_is_wrong() {
    check_refused(&[
        (
            message("").replace(r#""hi""#, r#"[{"type":"image","source":{}}]"#),
            "invalid_prompt",
            "messages",
            "has an image whose `source` has no `type`",
        ),
        (
            message(r#","system":[{"type":"document"}]"#),
            "unsupported_field",
            "system",
            "a block of type 'document': only text is supported",
        ),
        (
            message(r#","stop_sequences":"x""#),
            "invalid_parameter",
            "stop_sequences",
            "expected a list of strings",
        ),
    ]);
}

#[test]
fn wrong_requests_name_what_is_wrong() {
    let prompt = |prompt: &str| completions(&format!(r#""prompt":{prompt}"#));
    let chat_url = |fields: &str| format!(r#"{{{fields}"body":{{"messages":[]}}}}"#);
    let cases = [
        (prompt(r#"["a","b"]"#), "several_prompts", "prompt", "a list of 2 prompts"),
        (prompt("[[1],[2],[3]]"), "several_prompts", "prompt", "a list of 3 prompts"),
        (prompt("5"), "invalid_prompt", "prompt", "expected text or token ids, found a number"),
        (prompt("[1,-1]"), "invalid_prompt", "prompt", "neither text nor token ids"),
        (prompt("[[1.5]]"), "invalid_prompt", "prompt", "not token ids"),
        (prompt("null"), "invalid_prompt", "prompt", "missing"),
        (
            completions(r#""prompt":"p","logprobs":true"#),
            "invalid_parameter",
            "logprobs",
            "integer",
        ),
        (chat(r#","logprobs":5"#), "invalid_parameter", "logprobs", "expected true or false"),
        (chat(r#","top_logprobs":5"#), "invalid_parameter", "top_logprobs", "must be set to true"),
        (
            chat(r#","logprobs":true,"top_logprobs":"x""#),
            "invalid_parameter",
            "top_logprobs",
            "expected an integer, found \"x\"",
        ),
        (
            chat_url(r#""custom_id":"a","url":"/v1/embeddings","#),
            "unsupported_url",
            "url",
            "Invalid URL (POST /v1/embeddings)",
        ),
        (chat_url(r#""custom_id":"a","url":7,"#), "row_shape", "url", "found 7"),
        (chat_url(r#""custom_id":"a","#), "row_shape", "url", "missing"),
        (
            chat_url(r#""custom_id":"a","method":"GET","url":"/v1/chat/completions","#),
            "unsupported_method",
            "method",
            "found \"GET\"",
        ),
        (chat_url(r#""url":"/v1/completions","#), "custom_id", "custom_id", "missing"),
        (chat_url(r#""custom_id":{},"url":"u","#), "custom_id", "custom_id", "found an object"),
        (
            chat_url(r#""custom_id":"a","url":"/v1/chat/completions","#),
            "invalid_prompt",
            "messages",
            "body.messages: there is no message to answer",
        ),
    ];
    check_refused(&cases);
    let other = refused(r#"{"custom_id":"a","prompt":"p"}"#);
    let message = "expected OpenAI batch requests as in the first row, found `prompt` text";
    assert_eq!((other.0, other.2.as_str()), ("row_shape", message));
}

#[test]
fn names_are_kept_where_there_is_one() {
    let names = |input: &str, lines| -> Vec<Option<String>> {
        let passthrough = |row: Result<Row, BadRow>| match row {
            Ok(row) => row.passthrough,
            Err(row) => row.passthrough,
        };
        let name = |row| line(&passthrough(row)).custom_id.clone();
        parse(input, lines).into_iter().map(name).collect()
    };
    let some = |name: &str| Some(name.to_owned());
    // Rows before the first readable one are written as it decides.
    let input = [
        "garbage",
        r#"{"custom_id":"cut","url"#,
        &chat(""),
        &chat("").replace(r#""c""#, "17"),
        &chat("").replace(r#""c""#, "null"),
        r#"{"custom_id":"other"}"#,
    ]
    .join("\n");
    let expected = [None, some("cut"), some("c"), some("17"), None, some("other")];
    assert_eq!(names(&input, BatchLines::Own), expected);
    let input = [r#"{"prompt":"a"}"#, r#"{"id":5,"prompt":"a"}"#, "{", r#"{"id":"x"}"#].join("\n");
    let expected = [some("row-0"), some("5"), some("row-2"), some("x")];
    assert_eq!(names(&input, BatchLines::OpenAi), expected);
}

#[test]
fn ids_do_not_depend_on_the_place_of_a_row() {
    let rows = [chat(""), completions(r#""prompt":"p""#), "{".to_owned(), chat(r#","n":2"#)];
    let digests = |rows: &[String]| {
        let digest = |row: Result<Row, BadRow>| match row {
            Ok(row) => line(&row.passthrough).digest.id(""),
            Err(row) => line(&row.passthrough).digest.id(""),
        };
        let mut digests: Vec<_> =
            parse(&rows.join("\n"), BatchLines::Own).into_iter().map(digest).collect();
        digests.sort();
        digests.dedup();
        digests
    };
    let mut reversed = rows.to_vec();
    reversed.reverse();
    assert_eq!(digests(&rows).len(), rows.len());
    assert_eq!(digests(&rows), digests(&reversed));
}

#[test]
fn rows_of_ours_keep_their_fields() {
    let rows = parse(&format!("{}\n{{", chat("")), BatchLines::Never);
    let fields = |passthrough: &Passthrough| match passthrough {
        Passthrough::Json(fields) => fields.iter().map(|f| f.name.into_owned()).collect(),
        other => panic!("{other:?}"),
    };
    let names: Vec<Vec<String>> = rows
        .iter()
        .map(|row| match row {
            Ok(row) => fields(&row.passthrough),
            Err(row) => fields(&row.passthrough),
        })
        .collect();
    assert_eq!(names[0], ["custom_id", "method", "url", "body"]);
    assert_eq!(names[1], ["line", "input"]);
}

#[test]
fn the_first_line_decides_what_all_are_for() {
    let to = |url: &str, body: &str| format!(r#"{{"custom_id":"a","url":"{url}","body":{body}}}"#);
    let chat = to("/v1/chat/completions", r#"{"messages":[{"role":"user","content":"a"}]}"#);
    let embeddings = to("/v1/embeddings", r#"{"input":"a"}"#);
    let score = to("/v1/score", r#"{"text_1":"a","text_2":"b"}"#);
    let rerank = to("/v2/rerank", r#"{"query":"a","documents":["b"]}"#);
    let options = RowOptions { lines_decide: true, ..RowOptions::default() };
    let codes = |rows: &[&String]| -> Vec<Option<&'static str>> {
        let rows: Vec<&str> = rows.iter().map(|row| row.as_str()).collect();
        let rows = parse_by(&rows.join("\n"), &options);
        rows.iter().map(|row| row.as_ref().err().map(|bad| bad.error.code)).collect()
    };
    let other = Some("other_task");
    assert_eq!(codes(&[&chat, &embeddings, &score, &chat]), [None, other, other, None]);
    assert_eq!(codes(&[&embeddings, &chat, &embeddings, &score]), [None, other, None, other]);
    assert_eq!(codes(&[&score, &rerank, &embeddings]), [None, None, other]);
    let unknown = to("/v1/images", "{}");
    assert_eq!(codes(&[&rerank, &unknown]), [None, Some("unsupported_url")]);
    let mixed = parse_by(&format!("{embeddings}\n{chat}"), &options).pop().unwrap();
    let error = mixed.unwrap_err().error;
    assert_eq!(error.message, "the request asks for completions, and those before it for vectors");
    assert_eq!(error.help.unwrap(), "put requests for completions into a file of their own");
}
