//! Chunks of streamed answers: joined they are the whole answer, however it was cut.

use serde_json::{Map, Value, json};

use super::anthropic_events::MessageEvents;
use super::openai_chunks::{Chunks, StreamOptions, Streamed};
use super::response_events::ResponseEvents;
use super::tests::{TOKENS, completion, output, token};
use super::*;
use crate::input::batch_line::{BatchLine, Echo};
use vllm_batch_api::request::{CompletionDelta, FinishReason};
use vllm_batch_text::{Tool, ToolChoice};

fn format(reasoning: &str, tool_calls: &str) -> JsonFormat {
    JsonFormat {
        out_field: "response".to_owned(),
        detail: Detail::Auto,
        facts: RunFacts { model: "m".to_owned(), created: 7, system_fingerprint: None },
        parser: AnswerParser::new(reasoning, tool_calls, None).unwrap(),
        is_answer_alone: false,
        pooled: PooledForm::Vectors,
        more_fields: Vec::new(),
    }
}

fn form(with_tools: bool) -> AnswerForm {
    let tools = [Tool { name: "f".to_owned(), parameters: json!({"type": "object"}) }];
    match with_tools {
        false => AnswerForm::default(),
        true => AnswerForm {
            tools: tools.into(),
            tool_choice: ToolChoice::Auto,
            ..AnswerForm::default()
        },
    }
}

/// The chunks of answers whose texts come in pieces of so many characters.
fn chunks(
    kind: BatchKind,
    format: &JsonFormat,
    form: Option<AnswerForm>,
    texts: &[&str],
    size: usize,
) -> Vec<Value> {
    let line = BatchLine::new(kind, None, "{}");
    let options = StreamOptions { include_usage: true, continuous_usage_stats: false };
    let num_choices = texts.len() as u32;
    let mut chunks =
        Chunks::new(Streamed { line, form, options, num_choices, num_prompt_tokens: 3 });
    let mut written = chunks.begin(format, &TOKENS);
    for (index, text) in texts.iter().enumerate() {
        let characters: Vec<char> = text.chars().collect();
        for piece in characters.chunks(size) {
            let delta = CompletionDelta {
                index: index as u32,
                text: piece.iter().collect(),
                token_ids: vec![1],
                logprobs: None,
                finish_reason: None,
            };
            written.extend(chunks.take_in(&[delta], format, &TOKENS));
        }
    }
    let completions = texts.iter().enumerate();
    let completions = completions.map(|(index, text)| completion(index as u32, text)).collect();
    written.extend(chunks.finish(&output(completions), format, &TOKENS));
    written.iter().map(|chunk| serde_json::from_str(chunk).expect("JSON")).collect()
}

/// What a client joins of the chunks of one choice, as openai-python does: texts are appended, a
/// field that is there twice is there twice.
fn joined(chunks: &[Value], index: usize) -> Map<String, Value> {
    let mut message = Map::new();
    for chunk in chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            for (name, value) in choice["delta"].as_object().unwrap() {
                if name == "tool_calls" {
                    join_calls(message.entry("tool_calls").or_insert(json!([])), &value[0]);
                    continue;
                }
                match (message.get_mut(name), value) {
                    (Some(Value::String(known)), Value::String(more)) => known.push_str(more),
                    (None, value) => drop(message.insert(name.clone(), value.clone())),
                    (Some(_), _) => panic!("{name} is there twice"),
                }
            }
        }
    }
    message
}

/// The same of calls, by their number: a name or an id that comes again is there twice.
fn join_calls(calls: &mut Value, piece: &Value) {
    let calls = calls.as_array_mut().unwrap();
    let index = piece["index"].as_u64().unwrap() as usize;
    if index == calls.len() {
        return calls.push(piece.clone());
    }
    assert_eq!(piece, &json!({"index": index, "function": piece["function"]}));
    let function = piece["function"].as_object().unwrap();
    assert_eq!(function.keys().collect::<Vec<_>>(), ["arguments"]);
    let known = &mut calls[index]["function"]["arguments"];
    *known = (known.as_str().unwrap().to_owned() + function["arguments"].as_str().unwrap()).into();
}

/// The line of an answer that is whole.
fn whole_line(
    line: BatchLine,
    form: Option<&AnswerForm>,
    format: &JsonFormat,
    answer: &RequestOutput,
) -> Value {
    let passthrough = Passthrough::Batch(line);
    let asked = Asked { passthrough: &passthrough, form };
    let mut out = Vec::new();
    format_row(asked, Ok(answer), &format.options(&TOKENS), &mut out);
    serde_json::from_slice(&out).unwrap()
}

/// The message of the whole answer.
fn message(format: &JsonFormat, form: Option<&AnswerForm>, text: &str) -> Value {
    let answer = output(vec![completion(0, text)]);
    let line = whole_line(BatchLine::new(BatchKind::Chat, None, "{}"), form, format, &answer);
    line["response"]["body"]["choices"][0]["message"].clone()
}

#[test]
fn joined_chunks_are_the_whole_answer_however_it_was_cut() {
    let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>";
    let thought = "<think>\nso é\n</think>\n\nfive";
    let both = ["<think>a</think>", call].concat();
    for (parsers, with_tools, text) in [
        (("none", "none"), false, "five é and six"),
        (("none", "none"), false, ""),
        (("qwen3", "none"), false, thought),
        (("qwen3", "none"), false, "<think>\ncut off"),
        (("deepseek_r1", "none"), false, "so\n</think>five"),
        (("none", "hermes"), true, call),
        (("none", "hermes"), true, "no call"),
        (("qwen3", "hermes"), true, &both),
    ] {
        let format = format(parsers.0, parsers.1);
        let form = form(with_tools);
        let mut expected = message(&format, Some(&form), text);
        // Pieces leave out what adds nothing.
        assert_eq!(expected.as_object_mut().unwrap().remove("refusal"), Some(Value::Null));
        if let Some(calls) = expected.get_mut("tool_calls").and_then(Value::as_array_mut) {
            for (index, call) in calls.iter_mut().enumerate() {
                call["index"] = index.into();
            }
        }
        for size in 1..=text.chars().count().max(1) {
            let chunks = chunks(BatchKind::Chat, &format, Some(form.clone()), &[text], size);
            let mut joined = joined(&chunks, 0);
            // An answer of calls alone has no content; the role came with an empty one.
            if expected["content"].is_null() && joined["content"] == "" {
                joined.insert("content".to_owned(), Value::Null);
            }
            assert_eq!(Value::Object(joined), expected, "{text:?} in pieces of {size}");
        }
    }
}

#[test]
fn roles_come_first_and_in_order_and_ends_and_usage_last() {
    let format = format("none", "none");
    let chunks = chunks(BatchKind::Chat, &format, Some(form(false)), &["ab", "c"], 1);
    let heads: Vec<_> = chunks.iter().map(|chunk| &chunk["choices"][0]).collect();
    for index in 0..2 {
        assert_eq!(heads[index]["index"], index);
        assert_eq!(heads[index]["delta"], json!({"role": "assistant", "content": ""}));
        let ends =
            |choice: &&&Value| choice["index"] == index && !choice["finish_reason"].is_null();
        let ends: Vec<_> = heads.iter().filter(ends).collect();
        assert_eq!(ends.len(), 1);
        assert_eq!(ends[0]["delta"], json!({}));
    }
    let (usage, others) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 7);
    assert!(others.iter().all(|chunk| chunk.get("usage").is_none()));
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["created"] == 7));
}

#[test]
fn texts_that_are_completed_have_no_roles_and_offsets_that_go_on() {
    let format = format("none", "none");
    let line = BatchLine::new(BatchKind::Completions, None, "{}");
    let options = StreamOptions { include_usage: false, continuous_usage_stats: true };
    let streamed = Streamed { line, form: None, options, num_choices: 1, num_prompt_tokens: 3 };
    let mut chunks = Chunks::new(streamed);
    assert!(chunks.begin(&format, &TOKENS).is_empty());
    let positions = |ids: &[u32]| {
        let of = |id: &u32| PositionLogprobs { token: token(*id, -0.5, 1), top: Vec::new() };
        Some(ids.iter().map(of).collect::<Vec<_>>())
    };
    let mut written = Vec::new();
    for (text, id) in [("a", 4), ("b", 50)] {
        let (index, finish_reason) = (0, None);
        let logprobs = positions(&[id]);
        let delta = CompletionDelta {
            index,
            text: text.to_owned(),
            token_ids: vec![id],
            logprobs,
            finish_reason,
        };
        written.extend(chunks.take_in(&[delta], &format, &TOKENS));
    }
    // Its last token came with the end alone.
    let mut whole = completion(0, "abc");
    (whole.token_ids, whole.logprobs) = (vec![4, 50, 6], positions(&[4, 50, 6]));
    whole.finish_reason = FinishReason::Length;
    written.extend(chunks.finish(&output(vec![whole]), &format, &TOKENS));
    let written: Vec<Value> =
        written.iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let of = |name: &str| -> Vec<Value> {
        written.iter().map(|chunk| chunk["choices"][0][name].clone()).collect()
    };
    assert_eq!(of("text"), ["a", "b", "c", ""]);
    assert_eq!(of("finish_reason")[3], "length");
    let offsets: Vec<_> = of("logprobs").iter().map(|all| all["text_offset"][0].clone()).collect();
    assert_eq!(offsets, [json!(0), json!(3), json!(7), Value::Null]);
    let usages: Vec<_> =
        written.iter().map(|chunk| chunk["usage"]["completion_tokens"].clone()).collect();
    assert_eq!(usages, [1, 2, 3, 3]);
}

/// The message that a client of Anthropic's joins of events.
fn joined_message(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    let mut open: Option<usize> = None;
    for event in &events[1..] {
        let content = message["content"].as_array_mut().unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!((open, &event["index"]), (None, &json!(content.len())));
                open = Some(content.len());
                content.push(event["content_block"].clone());
            }
            "content_block_delta" => {
                let index = open.expect("a block is open");
                assert_eq!(event["index"], index);
                for (name, value) in event["delta"].as_object().unwrap() {
                    let block = &mut content[index];
                    match name.as_str() {
                        "type" => {}
                        "partial_json" => {
                            block["input"] = serde_json::from_str(value.as_str().unwrap()).unwrap();
                        }
                        name => {
                            let known = block[name].as_str().unwrap().to_owned();
                            block[name] = (known + value.as_str().unwrap()).into();
                        }
                    }
                }
            }
            "content_block_stop" => assert!(open.take().is_some()),
            "message_delta" => {
                for (name, value) in event["delta"].as_object().unwrap() {
                    message[name] = value.clone();
                }
                message["usage"]["output_tokens"] = event["usage"]["output_tokens"].clone();
            }
            "message_stop" => assert_eq!(event, events.last().unwrap()),
            other => panic!("{other}"),
        }
    }
    message
}

/// Parsers of thinking and of calls, whether there are tools, and the text of an answer.
type EventCase = ((&'static str, &'static str), bool, &'static str);

const EVENT_CASES: [EventCase; 6] = [
    (("none", "none"), false, "five é and six"),
    (("none", "none"), false, ""),
    (("qwen3", "none"), false, "<think>\nso é\n</think>\n\nfive"),
    (("qwen3", "none"), false, "<think>\ncut off"),
    (
        ("none", "hermes"),
        true,
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>",
    ),
    (
        ("qwen3", "hermes"),
        true,
        "<think>a</think>so<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é\"}}\n</tool_call>",
    ),
];

#[test]
fn joined_events_are_the_whole_message_however_it_was_cut() {
    for (parsers, with_tools, text) in EVENT_CASES {
        let (format, form) = (format(parsers.0, parsers.1), form(with_tools));
        let line = || BatchLine::new(BatchKind::Message, None, "{}");
        let answer = output(vec![completion(0, text)]);
        let whole = whole_line(line(), Some(&form), &format, &answer);
        for size in 1..=text.chars().count().max(1) {
            let options = StreamOptions::default();
            let form = Some(form.clone());
            let streamed =
                Streamed { line: line(), form, options, num_choices: 1, num_prompt_tokens: 3 };
            let mut events = MessageEvents::new(streamed);
            let mut written = events.begin(&format);
            for piece in text.chars().collect::<Vec<_>>().chunks(size) {
                let delta = CompletionDelta {
                    index: 0,
                    text: piece.iter().collect(),
                    token_ids: vec![1],
                    logprobs: None,
                    finish_reason: None,
                };
                written.extend(events.take_in(&[delta], &format));
            }
            written.extend(events.finish(&answer, &format, &TOKENS));
            let joined = joined_message(&written);
            assert_eq!(joined, whole["result"]["message"], "{text:?} in pieces of {size}");
        }
    }
}

/// The response that a client joins of events, whose numbers follow each other.
fn joined_response(events: &[Value]) -> Value {
    let mut response = events[0]["response"].clone();
    assert_eq!(response["status"], "in_progress");
    assert_eq!(events[1]["response"], response);
    let mut open = false;
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let Some(output) = response["output"].as_array_mut() else { panic!() };
        let index = event["output_index"].as_u64().map(|index| index as usize);
        let last = output.len().wrapping_sub(1);
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert_eq!((open, index), (false, Some(output.len())));
            open = true;
            output.push(event["item"].clone());
            continue;
        }
        if let Some(index) = index {
            assert!(open && index == last, "{event}");
            if kind != "response.output_item.done" {
                assert_eq!(event["item_id"], output[index]["id"]);
            }
        }
        let part = |item: &Value| item["content"][0].clone();
        match kind {
            "response.created" | "response.in_progress" => assert!(number < 2),
            "response.content_part.added" => output[last]["content"] = json!([event["part"]]),
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                let known = &mut output[last]["content"][0];
                let text = known["text"].as_str().unwrap().to_owned();
                known["text"] = (text + event["delta"].as_str().unwrap()).into();
                if let Some(more) = event["logprobs"].as_array() {
                    known["logprobs"].as_array_mut().unwrap().extend(more.iter().cloned());
                }
            }
            "response.output_text.done" | "response.reasoning_text.done" => {
                assert_eq!(event["text"], part(&output[last])["text"]);
                if kind == "response.output_text.done" {
                    assert_eq!(event["logprobs"], part(&output[last])["logprobs"]);
                }
            }
            "response.content_part.done" => assert_eq!(event["part"], part(&output[last])),
            "response.function_call_arguments.delta" => {
                assert_eq!(output[last]["arguments"], "");
                output[last]["arguments"] = event["delta"].clone();
            }
            "response.function_call_arguments.done" => {
                assert_eq!(event["arguments"], output[last]["arguments"]);
                assert_eq!(event["name"], output[last]["name"]);
            }
            "response.output_item.done" => {
                open = false;
                // Its status is the end's.
                if output[last]["type"] != "reasoning" {
                    output[last]["status"] = event["item"]["status"].clone();
                }
                assert_eq!(event["item"], output[last]);
            }
            "response.completed" | "response.incomplete" => {
                assert_eq!(number + 1, events.len());
                for name in ["status", "incomplete_details", "usage"] {
                    response[name] = event["response"][name].clone();
                }
                assert_eq!(event["response"], response);
            }
            other => panic!("{other}"),
        }
    }
    response
}

#[test]
fn joined_events_are_the_whole_response_however_it_was_cut() {
    let reasons = [FinishReason::Stop, FinishReason::Length];
    for (parsers, with_tools, text) in EVENT_CASES {
        let (format, form) = (format(parsers.0, parsers.1), form(with_tools));
        let line = || {
            let echo = Echo::Fields("\"temperature\":0.5".to_owned());
            BatchLine::new(BatchKind::Response, None, "{}").with_echo(echo)
        };
        for (reason, size) in reasons
            .into_iter()
            .flat_map(|reason| (1..=text.chars().count().max(1)).map(move |size| (reason, size)))
        {
            let pieces: Vec<char> = text.chars().collect();
            let pieces: Vec<String> =
                pieces.chunks(size).map(|piece| piece.iter().collect()).collect();
            let ids: Vec<u32> = (0..=pieces.len() as u32).collect();
            let position = |id: &u32| PositionLogprobs {
                token: token(*id, -0.5, 1),
                top: vec![token(7, -0.25, 1)],
            };
            let mut completion = completion(0, text);
            completion.finish_reason = reason;
            completion.logprobs = Some(ids.iter().map(position).collect());
            completion.token_ids = ids.clone();
            let answer = output(vec![completion]);
            let whole = whole_line(line(), Some(&form), &format, &answer);
            let streamed = Streamed {
                line: line(),
                form: Some(form.clone()),
                options: StreamOptions::default(),
                num_choices: 1,
                num_prompt_tokens: 3,
            };
            let mut events = ResponseEvents::new(streamed);
            let mut written = events.begin(&format, &TOKENS);
            for (piece, id) in pieces.into_iter().zip(&ids) {
                let delta = CompletionDelta {
                    index: 0,
                    text: piece,
                    token_ids: vec![*id],
                    logprobs: Some(vec![position(id)]),
                    finish_reason: None,
                };
                written.extend(events.take_in(&[delta], &format, &TOKENS));
            }
            written.extend(events.finish(&answer, &format, &TOKENS));
            let joined = joined_response(&written);
            assert_eq!(joined, whole["response"]["body"], "{text:?} in pieces of {size}");
        }
    }
}
