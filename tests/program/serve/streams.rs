//! Answers in pieces.

use serde_json::{Value, json};

use super::DEMO;
use super::client::Server;
use crate::hostile_model::poison::poisoned_after;

/// The text of a choice, joined of its pieces.
fn text(events: &[Value], index: u64) -> String {
    let of = |choice: &Value| {
        let text = choice["text"].as_str().or(choice["delta"]["content"].as_str());
        text.unwrap_or_default().to_owned()
    };
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices.filter(|choice| choice["index"] == index).map(of).collect()
}

#[test]
fn joined_pieces_are_the_whole_answer() {
    let server = Server::start(DEMO, &[]);
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (url, mut body) in [
        ("/v1/chat/completions", json!({"messages": messages, "temperature": 1, "n": 3})),
        ("/v1/chat/completions", json!({"messages": messages, "stop": ["o", "I do"]})),
        ("/v1/completions", json!({"prompt": "The", "temperature": 1, "n": 2, "logprobs": 1})),
        ("/v1/completions", json!({"prompt": "The", "use_beam_search": true, "n": 2})),
        ("/v1/completions", json!({"prompt": "The", "structured_outputs": {"regex": "[ab]{3}"}})),
    ] {
        (body["seed"], body["max_tokens"]) = (json!(5), json!(20));
        let whole = server.post(url, &body).json();
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let stream = server.post(url, &body);
        assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
        assert_eq!(stream.header("cache-control"), Some("no-cache"));
        assert_eq!(stream.header("x-accel-buffering"), Some("no"));
        let events = stream.events();
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let expected = choice["text"].as_str().or(choice["message"]["content"].as_str());
            assert_eq!(text(&events, index as u64), expected.unwrap(), "{body}");
            let ends: Vec<_> = events
                .iter()
                .flat_map(|event| event["choices"].as_array().unwrap())
                .filter(|piece| piece["index"] == index && !piece["finish_reason"].is_null())
                .map(|piece| piece["finish_reason"].clone())
                .collect();
            assert_eq!(ends, [choice["finish_reason"].clone()], "{body}");
        }
        assert_eq!(events.last().unwrap()["usage"], whole["usage"], "{body}");
    }
}

#[test]
fn joined_events_are_the_whole_message() {
    let server = Server::start(DEMO, &[]);
    let messages = json!([{"role": "user", "content": "hello"}]);
    let mut body = json!({"model": "demo", "max_tokens": 20, "messages": messages});
    let whole = server.post("/v1/messages", &body).json();
    body["stream"] = json!(true);
    let stream = server.post("/v1/messages", &body).body;
    let (mut text, mut names) = (String::new(), Vec::new());
    for event in stream.split_terminator("\n\n") {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        text.push_str(data["delta"]["text"].as_str().unwrap_or_default());
        names.push(data["type"].as_str().unwrap().to_owned());
    }
    names.dedup();
    assert_eq!(whole["content"][0]["text"], text);
    assert_eq!(
        names,
        [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
}

#[test]
fn the_last_event_is_the_whole_response() {
    let server = Server::start(DEMO, &[]);
    let id = ("X-Request-Id", "one");
    for more in [json!({}), json!({"top_logprobs": 2, "include": ["message.output_text.logprobs"]})]
    {
        let mut body = json!({"input": "hello", "max_output_tokens": 20, "temperature": 0});
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        let whole = server.ask("POST /v1/responses", &[id], &body.to_string()).json();
        body["stream"] = json!(true);
        let stream = server.ask("POST /v1/responses", &[id], &body.to_string()).body;
        let (mut text, mut last) = (String::new(), Value::Null);
        for (number, event) in stream.split_terminator("\n\n").enumerate() {
            let (name, data) = event.split_once('\n').unwrap();
            last = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(name.strip_prefix("event: "), last["type"].as_str());
            assert_eq!(last["sequence_number"], number);
            text.push_str(last["delta"].as_str().unwrap_or_default());
        }
        assert_eq!(text, whole["output"][0]["content"][0]["text"].as_str().unwrap());
        let mut response = last["response"].clone();
        response["created_at"] = whole["created_at"].clone();
        assert_eq!(response, whole);
    }
}

#[test]
fn what_is_wrong_before_the_first_token_has_a_status() {
    let server = Server::start(DEMO, &[]);
    for body in [
        json!({"prompt": "word ".repeat(900), "stream": true}),
        json!({"prompt": "a", "stream": true, "temperature": 9}),
        json!({"prompt": ["a", "b"], "stream": true}),
    ] {
        let reply = server.post("/v1/completions", &body);
        assert_eq!(reply.status, 400, "{reply:?}");
        assert!(reply.json()["error"]["message"].is_string());
    }
}

#[test]
fn an_error_in_a_stream_is_its_last_event() {
    let folder = poisoned_after(300);
    let server = Server::start(folder.model("").to_str().unwrap(), &[]);
    // What the first token is, so that the second cannot be computed.
    let mut body = json!({"prompt": [1, 17, 40], "max_tokens": 4, "allowed_token_ids": [300]});
    let whole = server.post("/v1/completions", &body);
    assert_eq!((whole.status, &whole.json()["error"]["code"]), (500, &json!("non_finite_logits")));
    body["stream"] = json!(true);
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    let events = reply.events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["error"], whole.json()["error"]);
    assert!(others.iter().all(|event| event["choices"][0]["finish_reason"].is_null()), "{reply:?}");
    assert!(
        server.metric("vllm:request_success_total{model_name=\"model\",finished_reason=\"error\"}")
            == 2.0
    );
    body["allowed_token_ids"] = json!([17, 40]);
    assert_eq!(
        server.post("/v1/completions", &body).events().last().unwrap()["error"],
        Value::Null
    );
}

#[test]
fn a_half_of_a_character_waits_for_the_other() {
    let server = Server::start(DEMO, &[]);
    let letters = json!({"prompt": "é日🦀", "add_special_tokens": false});
    let ids = server.post("/tokenize", &letters).json()["tokens"].clone();
    assert!(ids.as_array().unwrap().len() > 6, "the demo has no bytes: {ids}");
    let mut cut = 0;
    for seed in 0..12 {
        let mut body = json!({"prompt": "a", "max_tokens": 60, "temperature": 2, "seed": seed,
                              "allowed_token_ids": ids, "stop": ["日é"]});
        let whole = server.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
        body["stream"] = json!(true);
        let events = server.post("/v1/completions", &body).events();
        assert_eq!(text(&events, 0), whole, "{seed}");
        cut += usize::from(whole.as_str().unwrap().contains('\u{fffd}'));
    }
    assert!(cut > 0, "no text has bytes that are no character");
}
