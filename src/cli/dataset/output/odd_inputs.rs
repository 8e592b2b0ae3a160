//! Inputs as they are found in the wild, against the exact bytes they give: reader, parser and
//! output together, with a model that answers with the prompt it was given.

use std::io::Read;

use super::format_settings::Detail;
use super::tests::TOKENS;
use super::{Asked, OutputOptions, RunFacts, format_row};
use crate::input::reader::{InputError, InputFormat, Records};
use crate::input::row::{RowOptions, RowParser};
use crate::input::row_error::RowError;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{CompletionOutput, FinishReason, RequestOutput, SamplingParams};
use vllm_batch_text::AnswerParser;

/// Longest line in these tests.
pub(super) const MAX_LINE: usize = 4096;

/// The output of a run over `input`.
pub(super) fn run(
    input: impl Read + Send + 'static,
    format: InputFormat,
    options: &RowOptions,
) -> Result<String, InputError> {
    let mut records = Records::open(Box::new(input), format, MAX_LINE)?;
    let mut parser = RowParser::new(&mut records, options)?;
    let mut out = Vec::new();
    let output_options = OutputOptions {
        out_field: "response",
        more_fields: &[],
        detail: Detail::Auto,
        usage_cached: false,
        facts: &RunFacts::default(),
        parser: &AnswerParser::default(),
        tokens: &TOKENS,
    };
    for (index, record) in (&mut records).enumerate() {
        let (found, passthrough, form, result) = match parser.parse(record?)? {
            Ok(row) => {
                let applied = row.overrides.apply(&SamplingParams::default());
                let applied = applied.map_err(|error| RowError::from_request(&error, row.line));
                let result = applied.map(|_| answer(&row.prompt));
                (row.index, row.passthrough, row.answer_form, result)
            }
            Err(row) => (row.index, row.passthrough, None, Err(row.error)),
        };
        assert_eq!(found, index as u64);
        let asked = Asked { passthrough: &passthrough, form: form.as_ref() };
        format_row(asked, result.as_ref(), &output_options, &mut out);
    }
    Ok(String::from_utf8(out).expect("output is always UTF-8"))
}

/// A completion whose text is the prompt.
fn answer(prompt: &Prompt) -> RequestOutput {
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::TokenIds(ids) => format!("{ids:?}"),
        Prompt::Messages(chat) => chat.messages.to_string(),
        Prompt::WithMedia(asked) => asked.chat.messages.to_string(),
        other => unreachable!("no row of `run` asks for {other:?}"),
    };
    RequestOutput {
        request_id: 0,
        finished: true,
        deltas: Vec::new(),
        prompt_token_ids: vec![1, 2],
        prompt_logprobs: None,
        outputs: vec![CompletionOutput {
            index: 0,
            text,
            token_ids: vec![3],
            cumulative_logprob: None,
            logprobs: None,
            finish_reason: FinishReason::Stop,
            stop_reason: None,
            is_complete: true,
            error: None,
        }],
        scored: None,
        num_cached_tokens: 0,
    }
}

fn jsonl(input: &[u8]) -> String {
    run(std::io::Cursor::new(input.to_vec()), InputFormat::Jsonl, &RowOptions::default())
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(input)))
}

/// An answered row: fields as they appear, then the JSON text of the response.
fn ok(fields: &str, response: &str) -> String {
    format!(
        "{{{fields},\"response\":{response},\"finish_reason\":\"stop\",\
         \"usage\":{{\"prompt_tokens\":2,\"completion_tokens\":1}}}}\n"
    )
}

/// An error row.
fn bad(fields: &str, code: &str, message: &str) -> String {
    format!(
        "{{{fields},\"response\":null,\"finish_reason\":\"error\",\
         \"error\":{{\"code\":\"{code}\",\"message\":\"{message}\"}}}}\n"
    )
}

const A: &str = r#""prompt":"a""#;

fn a() -> String {
    ok(A, "\"a\"")
}

#[test]
fn line_ends_blanks_and_marks() {
    let cases: Vec<(&[u8], String)> = vec![
        (b"", String::new()),
        (b"\n\r\n  \t\n", String::new()),
        (b"{\"prompt\":\"a\"}", a()),
        (b"{\"prompt\":\"a\"}\n{\"prompt\":\"a\"}\n", a() + &a()),
        (b"\xef\xbb\xbf{\"prompt\":\"a\"}\n", a()),
        (b"{\"prompt\":\"a\"}\r\n\r\n{\"prompt\":\"a\"}\r\n", a() + &a()),
        (b"{\"prompt\":\"a\"}\r", a()),
        (b"\n\n \n{\"prompt\":\"a\"}\n\n", a()),
        (b" { \"prompt\" : \"a\" } \n", a()),
        // Lone CR is white space for JSON, not a line end.
        (b"{\"prompt\":\r\"a\"}\n", a()),
        // A BOM that is not at the start is a stray character.
        (
            b"{\"prompt\":\"a\"}\n\xef\xbb\xbf{\"prompt\":\"b\"}\n",
            a() + &bad(
                "\"line\":2,\"input\":\"\u{feff}{\\\"prompt\\\":\\\"b\\\"}\"",
                "bad_json",
                "expected value",
            ),
        ),
    ];
    for (input, expected) in cases {
        assert_eq!(jsonl(input), expected, "{}", String::from_utf8_lossy(input));
    }
}

#[test]
fn values_pass_through_byte_for_byte() {
    let same = [
        "\"id\":1.0",
        "\"id\":9223372036854775807",
        "\"id\":18446744073709551616",
        "\"id\":123456789012345678901234567890.10",
        "\"x\":1e400",
        "\"x\":-0",
        "\"x\":1E+2",
        "\"x\":\"\\u00e9\\/\"",
        "\"x\":\"\\ud800\"",
        "\"x\":\"\u{2028}\u{2029}\u{85}\"",
        "\"x\":{\"b\": 1, \"a\" :[ 1,2 ]}",
        "\"\\u0078\":null",
        "\"\":\"\"",
        "\"k\":1,\"k\":2",
    ];
    for fields in same {
        let input = format!("{{{fields},{A}}}\n");
        assert_eq!(jsonl(input.as_bytes()), ok(&format!("{fields},{A}"), "\"a\""), "{fields}");
    }
}

#[test]
fn of_duplicate_keys_the_last_counts_and_all_pass_through() {
    let fields = r#""prompt":"a","id":1,"prompt":"b""#;
    assert_eq!(jsonl(format!("{{{fields}}}").as_bytes()), ok(fields, "\"b\""));
    let escaped = r#""pr\u006fmpt":"b""#;
    assert_eq!(jsonl(format!("{{{escaped}}}").as_bytes()), ok(escaped, "\"b\""));
}

#[test]
fn what_is_not_json_is_an_error_row_in_its_place() {
    let cases = [
        (r#"{"prompt":"a" "b":1}"#, "expected ',' or '}'"),
        (r#"{"prompt":"a""#, "the line ends inside an object"),
        (r#"{"prompt":"a"#, "the line ends inside a string"),
        (r#"{"prompt":NaN}"#, "expected value"),
        (r#"{'prompt':'a'}"#, "key must be a string"),
        (r#"{"prompt":"a",}"#, "trailing comma"),
        (r#"{"prompt":01}"#, "invalid number"),
        (r#"{"prompt":"\x"}"#, "invalid escape"),
        (r#"{"prompt":"a"}{"prompt":"b"}"#, "trailing characters"),
        ("{\"prompt\":\"a\tb\"}", CONTROL),
        ("{\"prompt\":\"a\0b\"}", CONTROL),
        ("\0\0\0\0", "expected value"),
        ("nonsense", "expected ident"),
    ];
    const CONTROL: &str = "control character (\\\\u0000-\\\\u001F) found while parsing a string";
    for (line, message) in cases {
        let input = format!("{{{A}}}\n{line}\n{{{A}}}\n");
        let shown = serde_json::Value::from(line).to_string();
        let error = bad(&format!("\"line\":2,\"input\":{shown}"), "bad_json", message);
        assert_eq!(jsonl(input.as_bytes()), a() + &error + &a(), "{line}");
    }
}

#[test]
fn invalid_utf8_is_an_error_row_with_its_offset() {
    let out = jsonl(b"{\"prompt\":\"a\"}\n{\"prompt\":\"\xff\"}\n{\"prompt\":\"a\"}\n");
    let shown = "\"line\":2,\"input\":\"{\\\"prompt\\\":\\\"\u{fffd}\\\"}\"";
    let error = bad(shown, "bad_utf8", "byte 0xff at offset 12 is not UTF-8; see --encoding");
    assert_eq!(out, a() + &error + &a());
}

#[test]
fn nesting_is_limited_and_deep_lines_do_not_overflow() {
    let row =
        |depth: usize| format!("\"x\":{}{},{A}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert_eq!(jsonl(format!("{{{}}}", row(128)).as_bytes()), ok(&row(128), "\"a\""));
    let refused = |line: &str| {
        let shown = serde_json::Value::from(line).to_string();
        let fields = format!("\"line\":1,\"input\":{shown}");
        bad(&fields, "bad_json", "nested deeper than 128 levels")
    };
    let line = format!("{{{}}}", row(129));
    assert_eq!(jsonl(line.as_bytes()), refused(&line));
    let brackets_in_text = format!("\"prompt\":\"{}\\\"[\"", "[".repeat(500));
    let expected = ok(&brackets_in_text, &brackets_in_text["\"prompt\":".len()..]);
    assert_eq!(jsonl(format!("{{{brackets_in_text}}}").as_bytes()), expected);
    // 100 000 levels, closed or not, as an object's value or bare.
    for line in [
        "[".repeat(100_000),
        format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{{\"x\":{}", "[".repeat(100_000)),
    ] {
        let records = Records::open(
            Box::new(std::io::Cursor::new(line)),
            InputFormat::Jsonl,
            crate::input::reader::MAX_LINE,
        );
        let mut records = records.expect("text");
        let mut parser = RowParser::new(&mut records, &RowOptions::default()).expect("no options");
        let record = records.next().expect("one line").expect("readable");
        let error = parser.parse(record).expect("not refused").expect_err("a bad row").error;
        assert_eq!(
            (error.code, error.message.as_str()),
            ("bad_json", "nested deeper than 128 levels")
        );
    }
}

#[test]
fn a_line_over_the_limit_is_an_error_row_in_bounded_memory() {
    // The limit counts the line without its end.
    let longest = format!("\"prompt\":\"{}\"", "x".repeat(MAX_LINE - 13));
    let line = format!("{{{longest}}}");
    assert_eq!(line.len(), MAX_LINE);
    let expected = ok(&longest, &longest["\"prompt\":".len()..]);
    for end in ["", "\n", "\r\n"] {
        assert_eq!(jsonl(format!("{line}{end}").as_bytes()), expected);
    }
    // Much more than the limit, from nowhere.
    let count = (1u64 << 30) + 7;
    let long = std::io::repeat(b'x').take(count);
    let input = std::io::Cursor::new("{\"prompt\":\"a\"}\n")
        .chain(long)
        .chain(std::io::Cursor::new("\n{\"prompt\":\"a\"}"));
    let out = run(input, InputFormat::Jsonl, &RowOptions::default()).expect("not refused");
    let fields = format!("\"line\":2,\"input\":\"{}...\"", "x".repeat(256));
    let message = format!("the line has {count} bytes, the limit is {MAX_LINE}");
    assert_eq!(out, a() + &bad(&fields, "line_too_long", &message) + &a());
}

#[test]
fn rows_that_can_only_be_of_another_shape_are_completed_as_what_they_are() {
    let hi = r#"[{"role":"user","content":"hi"}]"#;
    let rows = [
        (format!("\"messages\":{hi}"), serde_json::json!(hi.replace(' ', "")).to_string()),
        ("\"prompt\":[1,2]".to_owned(), "\"[1, 2]\"".to_owned()),
        ("\"prompt_token_ids\":[3]".to_owned(), "\"[3]\"".to_owned()),
        ("\"text\":\"t\"".to_owned(), "\"t\"".to_owned()),
        (A.to_owned(), "\"a\"".to_owned()),
    ];
    // Whatever comes first.
    for first in 0..rows.len() {
        let (before, after) = rows.split_at(first);
        let order = || after.iter().chain(before);
        let input: String = order().map(|(fields, _)| format!("{{{fields}}}\n")).collect();
        let expected: String = order().map(|(fields, answer)| ok(fields, answer)).collect();
        assert_eq!(jsonl(input.as_bytes()), expected);
    }
    let bare = format!("{{{A}}}\n\"x\"\n[1,2]\n");
    let expected = a() + &ok(r#""prompt":"x""#, "\"x\"") + &ok(r#""prompt":[1,2]"#, "\"[1, 2]\"");
    assert_eq!(jsonl(bare.as_bytes()), expected);
}

#[test]
fn rows_of_no_or_several_other_shapes_are_error_rows() {
    let expected = "expected `prompt` text as in the first row, found";
    let cases = [
        (r#"{"prompt":5}"#, "`prompt` with a number"),
        (r#"{"a":1,"b":2}"#, "an object with the fields a, b"),
        (r#"{"text":"t","question":"q"}"#, "`question` text"),
        (r#"{"custom_id":"x","url":"u","body":{}}"#, "OpenAI batch requests"),
    ];
    for (line, found) in cases {
        let error = bad(&line[1..line.len() - 1], "row_shape", &format!("{expected} {found}"));
        assert_eq!(jsonl(format!("{{{A}}}\n{line}\n{{{A}}}\n").as_bytes()), a() + &error + &a());
    }
    // One before the first that has a prompt is no other.
    let null = r#""prompt":null"#;
    let error = bad(null, "row_shape", "`prompt` is null: the row has no prompt");
    assert_eq!(jsonl(format!("{{{null}}}\n{{{A}}}\n").as_bytes()), error.clone() + &a());
    assert_eq!(jsonl(format!("{{{A}}}\n{{{null}}}\n").as_bytes()), a() + &error);
    let empty = format!("{{{A}}}\n{{}}\n");
    let error = bad("", "row_shape", &format!("{expected} an object with no fields"));
    assert_eq!(jsonl(empty.as_bytes()), a() + &error.replacen("{,", "{", 1));
    for scalar in ["5", "true", "null"] {
        let fields = format!("\"line\":2,\"input\":\"{scalar}\"");
        let message = "a row must be an object, a string or a list of token ids";
        let error = bad(&fields, "row_shape", message);
        assert_eq!(jsonl(format!("{{{A}}}\n{scalar}\n").as_bytes()), a() + &error);
    }
}

#[test]
fn an_unreadable_first_row_leaves_the_shape_to_the_next() {
    let out = jsonl(b"{\"prompt\":\n{\"prompt\":\"a\"}\n");
    let fields = "\"line\":1,\"input\":\"{\\\"prompt\\\":\"";
    assert_eq!(out, bad(fields, "bad_json", "the line ends inside a value") + &a());
}

#[test]
fn a_mistyped_parameter_is_an_error_row_that_names_it() {
    let fields = r#""prompt":"a","temperature":"hot""#;
    let message = "temperature: expected a number, found the string \\\"hot\\\"";
    let out = jsonl(format!("{{{fields}}}").as_bytes());
    assert_eq!(out, bad(fields, "invalid_parameter", message));
}

#[test]
fn fields_that_have_our_names_are_kept_under_others() {
    let out = jsonl(br#"{"response":"r","prompt":"a","error":null,"input_error":1,"usage":2}"#);
    let fields = concat!(
        r#""input_response":"r","prompt":"a","input_input_error":null,"#,
        r#""input_error":1,"input_usage":2"#
    );
    assert_eq!(out, ok(fields, "\"a\""));
}
