//! Clients that ask for what is not there, that may not ask, that send too much, that hang up; and
//! the end of a server.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::DEMO;
use super::client::{Server, read_reply, request};
use crate::signal;

/// A request that takes many steps.
fn long() -> serde_json::Value {
    json!({"prompt": "a", "max_tokens": 480, "ignore_eos": true, "stream": true, "temperature": 1})
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let server = Server::start(DEMO, &[]);
    let chat = r#"{"messages":[{"role":"user","content":"a"}]"#;
    for (head, body, status, code) in [
        ("GET /nowhere", String::new(), 404, "not_found"),
        ("GET /v1/chat/completions", String::new(), 405, "method_not_allowed"),
        ("POST /v1/chat/completions", "{".to_owned(), 400, "bad_json"),
        ("POST /v1/chat/completions", "[]".to_owned(), 400, "bad_json"),
        ("POST /v1/chat/completions", "[".repeat(1 << 20), 400, "bad_json"),
        ("POST /v1/chat/completions", format!(r#"{chat},"model":"x"}}"#), 404, "model_not_found"),
        ("POST /v1/chat/completions", format!(r#"{chat},"stop":7}}"#), 400, "invalid_parameter"),
        (
            "POST /v1/chat/completions",
            format!(r#"{chat},"audio":{{}}}}"#),
            400,
            "unsupported_field",
        ),
        ("POST /v1/completions", "{}".to_owned(), 400, "invalid_prompt"),
        ("POST /v1/embeddings", r#"{"input":"a"}"#.to_owned(), 404, "unsupported_url"),
        (
            "POST /v1/completions",
            r#"{"prompt":["a","b"],"stream":true}"#.to_owned(),
            400,
            "unsupported_field",
        ),
        ("GET /v1/models/x", String::new(), 404, "model_not_found"),
    ] {
        let reply = server.ask(head, &[], &body);
        let body = body.get(..60).unwrap_or(&body);
        assert_eq!(reply.status, status, "{head} {body}: {reply:?}");
        assert_eq!(reply.json()["error"]["code"], code, "{head} {body}: {reply:?}");
    }
    assert_eq!(server.get("/v1/models/demo").json()["id"], "demo");
    assert_eq!((server.get("/health").status, server.get("/version").status), (200, 200));
    let named = server.ask("GET /health", &[("X-Request-Id", "mine-1")], "");
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
}

#[test]
fn fields_that_change_nothing_are_noted_once() {
    let server = Server::start(DEMO, &[]);
    for colour in 0..3 {
        let body = json!({"prompt": "a", "max_tokens": 1, "colour": colour, "temprature": 0});
        assert_eq!(server.post("/v1/completions", &body).status, 200);
    }
    assert!(signal::send("TERM", server.id()));
    let said = server.ended().1;
    assert_eq!(said.matches("`colour` of the request changes nothing").count(), 1, "{said}");
    assert_eq!(said.matches("did you mean `temperature`?").count(), 1, "{said}");
}

#[test]
fn who_may_not_ask_gets_nothing() {
    let server = Server::start(DEMO, &["--api-key", "one", "two"]);
    let ask = |headers: &[(&str, &str)]| server.ask("GET /v1/models", headers, "").status;
    assert_eq!(ask(&[]), 401);
    assert_eq!(ask(&[("Authorization", "Bearer on")]), 401);
    assert_eq!(ask(&[("Authorization", "Bearer two")]), 200);
    assert_eq!(ask(&[("x-api-key", "one")]), 200);
    assert_eq!(ask(&[("Authorization", "Bearer one"), ("Host", "evil.example")]), 403);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_key_is_shown_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("s.toml");
    std::fs::write(&file, "[serve]\napi-key = [\"sekrit\", \"other\"]\n").unwrap();
    let server = Server::start(DEMO, &["-v", "--config", file.to_str().unwrap()]);
    assert_eq!(server.ask("GET /metrics", &[("x-api-key", "other")], "").status, 200);
    let wrong = server.ask("GET /metrics", &[("x-api-key", "another")], "");
    assert_eq!(wrong.status, 401);
    assert!(signal::send("INT", server.id()));
    let (code, said) = server.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("--api-key=... from"), "{said}");
    assert!(!said.contains("sekrit") && !said.contains("other"), "{said}");
}

#[test]
fn too_much_is_refused() {
    let server = Server::start(DEMO, &["--max-body-bytes", "1000"]);
    let reply = server.post("/v1/completions", &json!({"prompt": "a".repeat(2000)}));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("body_too_large")));
    let many: Vec<_> = (0..200).map(|index| format!("x-{index}")).collect();
    let many: Vec<_> = many.iter().map(|name| (name.as_str(), "a")).collect();
    assert_eq!(server.ask("GET /health", &many, "").status, 431);
    let long = "a".repeat(1 << 20);
    let mut stream = server.connect();
    // It is closed while it is written.
    let _ = stream.write_all(request("GET /health", &[("x", &long)], "").as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_body_of_two_lengths_is_refused() {
    let server = Server::start(DEMO, &[]);
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.matches("HTTP/1.1 ").count() <= 1 && !answer.contains(" 200 "), "{answer}");
}

#[test]
fn a_client_that_hangs_up_frees_its_blocks() {
    let server = Server::start(DEMO, &[]);
    let aborted = "vllm:request_success_total{model_name=\"demo\",finished_reason=\"abort\"}";
    let plain = json!({"prompt": "a", "max_tokens": 480, "ignore_eos": true});
    let next = json!({"prompt": "a b c a b c", "max_tokens": 30, "ignore_eos": true});
    let before = server.post("/v1/completions", &next).json();
    for count in 1..=40 {
        let body = if count % 2 == 0 { long() } else { plain.clone() };
        let mut stream = server.connect();
        let request = request("POST /v1/completions", &[], &body.to_string());
        stream.write_all(request.as_bytes()).unwrap();
        if count % 2 == 0 {
            let mut some = [0; 64];
            stream.read_exact(&mut some).unwrap();
        }
        drop(stream);
    }
    server.wait_for("vllm:num_requests_running", |value| value == 0.0);
    server.wait_for("vllm:num_requests_waiting", |value| value == 0.0);
    server.wait_for("vllm:kv_cache_usage_perc", |value| value == 0.0);
    assert!(server.metric(aborted) > 0.0);
    // The next turn is what it was.
    let after = server.post("/v1/completions", &next).json();
    assert_eq!((&after["choices"], &after["usage"]), (&before["choices"], &before["usage"]));
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let server = Server::start(DEMO, &["--max-num-queued-reqs", "2"]);
    let body = json!({"prompt": ["a", "b", "c"], "max_tokens": 2});
    let reply = server.post("/v1/completions", &body);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
    assert_eq!(reply.json()["error"]["code"], "queue_full");
    assert_eq!(server.metric("vllm:admission_rejections_total"), 1.0);
    let two = server.post("/v1/completions", &json!({"prompt": ["a", "b"], "max_tokens": 2}));
    assert_eq!(two.status, 200, "{two:?}");
}

/// A stream of which something has come.
fn begun(server: &Server) -> TcpStream {
    let mut stream = server.connect();
    let text = request("POST /v1/completions", &[], &long().to_string());
    stream.write_all(text.as_bytes()).unwrap();
    server.wait_for("vllm:num_requests_running", |value| value > 0.0);
    stream
}

#[test]
fn a_signal_lets_requests_under_way_end() {
    let server = Server::start(DEMO, &[]);
    let stream = begun(&server);
    assert!(signal::send("TERM", server.id()));
    let reply = read_reply(stream);
    let last = reply.events().pop().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "length");
    assert_eq!(server.ended().0, Some(0));
}

#[test]
fn a_port_that_is_taken_is_refused() {
    let server = Server::start(DEMO, &[]);
    let port = server.address.rsplit(':').next().unwrap();
    let mut command = crate::piped::command("serve", DEMO, &["--port", port]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("error[address]") && said.contains("--port"), "{said}");
}
