//! Answers in pieces.

use serde_json::{Value, json};

use super::DEMO;
use super::client::Server;

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
