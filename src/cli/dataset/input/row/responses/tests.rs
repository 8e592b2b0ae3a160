//! Requests for responses as chats, and every way to be refused.

use serde_json::{Value, json};

use super::*;
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{NumLogprobs, SamplingParams};
use vllm_batch_text::ToolChoice;

fn asked(body: Value) -> Result<Asked, (&'static str, String)> {
    let body = JsonFields::parse(body.to_string(), 1).map_err(|bad| bad.1).unwrap();
    read(&body, &ChatDefaults::default(), 1).map_err(|error| (error.code, error.message))
}

fn messages(body: Value) -> Value {
    match asked(body).unwrap_or_else(|error| panic!("{error:?}")).prompt {
        Prompt::Messages(chat) => chat.messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn input_and_instructions_are_a_chat() {
    let hi = json!({"role": "user", "content": "hi"});
    assert_eq!(messages(json!({"input": "hi"})), json!([hi]));
    assert_eq!(
        messages(json!({"input": "hi", "instructions": "be brief"})),
        json!([{"role": "system", "content": "be brief"}, hi])
    );
    let part = json!({"type": "input_text", "text": "hi"});
    assert_eq!(
        messages(json!({"input": [{"role": "user", "content": [part]}]})),
        json!([{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    );
}

#[test]
fn calls_and_thinking_are_of_the_message_that_they_belong_to() {
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{\"a\":1}"});
    let input = json!([
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        call("a"),
        call("b"),
        {"type": "function_call_output", "call_id": "a", "output": "7"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    ]);
    let told = |id: &str| {
        let function = json!({"name": "f", "arguments": {"a": 1}});
        json!({"id": id, "type": "function", "function": function})
    };
    let expected = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning": "t", "tool_calls": [told("a"), told("b")]},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ]);
    assert_eq!(messages(json!({ "input": input })), expected);
}

#[test]
fn parameters_have_their_names_of_this_api() {
    let body = json!({"input": "hi", "max_output_tokens": 7, "temperature": 0, "top_p": 0.5,
        "top_logprobs": 2, "include": ["message.output_text.logprobs"],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "integer"}}}});
    let params = asked(body).unwrap().overrides.apply(&SamplingParams::default()).unwrap();
    assert_eq!((params.max_tokens, params.temperature, params.top_p), (Some(7), 0.0, 0.5));
    assert_eq!(params.logprobs, Some(NumLogprobs::Top(2)));
    assert!(params.structured_outputs.is_some());
}

#[test]
fn tools_are_flat() {
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let choice = json!({"type": "function", "name": "f"});
    let asked = asked(json!({"input": "hi", "tools": [tool], "tool_choice": choice})).unwrap();
    let form = asked.answer_form.unwrap();
    assert_eq!(form.tool_choice, ToolChoice::Named("f".to_owned()));
    assert_eq!(form.tools[0].name, "f");
    let Prompt::Messages(chat) = asked.prompt else { panic!("no chat") };
    let function = json!({"name": "f", "parameters": {"type": "object"}});
    assert_eq!(chat.tools, Some(json!([{"type": "function", "function": function}])));
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("prompt", json!({"id": "p"})),
        ("background", json!(true)),
        ("stream", json!(true)),
        ("truncation", json!("auto")),
        ("max_tokens", json!(3)),
        ("response_format", json!({"type": "json_object"})),
        ("n", json!(2)),
        ("tools", json!([{"type": "web_search"}])),
        ("input", json!([{"type": "item_reference", "id": "a"}])),
        ("input", json!([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}])),
    ] {
        let mut body = json!({"input": "hi"});
        body[field] = value;
        let (code, message) = asked(body).err().unwrap_or_else(|| panic!("{field}"));
        assert_eq!(code, "unsupported_field", "{message}");
        assert!(message.contains(field), "{message}");
    }
    assert_eq!(asked(json!({})).err().unwrap().0, "invalid_prompt");
}

#[test]
fn an_answer_says_again_what_was_asked() {
    let row = json!({"body": {"input": "hi", "metadata": {"a": "b"}, "temperature": 0.5}});
    let fields = JsonFields::parse(row.to_string(), 1).map_err(|bad| bad.1).unwrap();
    let echo: Value = serde_json::from_str(&format!("{{{}}}", echo(&fields))).unwrap();
    assert_eq!(echo["metadata"], json!({"a": "b"}));
    assert_eq!((&echo["temperature"], &echo["tools"]), (&json!(0.5), &json!([])));
}
