//! Tools in requests of OpenAI's and in rows of datasets, and calls in their messages.

use std::io::Cursor;

use super::*;
use crate::input::reader::{InputFormat, Records};
use crate::input::row::{BadRow, Row, RowOptions, RowParser};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_text::Chat;

const WEATHER: &str = r##"{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"z":{"minimum":1.0},"a":{"$ref":"#/$defs/c"}},"$defs":{"c":{"type":"string"}}}}}"##;
const STOP: &str = r#"{"type":"function","function":{"name":"stop","description":"Ends it"}}"#;

fn parsed(input: &str) -> Result<Row, Box<BadRow>> {
    let input = Box::new(Cursor::new(input.to_owned()));
    let mut records = Records::open(input, InputFormat::Jsonl, 1 << 20).expect("text");
    let mut parser = RowParser::new(&mut records, &RowOptions::default()).expect("a shape");
    let last = records.map(|record| parser.parse(record.expect("text"))).last();
    last.expect("a row").expect("a shape").map_err(Box::new)
}

const HI: &str = r#"{"role":"user","content":"hi"}"#;

/// A request of OpenAI's with these messages and fields.
fn request(messages: &str, fields: &str) -> Result<Row, Box<BadRow>> {
    parsed(&format!(
        r#"{{"custom_id":"c","url":"/v1/chat/completions","body":{{"messages":[{messages}]{fields}}}}}"#
    ))
}

/// A row of a dataset with these fields.
fn plain(fields: &str) -> Result<Row, Box<BadRow>> {
    parsed(&format!(r#"{{"messages":[{HI}]{fields}}}"#))
}

fn row(fields: &str) -> Row {
    request(HI, fields).unwrap_or_else(|bad| panic!("{:?}: {fields}", bad.error))
}

fn chat(row: Row) -> Chat {
    match row.prompt {
        Prompt::Messages(chat) => *chat,
        other => panic!("{other:?}"),
    }
}

#[test]
fn tools_reach_the_template_as_they_are_and_say_what_may_be_called() {
    let fields = format!(r#","tools":[{WEATHER},{STOP}]"#);
    let shown = chat(row(&fields)).tools.expect("tools");
    assert_eq!(shown.to_string(), format!("[{WEATHER},{STOP}]"));
    let form = row(&fields).answer_form.expect("a chat");
    let parameters: Value = serde_json::from_str(WEATHER).expect("JSON");
    let parameters = parameters["function"]["parameters"].clone();
    let weather = Tool { name: "weather".to_owned(), parameters };
    let stop = Tool { name: "stop".to_owned(), parameters: Value::Null };
    let expected =
        AnswerForm { tools: vec![weather, stop], tool_choice: ToolChoice::Auto, ..form.clone() };
    assert_eq!(form, expected);
    assert!(!form.is_single_call);
    assert_eq!(plain(&fields).expect("a row").answer_form, Some(form), "in a dataset's row too");
    assert_eq!(row("").answer_form, Some(AnswerForm::default()));
    // Tools that may not be called are shown all the same, as in vLLM.
    let none = row(&format!(r#"{fields},"tool_choice":"none""#));
    assert_eq!(none.answer_form.as_ref().map(|form| &form.tool_choice), Some(&ToolChoice::None));
    assert!(chat(none).tools.is_some());
}

#[test]
fn an_answer_that_must_call_has_a_schema() {
    let constraint = |fields: &str| {
        let row = row(&format!(r#","tools":[{WEATHER},{STOP}]{fields}"#));
        let expected = |json: Value| {
            let text = json!({ "json": json }).to_string();
            super::super::Overrides::collect(&JsonFields::from_pairs(&[]))
                .with_written("structured_outputs", "tools", Some(text))
                .with_default_length(crate::input::overrides::DefaultLength::Context)
        };
        (row.overrides, expected)
    };
    let call = |name: &str, parameters: Value| {
        json!({"type": "object", "properties": {
            "name": {"type": "string", "enum": [name]}, "parameters": parameters,
        }, "required": ["name", "parameters"], "additionalProperties": false})
    };
    let weather = json!({"type": "object", "properties": {"z": {"minimum": 1.0},
        "a": {"$ref": "#/$defs/c"}}});
    let list = json!({"type": "array", "minItems": 1, "items": {"anyOf": [
        call("weather", weather.clone()), call("stop", json!({"type": "object", "properties": {}})),
    ]}});
    let definitions = json!({"c": {"type": "string"}});
    let mut several = list.clone();
    several["$defs"] = definitions.clone();
    // In place of what the row says itself.
    let own = r#","response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"}"#;
    let (found, expected) = constraint(&format!(r#","tool_choice":"required"{own}"#));
    assert_eq!(found, expected(several));
    let mut one = list;
    one["maxItems"] = 1.into();
    one["$defs"] = definitions.clone();
    let (found, expected) = constraint(r#","tool_choice":"required","parallel_tool_calls":false"#);
    assert_eq!(found, expected(one));
    let mut named = weather;
    named["$defs"] = definitions;
    let (found, expected) = constraint(r#","tool_choice":{"function":{"name":"weather"}}"#);
    assert_eq!(found, expected(named));
    let (found, expected) = constraint("");
    assert_eq!(found, expected(Value::Null).with("structured_outputs", None));
}

#[test]
fn wrong_tools_name_what_is_wrong() {
    let tools = |tool: &str| format!(r#","tools":[{STOP},{tool}]"#);
    let choice = |choice: &str| format!(r#","tools":[{STOP}],"tool_choice":{choice}"#);
    let other = WEATHER.replace("string", "number").replace("weather", "wetter");
    let cases = [
        (r#","tools":[]"#.to_owned(), TOOLS, "an empty list: leave the field out, or give a tool"),
        (r#","tools":{}"#.to_owned(), TOOLS, "expected a list"),
        (tools("5"), TOOLS, "tool 1 is no object with a `type`"),
        (tools("{}"), TOOLS, "tool 1 is no object with a `type`"),
        (tools(r#"{"type":"function"}"#), TOOLS, "tool 1 has no `function` with a `name`"),
        (
            tools(r#"{"type":"function","function":{"name":"f","parameters":[]}}"#),
            TOOLS,
            "tool 1 has `parameters` that are no JSON schema",
        ),
        (
            format!(r#","tools":[{WEATHER},{other}],"tool_choice":"required""#),
            TOOLS,
            "two of them define `$defs/c` differently",
        ),
        (
            r#","tool_choice":"auto""#.to_owned(),
            CHOICE,
            "when it is given, `tools` must be as well",
        ),
        (
            choice(r#""any""#),
            CHOICE,
            r#"expected "none", "auto", "required" or {"type": "function", "function": {"name": "..."}}"#,
        ),
        (
            choice(r#"{"type":"function"}"#),
            CHOICE,
            r#"expected {"type": "function", "function": {"name": "..."}}"#,
        ),
        (
            choice(r#"{"type":"function","function":{"name":"go"}}"#),
            CHOICE,
            "the function 'go' is none of the tools",
        ),
        (
            format!(r#","tools":[{STOP}],"parallel_tool_calls":1"#),
            PARALLEL,
            "expected true or false",
        ),
        (r#","include_reasoning":1"#.to_owned(), "include_reasoning", "expected true or false"),
    ];
    for (fields, param, message) in cases {
        let error = request(HI, &fields).expect_err(&fields).error;
        assert_eq!((error.code, error.param), ("invalid_parameter", Some(param)), "{fields}");
        assert_eq!(error.message, format!("{param}: {message}"), "{fields}");
    }
    for (fields, param) in
        [(tools(r#"{"type":"custom"}"#), TOOLS), (choice(r#"{"type":"allowed_tools"}"#), CHOICE)]
    {
        let error = request(HI, &fields).expect_err(&fields).error;
        assert_eq!((error.code, error.param), ("unsupported_field", Some(param)), "{fields}");
    }
}

#[test]
fn fields_of_users_are_no_tools() {
    for fields in [
        r#","tools":[],"tool_choice":"best""#,
        r#","tools":[{"name":"hammer"}],"parallel_tool_calls":5"#,
        r#","tools":"hammer","include_reasoning":"yes""#,
    ] {
        let row = plain(fields).unwrap_or_else(|bad| panic!("{:?}: {fields}", bad.error));
        assert_eq!(row.answer_form, Some(AnswerForm::default()), "{fields}");
        assert_eq!(chat(row).tools, None, "{fields}");
    }
    let error = plain(r#","tool_choice":"required""#).expect_err("no tools").error;
    assert_eq!((error.code, error.param), ("invalid_parameter", Some(CHOICE)));
    let error = plain(r#","tools":[{"type":"function"}]"#).expect_err("no function").error;
    assert_eq!((error.code, error.param), ("invalid_parameter", Some(TOOLS)));
    let text = parsed(&format!(r#"{{"prompt":"p","tools":[{STOP}]}}"#)).expect_err("no chat");
    assert_eq!((text.error.code, text.error.param), ("unsupported_field", Some(TOOLS)));
}

#[test]
fn what_a_row_says_of_thinking_is_known_to_whoever_reads_its_answer() {
    let form = |fields: &str| row(fields).answer_form.expect("a chat");
    assert_eq!(form("").thinking.switch, None);
    assert_eq!(
        form(r#","chat_template_kwargs":{"enable_thinking":false}"#).thinking.switch,
        Some(false)
    );
    assert_eq!(form(r#","chat_template_kwargs":{"thinking":true}"#).thinking.switch, Some(true));
    assert_eq!(form(r#","reasoning_effort":"none""#).thinking.switch, Some(false));
    assert!(form(r#","include_reasoning":false"#).hides_reasoning);
    assert!(!form(r#","include_reasoning":true"#).hides_reasoning);
}

#[test]
fn calls_in_messages_are_what_templates_expect() {
    let call = |arguments: &str| {
        format!(r#"{{"id":"i","type":"function","function":{{"name":"f"{arguments}}}}}"#)
    };
    let message = |calls: &str| {
        let messages =
            format!(r#"{HI},{{"role":"assistant","content":null,"tool_calls":{calls}}}"#);
        chat(request(&messages, "").unwrap_or_else(|bad| panic!("{:?}: {calls}", bad.error)))
            .messages[1]
            .clone()
    };
    for (given, expected) in [
        (r#","arguments":"{\"z\": 1.0, \"a\": [1e3, \"x\"]}""#, r#"{"z":1.0,"a":[1000.0,"x"]}"#),
        (r#","arguments":{"z":1}"#, r#"{"z":1}"#),
        (r#","arguments":"""#, "{}"),
        (r#","arguments":null"#, "{}"),
        ("", "{}"),
    ] {
        let found = message(&format!("[{}]", call(given)));
        assert_eq!(found["tool_calls"][0]["function"]["arguments"].to_string(), expected);
        assert_eq!(found["content"], "", "as in vLLM");
    }
    for nothing in ["[]", "null"] {
        assert_eq!(message(nothing), json!({"role": "assistant", "content": ""}));
    }
    let bare = r#"[{"name":"f","arguments":"{\"a\":1}"}]"#;
    assert_eq!(message(bare)["tool_calls"], json!([{"name": "f", "arguments": {"a": 1}}]));
    let tool = r#"{"role":"tool","tool_call_id":"i","content":null}"#;
    let messages = chat(request(&format!("{HI},{tool}"), "").expect("a row")).messages;
    assert_eq!(messages[1], json!({"role": "tool", "tool_call_id": "i", "content": ""}));

    for (calls, message) in [
        ("{}", "has `tool_calls` that are no list"),
        ("[5]", "has a call 0 that is no object"),
        (r#"[{"function":{}}]"#, "has a call 0 without the `name` of a function"),
        (
            r#"[{"function":{"name":"f","arguments":"{\"a\":"}}]"#,
            "has a call 0 with `arguments` that are no JSON: EOF while parsing a value",
        ),
    ] {
        let messages = format!(r#"{HI},{{"role":"assistant","tool_calls":{calls}}}"#);
        let error = request(&messages, "").expect_err(calls).error;
        assert_eq!((error.code, error.param), ("invalid_prompt", Some("messages")), "{calls}");
        assert_eq!(error.message, format!("body.messages: message 1 {message}"));
    }
}
