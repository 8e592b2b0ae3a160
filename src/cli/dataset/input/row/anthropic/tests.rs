//! Tools, calls of them and thinking in requests of Anthropic's.

use std::io::Cursor;

use serde_json::{Value, json};

use crate::input::reader::{InputFormat, Records};
use crate::input::row::{BadRow, Row, RowOptions, RowParser};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_text::Chat;
use vllm_batch_text::{Tool, ToolChoice};

fn parsed(params: &Value) -> Result<Row, Box<BadRow>> {
    let first =
        json!({"custom_id": "a", "params": {"messages": [{"role": "user", "content": "x"}]}});
    let input = format!("{first}\n{}", json!({"custom_id": "c", "params": params}));
    let records = Records::open(Box::new(Cursor::new(input)), InputFormat::Jsonl, 1 << 20);
    let mut records = records.expect("text");
    let mut parser = RowParser::new(&mut records, &RowOptions::default()).expect("a shape");
    let last = records.map(|record| parser.parse(record.expect("text"))).last();
    last.expect("two rows").expect("a shape").map_err(Box::new)
}

/// A request of these fields, with a message if they have none.
fn asked(fields: Value) -> Result<Row, Box<BadRow>> {
    let mut params = json!({"model": "m", "max_tokens": 9});
    let messages = json!([{"role": "user", "content": "hi"}]);
    params["messages"] = messages;
    params.as_object_mut().expect("made above").extend(fields.as_object().expect("fields").clone());
    parsed(&params)
}

fn row(fields: Value) -> Row {
    asked(fields).unwrap_or_else(|bad| panic!("{:?}", bad.error))
}

fn chat(fields: Value) -> Chat {
    match row(fields).prompt {
        Prompt::Messages(chat) => *chat,
        other => panic!("{other:?}"),
    }
}

fn weather() -> Value {
    json!({"name": "weather", "description": "Now", "input_schema": {
        "type": "object", "properties": {"z": {"type": "number", "minimum": 1.0}, "a": {}}}})
}

#[test]
fn tools_are_functions_to_the_template() {
    let fields = json!({"tools": [weather(), {"type": "custom", "name": "b", "input_schema": {}}]});
    let expected = json!([
        {"type": "function", "function": {"name": "weather", "description": "Now",
            "parameters": weather()["input_schema"]}},
        {"type": "function", "function": {"name": "b", "parameters": {}}},
    ]);
    let shown = chat(fields.clone()).tools.expect("tools");
    assert_eq!(shown.to_string(), expected.to_string(), "in this order");
    let form = row(fields).answer_form.expect("a chat");
    let names: Vec<&str> = form.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names.as_slice(), form.tool_choice), (&["weather", "b"][..], ToolChoice::Auto));
}

#[test]
fn choices_have_other_names() {
    let form = |choice: Value| {
        row(json!({"tools": [weather()], "tool_choice": choice})).answer_form.expect("a chat")
    };
    assert_eq!(form(json!({"type": "auto"})).tool_choice, ToolChoice::Auto);
    assert_eq!(form(json!({"type": "none"})).tool_choice, ToolChoice::None);
    let any = form(json!({"type": "any", "disable_parallel_tool_use": true}));
    assert_eq!((any.tool_choice, any.is_single_call), (ToolChoice::Required, true));
    let named = form(json!({"type": "tool", "name": "weather"}));
    assert_eq!(named.tool_choice, ToolChoice::Named("weather".to_owned()));
    let parameters = weather()["input_schema"].clone();
    assert_eq!(named.tools, [Tool { name: "weather".to_owned(), parameters }]);
}

#[test]
fn blocks_of_calls_become_messages_of_openai() {
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm. ", "signature": "s"},
            {"type": "thinking", "thinking": "Ask.", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"z": 1.5, "a": [1]}},
            {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "dry", "is_error": false},
            {"type": "tool_result", "tool_use_id": "t2", "content": [
                {"type": "text", "text": "wet"}, {"type": "text", "text": "cold"}]},
            {"type": "text", "text": "And?"},
        ]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t3", "name": "weather", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]},
    ]);
    let call = |id: &str, arguments: Value| {
        json!({"id": id, "type": "function",
            "function": {"name": "weather", "arguments": arguments}})
    };
    let tool = |id: &str, text: &str| json!({"role": "tool", "tool_call_id": id, "content": text});
    let expected = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}],
            "reasoning": "Hm. Ask.",
            "tool_calls": [call("t1", json!({"z": 1.5, "a": [1]})), call("t2", json!({}))]},
        tool("t1", "dry"),
        tool("t2", "wet\ncold"),
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        {"role": "assistant", "content": "", "tool_calls": [call("t3", json!({}))]},
        tool("t3", ""),
    ]);
    assert_eq!(chat(json!({"messages": messages})).messages, expected);
}

#[test]
fn thinking_is_a_switch_of_the_template_and_a_budget() {
    let thinking = json!({"thinking": {"type": "enabled", "budget_tokens": 2048}});
    let on = json!({"enable_thinking": true, "thinking": true});
    assert_eq!(Value::Object(chat(thinking.clone()).kwargs), on);
    let asked = row(thinking);
    assert_eq!(asked.answer_form.expect("a chat").thinking.switch, Some(true));
    let (name, written) = ("thinking_token_budget", "thinking.budget_tokens");
    let other = row(json!({})).overrides.with_written(name, written, Some("2048".to_owned()));
    assert_eq!(asked.overrides, other);
    let off = row(json!({"thinking": {"type": "disabled"}}));
    assert_eq!(off.answer_form.expect("a chat").thinking.switch, Some(false));
    assert_eq!(off.overrides, row(json!({})).overrides);
    let own = json!({"thinking": {"type": "adaptive", "display": "omitted"},
        "chat_template_kwargs": {"enable_thinking": false, "b": 1},
        "output_config": {"effort": "low"}});
    let expected = json!({
        "enable_thinking": false, "thinking": true, "b": 1, "reasoning_effort": "low",
    });
    assert_eq!(Value::Object(chat(own.clone()).kwargs), expected);
    assert!(row(own).answer_form.expect("a chat").hides_reasoning);
}

#[test]
fn a_schema_is_a_structured_output() {
    let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
    let format = json!({"type": "json_schema", "schema": schema});
    let text = Some(json!({"json": schema}).to_string());
    for (field, written) in [
        (json!({"output_config": {"format": format}}), "output_config.format"),
        (json!({"output_format": format}), "output_format"),
    ] {
        let (name, plain) = ("structured_outputs", row(json!({})).overrides);
        assert_eq!(row(field).overrides, plain.with_written(name, written, text.clone()));
    }
}

#[test]
fn what_is_wrong_is_named() {
    let tools = |tool: Value| json!({"tools": [weather(), tool]});
    let choice = |choice: Value| json!({"tools": [weather()], "tool_choice": choice});
    let blocks = |role: &str, block: Value| {
        json!({"messages": [
        {"role": "user", "content": "x"}, {"role": role, "content": [block]}]})
    };
    let cases = [
        (
            tools(json!({"type": "web_search_20250305", "name": "web_search"})),
            ("unsupported_field", "tools"),
            "tools: tool 1 is 'web_search_20250305': only tools of your own are supported",
        ),
        (tools(json!({"input_schema": {}})), INVALID_TOOLS, "tools: tool 1 has no `name`"),
        (
            tools(json!({"name": "f"})),
            INVALID_TOOLS,
            "tools: tool 1 has no `input_schema` that is an object",
        ),
        (
            choice(json!({"type": "tool", "name": "f"})),
            INVALID_CHOICE,
            "tool_choice: the function 'f' is none of the tools",
        ),
        (
            json!({"tool_choice": {"type": "any"}}),
            INVALID_CHOICE,
            "tool_choice: when it is given, `tools` must be as well",
        ),
        (
            choice(json!("any")),
            INVALID_CHOICE,
            "tool_choice: expected a `type` that is \"auto\", \"any\", \"tool\" or \"none\"",
        ),
        (
            json!({"thinking": {"type": "on"}}),
            ("invalid_parameter", "thinking"),
            "thinking: expected a `type` that is \"enabled\", \"adaptive\" or \"disabled\"",
        ),
        (
            json!({"output_config": {"format": {"type": "json"}}}),
            ("invalid_parameter", "output_config.format"),
            "output_config.format: expected a format {\"type\": \"json_schema\", \"schema\": {...}}",
        ),
        (
            blocks("user", json!({"type": "tool_use", "id": "t", "name": "f", "input": {}})),
            ("invalid_prompt", "messages"),
            "params.messages: message 1 has a block of type 'tool_use', which user cannot send",
        ),
        (
            blocks(
                "user",
                json!({"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "image"}]}),
            ),
            ("unsupported_field", "messages"),
            "params.messages: message 1 has a tool result of type 'image': only text is supported",
        ),
        (
            blocks("assistant", json!({"type": "server_tool_use", "id": "t"})),
            ("unsupported_field", "messages"),
            "params.messages: message 1 has a part of type 'server_tool_use': only text, images, \
             recordings and PDFs are supported",
        ),
    ];
    for (fields, (code, param), message) in cases {
        let error = asked(fields).expect_err(message).error;
        assert_eq!((error.code, error.param, error.message.as_str()), (code, Some(param), message));
    }
}

const INVALID_TOOLS: (&str, &str) = ("invalid_parameter", "tools");
const INVALID_CHOICE: (&str, &str) = ("invalid_parameter", "tool_choice");
