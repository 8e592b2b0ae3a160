//! What answers count, and what of a text may not be there twice or too late.

use serde_json::{Value, json};

use super::DEMO;
use super::client::Server;

/// The id of the token that ends answers.
fn eos(server: &Server) -> u64 {
    let token = server.get("/tokenizer_info").json()["eos_token"].clone();
    let body = json!({"prompt": token, "add_special_tokens": false});
    let tokens = server.post("/tokenize", &body).json()["tokens"].clone();
    assert_eq!(tokens.as_array().unwrap().len(), 1, "{tokens}");
    tokens[0].as_u64().unwrap()
}

#[test]
fn an_echo_has_an_entry_for_each_token_also_at_the_end_of_text() {
    let server = Server::start(DEMO, &[]);
    let eos = eos(&server);
    let prompts = json!([[5, 6, 7, 8, 9], [9, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]);
    for allowed in [None, Some(eos)] {
        let mut body = json!({"prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 1,
                              "temperature": 0, "seed": 1234});
        if let Some(id) = allowed {
            body["allowed_token_ids"] = json!([id]);
        }
        let whole = server.post("/v1/completions", &body).json();
        for (choice, prompt) in whole["choices"].as_array().unwrap().iter().zip(0..) {
            let (known, prompt) = (&choice["logprobs"], prompts[prompt].as_array().unwrap());
            let list = |name: &str| known[name].as_array().unwrap().clone();
            for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                assert_eq!(list(name).len(), prompt.len() + 1, "{name} of {choice}");
            }
            assert_eq!(known["token_logprobs"][0], Value::Null);
            for index in 1..=prompt.len() {
                let (token, logprob) = (&known["tokens"][index], &known["token_logprobs"][index]);
                let top = known["top_logprobs"][index].as_object().unwrap();
                // The best of them is the token's own where it is the best.
                assert_eq!(top[token.as_str().unwrap()], *logprob, "{index} of {known}");
                let best = top.values().map(|value| value.as_f64().unwrap()).fold(-1e9, f64::max);
                assert!(best >= logprob.as_f64().unwrap(), "{index} of {known}");
            }
            let ends = if allowed.is_some() { "stop" } else { "length" };
            assert!(allowed.is_none() || choice["finish_reason"] == ends, "{choice}");
        }
    }
}

#[test]
fn tokens_of_a_stop_string_are_counted_and_none_after_it() {
    let server = Server::start(DEMO, &[]);
    let mut body = json!({"prompt": "The", "max_tokens": 40, "seed": 8, "temperature": 1.5,
                          "ignore_eos": true, "logprobs": 0});
    let text = server.post("/v1/completions", &body).json()["choices"][0]["text"].clone();
    let letters: Vec<char> = text.as_str().unwrap().chars().collect();
    assert!(letters.len() > 12, "{text}");
    for length in 1..=4 {
        let stop: String = letters[6..6 + length].iter().collect();
        body["stop"] = json!([stop]);
        body["stream"] = json!(false);
        let whole = server.post("/v1/completions", &body).json();
        let choice = &whole["choices"][0];
        let before = text.as_str().unwrap().split(&stop).next().unwrap();
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(before), &json!("stop")));
        let tokens = choice["logprobs"]["tokens"].as_array().unwrap();
        assert_eq!(whole["usage"]["completion_tokens"], tokens.len());
        let joined = |tokens: &[Value]| -> String {
            tokens.iter().map(|token| token.as_str().unwrap()).collect()
        };
        assert!(joined(tokens).contains(&stop), "{stop:?} {choice}");
        assert!(!joined(&tokens[..tokens.len() - 1]).contains(&stop), "{stop:?} {choice}");
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let events = server.post("/v1/completions", &body).events();
        let mut streamed = Vec::new();
        for event in &events {
            let pieces = event["choices"].as_array().unwrap().iter();
            streamed.extend(pieces.filter_map(|piece| piece["logprobs"]["tokens"].as_array()));
        }
        assert_eq!(streamed.into_iter().flatten().collect::<Vec<_>>(), Vec::from_iter(tokens));
        assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
        body.as_object_mut().unwrap().remove("stream_options");
    }
}

#[test]
fn usage_grows_from_chunk_to_chunk_up_to_that_of_the_whole() {
    let server = Server::start(DEMO, &[]);
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "n": 3, "seed": 2,
                          "temperature": 1, "max_tokens": 30});
    let whole = server.post("/v1/chat/completions", &body).json()["usage"].clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.post("/v1/chat/completions", &body).events();
    let mut last = 0;
    for event in &events {
        let usage = &event["usage"];
        let generated = usage["completion_tokens"].as_u64().unwrap();
        assert!(generated >= last, "{usage} after {last}");
        assert_eq!(usage["prompt_tokens"], whole["prompt_tokens"]);
        assert_eq!(usage["total_tokens"], whole["prompt_tokens"].as_u64().unwrap() + generated);
        last = generated;
    }
    let (end, others) = events.split_last().unwrap();
    assert_eq!((&end["choices"], &end["usage"]), (&json!([]), &whole));
    assert!(others.iter().all(|event| event["choices"].as_array().unwrap().len() == 1));
    // Unless it is asked for, no chunk has any.
    body.as_object_mut().unwrap().remove("stream_options");
    let events = server.post("/v1/chat/completions", &body).events();
    assert!(events.iter().all(|event| event["usage"].is_null()));
}

#[test]
fn tokens_of_thinking_are_not_more_than_all() {
    let server = Server::start(DEMO, &["--reasoning-parser", "deepseek_r1"]);
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20});
    let whole = server.post("/v1/chat/completions", &body).json();
    let (usage, message) = (&whole["usage"], &whole["choices"][0]["message"]);
    assert!(message["reasoning"].is_string() && message["content"].is_null(), "{message}");
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(reasoning > 0 && reasoning <= usage["completion_tokens"].as_u64().unwrap(), "{usage}");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let events = server.post("/v1/chat/completions", &body).events();
    assert_eq!(events.last().unwrap()["usage"], *usage);
}

#[test]
fn what_ends_lines_for_some_readers_is_escaped_in_a_stream() {
    let server = Server::start(DEMO, &[]);
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 60,
                      "stream": true, "structured_outputs": {"choice": [text]}});
    let reply = server.post("/v1/chat/completions", &body);
    let joined: String = reply
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(joined, text);
    assert!(!reply.body.contains(['\u{2028}', '\u{2029}', '\u{85}']), "{}", reply.body);
    assert!(reply.body.lines().all(|line| line.is_empty() || line.starts_with("data: ")));
}
