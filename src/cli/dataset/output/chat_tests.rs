//! Answers of chats by their parts, to the byte: thinking, text and calls in every form of a row.

use serde_json::{Value, json};

use super::tests::{TOKENS, completion, output};
use super::*;
use crate::input::batch_line::BatchLine;
use crate::input::fields::JsonFields;
use vllm_batch_api::request::FinishReason;
use vllm_batch_text::{Tool, ToolChoice};

const CALL: &str = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1.0,\n \
                    \"a\": \"é\"}}\n</tool_call>";
const THOUGHT: &str = "<think>Hm.</think>5";

fn form(tool_choice: ToolChoice) -> AnswerForm {
    let tool = Tool { name: "f".to_owned(), parameters: Value::Null };
    AnswerForm { tools: vec![tool], tool_choice, ..AnswerForm::default() }
}

/// What stands before an answer that was not thought about.
const AT_ONCE: &str = "<think></think>";

/// A line with qwen3's thinking and hermes' calls.
fn line(passthrough: &Passthrough, form: &AnswerForm, answer: &RequestOutput) -> String {
    let parser = AnswerParser::new("qwen3", "hermes", None).expect("known names");
    line_by(&parser, passthrough, form, answer)
}

fn line_by(
    parser: &AnswerParser,
    passthrough: &Passthrough,
    form: &AnswerForm,
    answer: &RequestOutput,
) -> String {
    let options = OutputOptions {
        out_field: "response",
        more_fields: &[],
        detail: Detail::Auto,
        usage_cached: false,
        facts: &RunFacts::default(),
        parser,
        tokens: &TOKENS,
    };
    let mut out = Vec::new();
    let asked = Asked { passthrough, form: Some(form) };
    format_row(asked, Ok(answer), &options, &mut out);
    let text = String::from_utf8(out).expect("output is UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// The body of OpenAI's line, or the message of Anthropic's.
fn shown(kind: BatchKind, form: &AnswerForm, text: &str) -> Value {
    let passthrough = Passthrough::Batch(BatchLine::new(kind, None, "{}"));
    let line = line(&passthrough, form, &output(vec![completion(0, text)]));
    let mut line: Value = serde_json::from_str(&line).expect("JSON");
    match kind {
        BatchKind::Message => line["result"]["message"].take(),
        _ => line["response"]["body"].take(),
    }
}

fn choice(form: &AnswerForm, text: &str) -> Value {
    shown(BatchKind::Chat, form, text)["choices"][0].take()
}

/// `--prompt` prints no thinking, and ends its text with one line break.
#[test]
fn an_answer_alone_is_its_text() {
    let parser = AnswerParser::new("qwen3", "hermes", None).expect("known names");
    let options = OutputOptions {
        out_field: "response",
        more_fields: &[],
        detail: Detail::Auto,
        usage_cached: false,
        facts: &RunFacts::default(),
        parser: &parser,
        tokens: &TOKENS,
    };
    let passthrough = Passthrough::Json(JsonFields::from_pairs(&[]));
    let form = AnswerForm::default();
    for (text, shown) in
        [(THOUGHT, "5\n"), ("<think></think>a\n\nb\n", "a\n\nb\n"), ("<think>Hm", "\n")]
    {
        let mut out = Vec::new();
        let asked = Asked { passthrough: &passthrough, form: Some(&form) };
        format_answer(asked, Ok(&output(vec![completion(0, text)])), &options, &mut out);
        assert_eq!(String::from_utf8(out).expect("text"), shown, "{text}");
    }
    let mut out = Vec::new();
    let error = RowError::new("context_length", 1, "too long");
    let asked = Asked { passthrough: &passthrough, form: None };
    format_answer(asked, Err(&error), &options, &mut out);
    assert!(out.is_empty());
}

#[test]
fn a_message_of_openai_has_its_parts() {
    let auto = form(ToolChoice::Auto);
    let found = choice(&auto, &format!("{AT_ONCE}{CALL}"));
    let id = found["message"]["tool_calls"][0]["id"].as_str().expect("an id");
    let digits = id.strip_prefix("chatcmpl-tool-").expect("vLLM's prefix");
    assert!(digits.len() == 16 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{id}");
    let arguments = "{\"z\": 1.0,\n \"a\": \"é\"}";
    let expected = json!({"index": 0, "message": {"role": "assistant", "content": "Let me see.\n",
        "refusal": null, "tool_calls": [{"id": id, "type": "function",
            "function": {"name": "f", "arguments": arguments}}]},
        "logprobs": null, "finish_reason": "tool_calls"});
    assert_eq!(found, expected);
    let expected = json!({"index": 0, "message":
        {"role": "assistant", "content": "5", "refusal": null, "reasoning": "Hm."},
        "logprobs": null, "finish_reason": "stop"});
    assert_eq!(choice(&auto, THOUGHT), expected);
    let usage = &shown(BatchKind::Chat, &auto, THOUGHT)["usage"];
    assert_eq!(usage["completion_tokens_details"], json!({"reasoning_tokens": 2}));
    let hidden = AnswerForm { hides_reasoning: true, ..AnswerForm::default() };
    let message = &choice(&hidden, THOUGHT)["message"];
    assert_eq!(*message, json!({"role": "assistant", "content": "5", "refusal": null}));
    // Thought to the end, and hidden: there is nothing to show.
    assert_eq!(choice(&hidden, "<think>Hm.")["message"]["content"], Value::Null);
    assert_eq!(choice(&auto, "")["message"]["content"], "");
}

#[test]
fn calls_end_an_answer_by_the_choice_of_its_row() {
    let list = r#"[{"name": "f", "parameters": {"a": 1}}]"#;
    let required = form(ToolChoice::Required);
    let named = form(ToolChoice::Named("f".to_owned()));
    let of = |form: &AnswerForm, text: &str| {
        let choice = choice(form, &format!("{AT_ONCE}{text}"));
        let arguments = &choice["message"]["tool_calls"][0]["function"]["arguments"];
        (choice["finish_reason"].clone(), arguments.clone(), choice["message"]["content"].clone())
    };
    assert_eq!(of(&required, list), ("tool_calls".into(), r#"{"a": 1}"#.into(), Value::Null));
    assert_eq!(of(&named, r#"{"a": 1}"#), ("stop".into(), r#"{"a": 1}"#.into(), Value::Null));
    // No calls are looked for where none may be.
    let none = form(ToolChoice::None);
    assert_eq!(of(&none, CALL), ("stop".into(), Value::Null, CALL.into()));
    let cut = &list[..9];
    assert_eq!(of(&required, cut), ("stop".into(), Value::Null, cut.into()));
}

#[test]
fn a_message_of_anthropic_is_blocks() {
    let auto = form(ToolChoice::Auto);
    let message = |form: &AnswerForm, text: &str| {
        let is_thought = text.starts_with("<think>");
        let before = if is_thought { "" } else { AT_ONCE };
        shown(BatchKind::Message, form, &format!("{before}{text}"))
    };
    let found = message(&auto, CALL);
    let id = found["content"][1]["id"].as_str().expect("an id");
    assert!(id.starts_with("toolu_"), "{id}");
    let expected = json!([{"type": "text", "text": "Let me see.\n"},
        {"type": "tool_use", "id": id, "name": "f", "input": {"z": 1.0, "a": "é"}}]);
    assert_eq!((&found["content"], &found["stop_reason"]), (&expected, &json!("tool_use")));
    let expected = json!([{"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "text", "text": "5"}]);
    let found = message(&auto, THOUGHT);
    assert_eq!((&found["content"], &found["stop_reason"]), (&expected, &json!("end_turn")));
    let named = form(ToolChoice::Named("f".to_owned()));
    let found = message(&named, r#"{"a": 1}"#);
    assert_eq!(found["content"][0]["input"], json!({"a": 1}));
    assert_eq!(found["stop_reason"], "tool_use");
    // Arguments that are no object have no place in a block.
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>";
    let found = message(&auto, text);
    assert_eq!(found["content"], json!([{"type": "text", "text": text}]));
    assert_eq!(found["stop_reason"], "end_turn");
}

#[test]
fn a_plain_row_has_parts_only_where_there_are_any() {
    let fields = r#"{"messages":[],"tools":[{"type":"function"}],"tool_calls":1,"reasoning":2"#;
    let passthrough =
        Passthrough::Json(JsonFields::parse(format!("{fields}}}"), 1).expect("valid JSON"));
    let row = |texts: &[&str]| {
        let completions = (0..).zip(texts).map(|(index, text)| completion(index, text));
        line(&passthrough, &form(ToolChoice::Auto), &output(completions.collect()))
    };
    let call = format!("{AT_ONCE}{CALL}");
    let kept = fields.replace("\"tool_calls\"", "\"input_tool_calls\"");
    let kept = kept.replace("\"reasoning\"", "\"input_reasoning\"");
    let usage = r#""usage":{"prompt_tokens":3,"completion_tokens":2}}"#;
    let plain = format!("{kept},\"response\":\"5\",\"finish_reason\":\"stop\",{usage}\n");
    assert_eq!(row(&["<think></think>5"]), plain);
    let thought = row(&[THOUGHT]);
    let parts = r#","response":"5","reasoning":"Hm.","finish_reason":"stop","#;
    assert_eq!(thought, format!("{kept}{parts}{usage}\n"));
    let called: Value = serde_json::from_str(&row(&["<think></think>5", &call])).expect("JSON");
    assert_eq!((&called["response"], &called["finish_reason"]), (&json!("5"), &json!("stop")));
    let second = &called["outputs"][1];
    assert_eq!((&second["text"], &second["content"]), (&json!(call), &json!("Let me see.\n")));
    assert_eq!(second["tool_calls"][0]["function"]["name"], "f");
    assert!(called["outputs"][0].get("content").is_none(), "{called}");
    let alone: Value = serde_json::from_str(&row(&[&call])).expect("JSON");
    assert_eq!(alone["finish_reason"], "tool_calls");
    assert_ne!(alone["tool_calls"][0]["id"], second["tool_calls"][0]["id"], "of another answer");
}

/// Its templates refuse others in the messages of the next request.
#[test]
fn ids_of_mistrals_calls_are_nine_letters_and_digits() {
    let parser = AnswerParser::new("none", "mistral", None).expect("known names");
    let passthrough = Passthrough::Batch(BatchLine::new(BatchKind::Chat, None, "{}"));
    let answer = output(vec![completion(0, r#"[TOOL_CALLS] [{"name": "f", "arguments": {}}]"#)]);
    let line = line_by(&parser, &passthrough, &form(ToolChoice::Auto), &answer);
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let id = &line["response"]["body"]["choices"][0]["message"]["tool_calls"][0]["id"];
    let id = id.as_str().unwrap_or_else(|| panic!("{line}"));
    assert!(id.len() == 9 && id.bytes().all(|c| c.is_ascii_alphanumeric()), "{id}");
}

#[test]
fn a_text_that_is_completed_has_no_parts() {
    let parser = AnswerParser::new("qwen3", "hermes", None).expect("known names");
    let cut = CompletionOutput { finish_reason: FinishReason::Length, ..completion(0, THOUGHT) };
    let shown = shown::Shown::new(&cut, None, &parser);
    assert_eq!((shown.content.as_deref(), shown.has_parts()), (Some(THOUGHT), false));
}
