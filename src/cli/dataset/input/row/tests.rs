//! Records of every shape to prompts, and what is refused on the way.

mod beside_media;
mod chats;
mod images;
mod sounds;

use std::io::Cursor;

use serde_json::{Value, json};

use super::*;
use vllm_batch_api::compared::ScoreInput;
use vllm_batch_text::{Chat, ChatEnding};

fn options() -> RowOptions {
    RowOptions::default()
}

fn chat() -> RowOptions {
    RowOptions { chat: ChatMode::Always, ..options() }
}

fn parse_as(
    format: InputFormat,
    input: &str,
    options: &RowOptions,
) -> Result<Vec<Result<Row, BadRow>>, InputError> {
    let input = Box::new(Cursor::new(input.to_owned()));
    let mut records = Records::open(input, format, 1 << 20)?;
    let mut parser = RowParser::new(&mut records, options)?;
    records.by_ref().map(|record| parser.parse(record?)).collect()
}

fn parse(input: &str, options: &RowOptions) -> Result<Vec<Result<Row, BadRow>>, InputError> {
    // Text lines of these tests begin with a letter.
    parse_as(InputFormat::Auto, input, options)
}

fn prompt(input: &str, options: &RowOptions) -> Prompt {
    let mut rows = parse(input, options).unwrap_or_else(|error| panic!("{error}: {input}"));
    rows.pop().expect("a row").unwrap_or_else(|bad| panic!("{:?}: {input}", bad.error)).prompt
}

fn error(input: &str, options: &RowOptions) -> RowError {
    let mut rows = parse(input, options).unwrap_or_else(|error| panic!("{error}: {input}"));
    rows.pop().expect("a row").expect_err(input).error
}

fn refusal(format: InputFormat, input: &str, options: &RowOptions) -> (String, String) {
    match parse_as(format, input, options) {
        Err(InputError::Refused { message, help }) => (message, help),
        other => panic!("not refused: {input}: {other:?}"),
    }
}

fn text(text: &str) -> Prompt {
    Prompt::Text(text.to_owned())
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn rows_of_texts_that_are_compared_have_one_shape() {
    let of = |task| RowOptions { task, ..options() };
    let pair = r#"{"text_1":"a","text_2":"b"}"#;
    let Prompt::Compared(compared) = prompt(pair, &of(Task::Score)) else { panic!() };
    let [a, b] = ["a", "b"].map(|text| [ScoreInput::Text(text.to_owned())]);
    assert_eq!((compared.queries(), compared.documents()), (&a[..], &b[..]));
    let table = parse_as(InputFormat::Csv, "id,text_1,text_2\n1,a,b\n", &of(Task::Score)).unwrap();
    assert_eq!(table[0].as_ref().unwrap().prompt, Prompt::Compared(compared));
    let ranking = r#"{"query":"a","documents":["b"],"top_n":"3"}"#;
    let rows = parse(ranking, &of(Task::Rerank)).unwrap();
    let overrides = &rows[0].as_ref().unwrap().overrides;
    let wrong = overrides.apply_pooling(&Default::default()).unwrap_err();
    assert_eq!(wrong.message, "top_n: expected an integer, found the string \"3\"");
    let other = error(&format!("{pair}\n{{\"text\":\"a\"}}\n"), &of(Task::Score));
    assert_eq!(other.code, "row_shape");
    for (format, input) in [
        (InputFormat::Csv, "text,other\na,b\n"),
        (InputFormat::Jsonl, "{\"text\":\"a\"}\n"),
        (InputFormat::Txt, "a\n"),
    ] {
        let (message, _) = refusal(format, input, &of(Task::Score));
        assert!(message.contains("`text_1` and `text_2`"), "{message}");
    }
}

#[test]
fn every_shape_gives_its_prompt() {
    let hi = Prompt::Messages(json!([user("hi")]).into());
    let cases = [
        (r#"{"prompt":"p"}"#, text("p")),
        (r#"{"prompt":[1,2]}"#, Prompt::TokenIds(vec![1, 2])),
        (r#"{"prompt":[]}"#, Prompt::TokenIds(vec![])),
        (r#"{"prompt":[{"role":"user","content":"hi"}]}"#, hi.clone()),
        (r#"{"prompt_token_ids":[ 3 ]}"#, Prompt::TokenIds(vec![3])),
        (r#"{"messages":[ {"role":"user","content":"hi"}],"prompt":"p"}"#, hi.clone()),
        (r#"{"messages":null,"text":"t"}"#, text("t")),
        (r#"{"question":"q","input":"i"}"#, text("q")),
        (r#"{"text":"t","input":"i"}"#, text("t")),
        (r#"{"input":"i","target":"x"}"#, text("i")),
        (r#"{"input":[{"role":"user","content":"hi"}]}"#, hi.clone()),
        (r#""bare\n""#, text("bare\n")),
        ("[7,8]", Prompt::TokenIds(vec![7, 8])),
        (r#"[{"role":"user","content":"hi"}]"#, hi.clone()),
        (
            r#"{"conversations":[{"from":"human","value":"hi"},{"from":"gpt","value":"x"}]}"#,
            hi.clone(),
        ),
        (r#"{"conversations":[{"from":"human","value":"hi"}]}"#, hi),
        ("a text line  ", text("a text line  ")),
        (
            r#"{"instruction":"Do","input":"This"}"#,
            text(
                "Below is an instruction that describes a task, paired with an input that provides \
                 further context. Write a response that appropriately completes the request.\n\n\
                 ### Instruction:\nDo\n\n### Input:\nThis\n\n### Response:",
            ),
        ),
        (
            r#"{"instruction":"Do","input":"","output":"Done"}"#,
            text(
                "Below is an instruction that describes a task. Write a response that \
                 appropriately completes the request.\n\n### Instruction:\nDo\n\n### Response:",
            ),
        ),
    ];
    for (input, expected) in cases {
        assert_eq!(prompt(input, &options()), expected, "{input}");
    }
}

#[test]
fn messages_are_checked() {
    let cases = [
        (r#"[]"#, "invalid_prompt", "messages: there is no message to answer"),
        (
            r#"["x"]"#,
            "row_shape",
            "expected chat `messages` as in the first row, found `messages` \
          with a list",
        ),
        (
            r#"[{"content":"x"}]"#,
            "invalid_prompt",
            "messages: message 0 has no `role` that is a string",
        ),
        (r#"[{"role":"user"}]"#, "invalid_prompt", "messages: message 0 has no `content`"),
        (
            r#"[{"role":"user","content":5}]"#,
            "invalid_prompt",
            "messages: message 0 has a `content` that is neither text nor a list of parts",
        ),
        (
            r#"[{"role":"user","content":[{"type":"image_url"}]}]"#,
            "invalid_prompt",
            "messages: message 0 has a part of type 'image_url' without `image_url`",
        ),
        (
            r#"[{"role":"assistant","content":"y"}]"#,
            "invalid_prompt",
            "messages: there is no message to answer",
        ),
        (
            r#"[{"role":"user","content":"\ud800"}]"#,
            "invalid_prompt",
            "messages: unexpected end of hex escape",
        ),
    ];
    for (messages, code, message) in cases {
        let found = error(&format!("{{\"messages\":{messages}}}"), &options());
        assert_eq!((found.code, found.message.as_str()), (code, message), "{messages}");
    }
    let parts =
        r#"{"messages":[{"role":"user","content":[{"type":"text","text":"x"}],"name":"n"}]}"#;
    let expected: Value = serde_json::from_str(parts).expect("valid JSON");
    assert_eq!(prompt(parts, &options()), Prompt::Messages(expected["messages"].clone().into()));
    let calls =
        r#"{"messages":[{"role":"assistant","tool_calls":[]},{"role":"tool","content":"x"}]}"#;
    assert!(matches!(prompt(calls, &options()), Prompt::Messages(_)));
    let twice = r#"{"system":"S","messages":[{"role":"system","content":"T"},
        {"role":"user","content":"x"}]}"#
        .replace('\n', "");
    let message = "messages: a system message, and a `system` field as well";
    assert_eq!(error(&twice, &options()).message, message);
}

#[test]
fn fields_that_ask_for_what_is_not_there_are_refused_by_name() {
    let asking = [
        (r#""guided_choice":["a","b"]"#, "guided_choice"),
        (r#""tools":[{"type":"function"}]"#, "tools"),
        (r#""tool_choice":"required""#, "tool_choice"),
        (r#""lora_request":{"lora_name":"a"}"#, "lora_request"),
        (r#""audio":{"voice":"a"}"#, "audio"),
        (r#""modalities":["audio"]"#, "modalities"),
        (r#""best_of":4"#, "best_of"),
        (r#""logits_processors":["a"]"#, "logits_processors"),
        (r#""echo":true"#, "echo"),
        (r#""prompt_embeds":"AAAA""#, "prompt_embeds"),
        (r#""add_special_tokens":false"#, "add_special_tokens"),
    ];
    for (field, name) in asking {
        let found = error(&format!(r#"{{"prompt":"p",{field}}}"#), &options());
        let message = format!("{name}: not supported: the answer would not be what it asks for");
        assert_eq!((found.code, found.message), ("unsupported_field", message), "{field}");
    }
    // Nothing is asked for, or the field is the user's own.
    let passing = [
        r#""tools":null"#,
        r#""tools":[]"#,
        r#""tools":"hammer, saw""#,
        r#""tools":["hammer"]"#,
        r#""tools":[{"name":"hammer"}]"#,
        r#""tool_choice":"any""#,
        r#""functions":"f""#,
        r#""response_format":{"type":"text"}"#,
        r#""response_format":"letter""#,
        r#""echo":"hello""#,
        r#""suffix":"end""#,
        r#""best_of":1"#,
        r#""images":[]"#,
        r#""structured_outputs":null"#,
        r#""add_special_tokens":true"#,
        r#""metadata":{"a":1},"store":true,"service_tier":"flex","stream":true,"user":"u""#,
    ];
    for field in passing {
        assert_eq!(prompt(&format!(r#"{{"prompt":"p",{field}}}"#), &options()), text("p"));
    }
}

#[test]
fn prompts_that_are_no_prompts() {
    let cases = [
        (r#"{"prompt":"\udc00"}"#, "prompt: not text: lone leading surrogate in hex escape"),
        (
            r#"{"prompt":[1,-2]}"#,
            "prompt: not token ids: invalid value: integer '-2', expected u32",
        ),
        (
            r#"{"prompt":[1,"x"]}"#,
            "prompt: not token ids: invalid type: string \"x\", expected u32",
        ),
        (
            r#"{"prompt":[99999999999]}"#,
            "prompt: not token ids: invalid value: integer '99999999999', expected u32",
        ),
        (r#"{"instruction":"x","input":[]}"#, "input: expected text, found a list"),
    ];
    for (input, message) in cases {
        let found = error(input, &options());
        assert_eq!((found.code, found.message.as_str()), ("invalid_prompt", message), "{input}");
    }
}

#[test]
fn a_template_is_filled_from_the_fields() {
    let with = |template: &str| RowOptions { template: Some(template.to_owned()), ..options() };
    let row = r#"{"a":"x\n{{b}}","b":1.0,"c":[1, 2],"d":null}"#;
    assert_eq!(
        prompt(row, &with("{{a}}|{{ b }}|{{c}}|{{d}}|{not}|}}")),
        text("x\n{{b}}|1.0|[1, 2]||{not}|}}")
    );
    assert_eq!(prompt("line", &with("Say: {{text}}")), text("Say: line"));
    assert_eq!(prompt("\"bare\"", &with("Say: {{prompt}}")), text("Say: bare"));
    let options = RowOptions { chat: ChatMode::Always, ..with("Say: {{a}}") };
    assert_eq!(prompt(r#"{"a":"x"}"#, &options), Prompt::Messages(json!([user("Say: x")]).into()));
    let found = error("{\"a\":\"x\"}\n{\"b\":\"x\"}", &with("{{a}}"));
    let message = "the row has no field 'a' for --template";
    assert_eq!((found.code, found.message.as_str(), found.line), ("template", message, 2));
    let cases = [
        ("{{z}}", "--template: the row on line 1 has no field 'z'"),
        ("{{a", "--template: '{{a' has no closing '}}'"),
        ("{{ }}", "--template: '{{}}' names no field"),
        ("a", "--template names no field, so every prompt would be the same"),
    ];
    for (template, message) in cases {
        assert_eq!(refusal(InputFormat::Jsonl, row, &with(template)).0, message);
    }
}

#[test]
fn a_prompt_column_is_used_as_it_is() {
    let column = |name: &str| RowOptions { prompt_column: Some(name.to_owned()), ..options() };
    assert_eq!(prompt(r#"{"prompt":"p","q":"x"}"#, &column("q")), text("x"));
    assert_eq!(prompt(r#"{"instruction":"x","input":"y"}"#, &column("instruction")), text("x"));
    assert_eq!(prompt(r#"{"q":[1]}"#, &column("q")), Prompt::TokenIds(vec![1]));
    let cases = [
        ("{\"a\":1}", "q", "--prompt-column: the row on line 1 has no field 'q'"),
        ("{\"q\":1}", "q", "line 1: 'q' cannot be a prompt: it is a number"),
        ("\"x\"", "q", "--prompt-column q: the rows are text without named fields"),
    ];
    for (input, name, message) in cases {
        assert_eq!(refusal(InputFormat::Jsonl, input, &column(name)).0, message);
    }
    let both = RowOptions { template: Some("{{a}}".to_owned()), ..column("a") };
    let message = "--template and --prompt-column exclude each other";
    assert_eq!(refusal(InputFormat::Jsonl, "{}", &both).0, message);
}

#[test]
fn inputs_that_cannot_be_run_are_refused_at_their_first_row() {
    let never = RowOptions { chat: ChatMode::Never, ..options() };
    let messages = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    let cases = [
        (
            r#"{"custom_id":"a","url":"/v1/completions","body":{"prompt":"p"}}"#,
            chat(),
            "--chat: the rows are OpenAI batch requests, which say what they are",
        ),
        (
            r#"{"custom_id":"a","params":{}}"#,
            never.clone(),
            "--no-chat: the rows are Anthropic batch requests, which say what they are",
        ),
        (
            r#"{"foo":1,"bar":2}"#,
            options(),
            "line 1: the row has no prompt; it has the fields foo, bar",
        ),
        (r#"{"prompt":5}"#, options(), "line 1: the row has no prompt; it has the fields prompt"),
        ("{", options(), "the input is JSON spread over lines, not one row per line"),
        ("[", options(), "the input is one JSON list, not one row per line"),
        (r#"[{"prompt":"x"},"#, options(), "the input is one JSON list, not one row per line"),
        (
            r#"[{"prompt":"x"},{"prompt":"y"}]"#,
            options(),
            "the input is one JSON list, not one row per line",
        ),
        (messages, never, "--no-chat: the rows are chat `messages`"),
        ("[1,2]", chat(), "--chat: the rows are bare token ids, which are used as they are"),
    ];
    for (input, options, message) in cases {
        assert_eq!(refusal(InputFormat::Jsonl, input, &options).0, message, "{input}");
    }
}

fn csv(input: &str, options: &RowOptions) -> Result<Row, Box<BadRow>> {
    let rows = parse_as(InputFormat::Csv, input, options);
    rows.unwrap_or_else(|error| panic!("{error}")).pop().expect("a row").map_err(Box::new)
}

#[test]
fn csv_columns_in_their_order() {
    let cases = [
        ("id,content,text\n1,c,t\n", text("t")),
        ("content,x\nc,1\n", text("c")),
        ("prompt\n\"[1,2]\"\n", text("[1,2]")),
        (
            "messages\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"x\"\"}]\"\n",
            Prompt::Messages(json!([user("x")]).into()),
        ),
    ];
    for (input, expected) in cases {
        assert_eq!(csv(input, &options()).expect(input).prompt, expected);
    }
    // A column that is empty in a row gives its place to no other.
    let empty = "prompt,text\n,t\n";
    assert_eq!(csv(empty, &options()).unwrap_err().error.code, code::EMPTY_PROMPT);
    let allowed = csv(empty, &RowOptions { allows_empty: true, ..options() });
    assert_eq!(allowed.expect(empty).prompt, text(""));
    let row = csv("instruction,input\nDo,\n", &options()).expect("a row");
    let end = "### Instruction:\nDo\n\n### Response:";
    assert!(matches!(row.prompt, Prompt::Text(text) if text.ends_with(end)));
    let row = csv("id,prompt,max_tokens,stop,seed\nr1,p,5,###,\n", &options()).expect("a row");
    let params = row.overrides.apply(&Default::default()).expect("good cells");
    assert_eq!((params.max_tokens, params.stop, params.seed), (Some(5), vec!["###".into()], None));
    assert_eq!(row.id.as_deref(), Some("r1"));
    let bad = csv("messages\nhello\n", &options()).expect_err("not JSON");
    assert_eq!(bad.error.code, "row_shape");
    let template = RowOptions { template: Some("{{a}}-{{b}}".to_owned()), ..options() };
    assert_eq!(csv("a,b\n1,x\n", &template).expect("a row").prompt, text("1-x"));
    assert_eq!(
        refusal(InputFormat::Csv, "a,b\n1,2\n", &options()).0,
        "no column holds the prompt: a, b"
    );
    assert_eq!(
        refusal(InputFormat::Csv, "a\n1\n", &template).0,
        "--template: there is no column 'b'"
    );
}

#[test]
fn ids_are_text() {
    let cases = [
        (r#"{"id":"x","prompt":"p"}"#, Some("x")),
        (r#"{"id":7,"prompt":"p"}"#, Some("7")),
        (r#"{"id":18446744073709551617,"prompt":"p"}"#, Some("18446744073709551617")),
        (r#"{"custom_id":"c","prompt":"p"}"#, Some("c")),
        (r#"{"id":null,"custom_id":"c","prompt":"p"}"#, Some("c")),
        (r#"{"id":"","prompt":"p"}"#, None),
        (r#"{"id":{},"prompt":"p"}"#, None),
        (r#"{"prompt":"p"}"#, None),
    ];
    for (input, id) in cases {
        let row = parse(input, &options()).expect(input).pop().expect("a row").expect("a good row");
        assert_eq!(row.id.as_deref(), id, "{input}");
    }
}

#[test]
fn the_first_row_is_described_once() {
    let note = |format, input: &str, options: &RowOptions| {
        let mut records =
            Records::open(Box::new(Cursor::new(input.to_owned())), format, 1 << 20).expect("text");
        let mut parser = RowParser::new(&mut records, options).expect("good options");
        for record in records.by_ref() {
            parser.parse(record.expect("readable")).expect("not refused").expect("a good row");
        }
        let note = parser.take_note();
        assert_eq!(parser.take_note(), None);
        note.expect("a note")
    };
    assert_eq!(
        note(InputFormat::Jsonl, r#"{"prompt":"p","system":"s"}"#, &options()),
        "rows are `prompt` text, completed as text (--chat sends a user turn); their `system` \
         field is not sent without --chat"
    );
    assert_eq!(
        note(InputFormat::Txt, "p\nq", &chat()),
        "rows are bare text, each sent as a user turn"
    );
    assert_eq!(
        note(InputFormat::Csv, "text\nq", &options()),
        "rows are `text` text, completed as text (--chat sends a user turn)"
    );
    let fill = RowOptions { template: Some("{{text}}!".to_owned()), ..options() };
    assert_eq!(
        note(InputFormat::Csv, "text\nq", &fill),
        "rows fill --template, completed as text (--chat sends a user turn)"
    );
}

#[test]
fn bad_json_has_its_place() {
    let at = |input: &str| {
        let error = error(input, &options());
        let excerpt = error.excerpt.expect("a place");
        (error.line, error.column.expect("a column"), excerpt.text, excerpt.caret)
    };
    let line = r#"{"prompt":"ab","id":  7 "x":1}"#;
    assert_eq!(at(&format!("\n\n{line}")), (3, 25, line.to_owned(), 24));
    assert_eq!(at(r#"{"prompt":"ab"#), (1, 14, r#"{"prompt":"ab"#.to_owned(), 13));
    let columns = [
        (r#"{"prompt":NaN}"#, 11),
        (r#"{'prompt':'a'}"#, 2),
        (r#"{"prompt":"a",}"#, 15),
        (r#"{"prompt":01}"#, 12),
        (r#"{"prompt":"\x"}"#, 13),
        (r#"{"prompt":-}"#, 12),
        (r#"{"prompt" "a"}"#, 11),
        (r#"{"prompt":"a"}{"prompt":"b"}"#, 15),
        (r#"{"prompt":trve}"#, 13),
        (r#"{"prompt":["a"  "b"]}"#, 17),
        ("{\"prompt\":\"a\tb\"}", 13),
        ("{\"prompt\":\"\n", 12),
    ];
    for (input, column) in columns {
        assert_eq!(error(input, &options()).column, Some(column), "{input}");
    }
    let long = format!("{{\"prompt\":\"{}\" 5{}", "é".repeat(100), "x".repeat(100));
    let expected = format!("...{}\" 5{}...", "é".repeat(34), "x".repeat(35));
    assert_eq!(at(&long), (1, 214, expected, 39));
    // Nothing that a terminal would obey is shown.
    assert_eq!(at("{\"a\u{1b}[2J\":1"), (1, 4, "{\"a\\u{1b}[2J\":1".to_owned(), 3));
}
