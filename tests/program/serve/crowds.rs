//! Requests beside many others: priorities, and images that do not come.

use std::io::Write;
use std::net::TcpListener;
use std::time::Instant;

use serde_json::json;

use super::DEMO;
use super::client::{Server, read_reply, request};

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

/// One row at a time: those of lower numbers are answered first, whenever they came.
#[test]
fn a_lower_priority_is_answered_first() {
    let server = Server::start(DEMO, &["--scheduling-policy", "priority", "--max-num-seqs", "1"]);
    let ask = |max_tokens: u32, priority: i64, head: Option<&str>| {
        let body = json!({
            "prompt": "a", "max_tokens": max_tokens, "ignore_eos": true, "priority": priority,
        });
        let headers: Vec<_> = head.iter().map(|value| ("X-Vllm-Priority", *value)).collect();
        let mut stream = server.connect();
        let text = request("POST /v1/completions", &headers, &body.to_string());
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let first = ask(480, 0, None);
    server.wait_for("vllm:num_requests_running", |value| value == 1.0);
    let late = ask(200, 7, None);
    server.wait_for("vllm:num_requests_waiting", |value| value == 1.0);
    let soon = ask(1, 9, Some("-1"));
    server.wait_for("vllm:num_requests_waiting", |value| value != 1.0);
    let ended = |stream| {
        let handle = std::thread::spawn(move || {
            let reply = read_reply(stream);
            assert_eq!(reply.status, 200, "{reply:?}");
            Instant::now()
        });
        move || handle.join().unwrap()
    };
    let (first, late, soon) = (ended(first), ended(late), ended(soon));
    let (first, late, soon) = (first(), late(), soon());
    assert!(first <= soon && soon < late, "the last one that came was not the second");
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
        let started = Instant::now();
        let reply = server.post("/v1/chat/completions", &chat(json!("see https://a.example")));
        assert_eq!(reply.status, 200, "{reply:?}");
        let inline = chat(json!([{"type": "text", "text": "a"}]));
        assert_eq!(server.post("/v1/chat/completions", &inline).status, 200);
        assert!(started.elapsed().as_secs() < 5, "it waited for images of others");
    }
}
