//! What pages in a browser may not do, and who has no key.

use serde_json::json;

use super::DEMO;
use super::client::Server;

/// Every path, with a method that it takes.
const PATHS: &[&str] = &[
    "GET /version",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/demo",
    "GET /tokenizer_info",
    "GET /nowhere",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/embeddings",
    "POST /v1/score",
    "POST /score",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
];

#[test]
fn every_path_wants_the_key() {
    let server = Server::start(DEMO, &["--api-key", "right"]);
    for head in PATHS {
        for headers in [&[][..], &[("Authorization", "Bearer wrong")], &[("x-api-key", "righ")]] {
            let reply = server.ask(head, headers, "{}");
            assert_eq!(reply.status, 401, "{head}: {reply:?}");
            let error = reply.json();
            let is_anthropics = head.contains("/messages");
            assert_eq!(error["type"] == "error", is_anthropics, "{head}: {error}");
            assert_eq!(error["error"]["type"], "authentication_error", "{head}: {error}");
        }
    }
    for path in ["/health", "/ping"] {
        assert_eq!(server.get(path).status, 200);
    }
    assert_eq!(server.metric_with("right", "vllm:num_requests_waiting"), 0.0);
}

#[test]
fn pages_of_other_hosts_get_nothing() {
    let server = Server::start(DEMO, &["--allowed-hosts", "friend.example"]);
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    for head in PATHS.iter().chain(&["GET /health", "POST /ping"]) {
        for (name, value) in [
            ("Host", "evil.example"),
            ("Host", "localhost.evil.example:8000"),
            ("Host", ""),
            ("Origin", "https://evil.example"),
            ("Origin", "null"),
            ("Origin", "http://127.0.0.1.evil.example"),
        ] {
            let reply = server.ask(head, &[(name, value)], &body);
            assert_eq!(reply.status, 403, "{head} {name}: {value}: {reply:?}");
        }
    }
    // What a request line names is the host, whatever the header says.
    let reply = server.ask("GET http://evil.example/health", &[("Host", "localhost")], "");
    assert_eq!(reply.status, 403, "{reply:?}");
    for origin in ["http://localhost:3000", "https://friend.example", "http://[::1]:5"] {
        let reply = server.ask("POST /v1/completions", &[("Origin", origin)], &body);
        assert_eq!(reply.status, 200, "{origin}: {reply:?}");
        assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
    }
    // A browser asks first what it would not send else, as JSON.
    let asks = [("Origin", "http://localhost:3000"), ("Access-Control-Request-Method", "POST")];
    let reply = server.ask("OPTIONS /v1/completions", &asks, "");
    assert_eq!(reply.status, 405, "{reply:?}");
    assert_eq!(reply.header("allow"), Some("POST"));
    assert!(reply.headers.iter().all(|(name, _)| !name.starts_with("access-control")));
}

#[test]
fn a_name_of_a_request_adds_no_header() {
    let server = Server::start(DEMO, &[]);
    let long = "a".repeat(129);
    for id in ["a b", "a%0d%0aX-Evil: 1", "a\u{e9}", "../a", &long] {
        let reply = server.ask("GET /health", &[("X-Request-Id", id)], "");
        let ids: Vec<_> = reply.headers.iter().filter(|(name, _)| name == "x-request-id").collect();
        assert!(reply.status == 200 && ids.len() == 1 && ids[0].1.len() == 32, "{reply:?}");
        assert_eq!(reply.header("x-evil"), None);
    }
    // Lines that go on, and ends of lines of their own, are no headers.
    for id in ["a\r\n b", "a\nX-Evil: 1", "a\r\rX-Evil: 1", "a\u{0}b"] {
        let reply = server.ask("GET /health", &[("X-Request-Id", id)], "");
        assert_eq!(reply.header("x-evil"), None, "{reply:?}");
        assert!(reply.status == 400 || reply.header("x-request-id").is_some(), "{id:?}");
    }
    let kept = "a".repeat(128);
    let reply = server.ask("GET /health", &[("X-Request-Id", &kept)], "");
    assert_eq!(reply.header("x-request-id"), Some(&*kept));
    let reply = server.ask("POST /v1/messages", &[("X-Request-Id", "mine")], "{}");
    assert_eq!((reply.status, reply.header("request-id")), (400, Some("mine")));
}
