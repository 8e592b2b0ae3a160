//! Requests beside many others: priorities, and images that do not come.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;

use serde_json::json;

use super::DEMO;
use super::client::{Server, request};

const VISION: &str = "testdata/demo-vision";

#[test]
fn priorities_are_refused_where_nobody_regards_them() {
    let server = Server::start(DEMO, &[]);
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let with = |priority: i64| {
        let mut body = chat.clone();
        body["priority"] = priority.into();
        body.to_string()
    };
    let path = "POST /v1/chat/completions";
    assert_eq!(server.ask(path, &[], &with(0)).status, 200);
    let refused = server.ask(path, &[], &with(-1));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("priority")));
    assert!(refused.body.contains("not supported"), "{refused:?}");
    // The head is over the body.
    assert_eq!(server.ask(path, &[("X-Vllm-Priority", "0")], &with(-1)).status, 200);
    assert_eq!(server.ask(path, &[("X-Vllm-Priority", "2")], &with(0)).status, 400);
    let wrong = server.ask(path, &[("X-Vllm-Priority", "high")], &with(0));
    assert_eq!(wrong.json()["error"]["code"], "invalid_parameter");
}

/// One row at a time: one of a lower number is answered before those that came before it.
#[test]
fn a_lower_priority_is_answered_first() {
    let server = Server::start(DEMO, &["--scheduling-policy", "priority", "--max-num-seqs", "1"]);
    let body = |max_tokens: u32, priority: i64| {
        let mut body = json!({"prompt": "a", "ignore_eos": true});
        (body["max_tokens"], body["priority"]) = (max_tokens.into(), priority.into());
        body.to_string()
    };
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = server.connect();
            let text = request("POST /v1/completions", &[], &body(480, 7));
            stream.write_all(text.as_bytes()).unwrap();
            stream
        })
        .collect();
    server.wait_for("vllm:num_requests_waiting", |value| value > 10.0);
    let soon = server.ask("POST /v1/completions", &[("X-Vllm-Priority", "-1")], &body(1, 9));
    assert_eq!(soon.status, 200, "{soon:?}");
    assert!(server.metric("vllm:num_requests_waiting") > 0.0, "others still wait");
    drop(waiting);
}

#[test]
fn images_that_do_not_come_hold_no_other_request_up() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/a.png", nobody.local_addr().unwrap());
    let flags = ["--allow-media-urls", "--allowed-media-domains", "127.0.0.1"];
    let server = Server::start(VISION, &flags);
    let chat =
        |content| json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
    let with_image = chat(json!([{"type": "image_url", "image_url": {"url": url}}])).to_string();
    let _waiting: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = server.connect();
            let text = request("POST /v1/chat/completions", &[], &with_image);
            stream.write_all(text.as_bytes()).unwrap();
            stream
        })
        .collect();
    // As many as may fetch at a time have begun to.
    nobody.set_nonblocking(false).unwrap();
    let _fetching: Vec<_> = (0..8).map(|_| nobody.accept().unwrap().0).collect();
    for _ in 0..20 {
        let reply = server.post("/v1/chat/completions", &chat(json!("see https://a.example")));
        assert_eq!(reply.status, 200, "{reply:?}");
        let inline = chat(json!([{"type": "text", "text": "a"}]));
        assert_eq!(server.post("/v1/chat/completions", &inline).status, 200);
    }
    // The same ones wait still: no other has begun in their place.
    nobody.set_nonblocking(true).unwrap();
    let next = nobody.accept().map(|_| ()).map_err(|error| error.kind());
    assert_eq!(next, Err(ErrorKind::WouldBlock), "they waited for images of others");
}
