//! Connections that are slow, idle, endless, cut into pieces, or open when the server is to end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::DEMO;
use super::client::{Server, read_reply, request};
use crate::signal;

/// A request whose answer is the same at any time.
fn asked() -> Value {
    json!({"prompt": "a", "max_tokens": 8, "seed": 3, "temperature": 1})
}

fn text(reply: &super::client::Reply) -> Value {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["choices"][0]["text"].clone()
}

/// The head of a request, which the server has begun to read the body of, and the body.
fn upload(server: &Server) -> (BufReader<TcpStream>, String) {
    let body = asked().to_string();
    let whole = request("POST /v1/completions", &[("Expect", "100-continue")], &body);
    let mut stream = server.connect();
    stream.write_all(&whole.as_bytes()[..whole.len() - body.len()]).unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line, "HTTP/1.1 100 Continue\r\n");
    stream.read_line(&mut line).unwrap();
    (stream, body)
}

#[test]
fn a_request_is_the_same_however_it_is_cut() {
    let server = Server::start(DEMO, &[]);
    let expected = text(&server.post("/v1/completions", &asked()));
    let whole = request("POST /v1/completions", &[], &asked().to_string());
    let mut stream = server.connect();
    stream.set_nodelay(true).unwrap();
    for byte in whole.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(text(&read_reply(stream)), expected);
    for at in (1..whole.len()).step_by(7) {
        let mut stream = server.connect();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&whole.as_bytes()[..at]).unwrap();
        stream.write_all(&whole.as_bytes()[at..]).unwrap();
        assert_eq!(text(&read_reply(stream)), expected, "cut at {at}");
    }
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    let chunks: String = asked().to_string().chars().map(|c| format!("1\r\n{c}\r\n")).collect();
    stream.write_all((head.to_owned() + &chunks + "0\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(text(&read_reply(stream)), expected);
}

#[test]
fn requests_on_one_connection_are_answered_in_their_order() {
    let server = Server::start(DEMO, &[]);
    let mut stream = server.connect();
    let kept = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let all = kept("/version") + &kept("/nowhere") + &kept("/v1/models");
    stream.write_all((all + &request("GET /tokenizer_info", &[], "")).as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let places = ["\"version\"", "no such path", "\"object\":\"list\"", "\"eos_token\""];
    let places = places.map(|part| answers.find(part).unwrap_or_else(|| panic!("{answers}")));
    assert!(places.is_sorted(), "{answers}");
}

#[test]
fn slow_and_idle_connections_hold_up_nobody() {
    let server = Server::start(DEMO, &[]);
    let body = asked().to_string();
    let whole = request("POST /v1/completions", &[], &body);
    let mut held: Vec<TcpStream> = Vec::new();
    // Nothing, a part of the head, the head alone, a part of the body.
    for end in [0, 9, 40, whole.len() - body.len(), whole.len() - 5] {
        for _ in 0..8 {
            let mut stream = server.connect();
            stream.write_all(&whole.as_bytes()[..end]).unwrap();
            held.push(stream);
        }
    }
    let uploads: Vec<_> = (0..16).map(|_| upload(&server)).collect();
    assert_eq!(server.get("/health").status, 200);
    let expected = text(&server.post("/v1/completions", &asked()));
    // The rest comes later.
    for stream in held.drain(32..) {
        let mut stream = stream;
        stream.write_all(&whole.as_bytes()[whole.len() - 5..]).unwrap();
        assert_eq!(text(&read_reply(stream)), expected);
    }
    for (stream, body) in uploads {
        let mut stream = stream.into_inner();
        stream.write_all(body.as_bytes()).unwrap();
        assert_eq!(text(&read_reply(stream)), expected);
    }
}

#[test]
fn a_body_without_an_end_is_refused_when_it_is_too_large() {
    let server = Server::start(DEMO, &["--max-body-bytes", "100000"]);
    let mut stream = server.connect();
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = format!("3e8\r\n{}\r\n", "a".repeat(1000));
    // The last of these is the first that is too much; no more is sent, and no end.
    for _ in 0..101 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    let reply = read_reply(stream);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (413, &json!("body_too_large")));
    for chunk in ["-1\r\n", "zz\r\n", "fffffffffffffffffff\r\n", "1;\u{0}\r\na\r\n", "2\r\naXX"] {
        let mut stream = server.connect();
        stream.write_all((head.to_owned() + chunk).as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn connections_beyond_the_most_wait_for_those_before_them() {
    let server = Server::start(DEMO, &["--max-connections", "4"]);
    let uploads: Vec<_> = (0..4).map(|_| upload(&server)).collect();
    let mut waiting = server.connect();
    waiting.write_all(request("GET /version", &[], "").as_bytes()).unwrap();
    for (stream, body) in uploads {
        let mut stream = stream.into_inner();
        stream.write_all(body.as_bytes()).unwrap();
        text(&read_reply(stream));
    }
    assert_eq!(read_reply(waiting).status, 200);
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_without_descriptors_goes_on_when_it_has_some_again() {
    const MOST: usize = 48;
    let server = Server::start_with_files(MOST, DEMO, &[]);
    let idle: Vec<_> = (0..2 * MOST).map(|_| server.connect()).collect();
    let mut last = server.connect();
    last.write_all(request("GET /version", &[], "").as_bytes()).unwrap();
    let folder = format!("/proc/{}/fd", server.id());
    let started = std::time::Instant::now();
    while std::fs::read_dir(&folder).unwrap().count() < MOST {
        assert!(started.elapsed().as_secs() < 120, "connections are not accepted");
        std::thread::yield_now();
    }
    drop(idle);
    assert_eq!(read_reply(last).status, 200);
    assert_eq!(server.post("/v1/completions", &asked()).status, 200);
}

#[test]
fn a_signal_lets_a_body_come_to_its_end() {
    let server = Server::start(DEMO, &["--shutdown-timeout", "600"]);
    let expected = text(&server.post("/v1/completions", &asked()));
    let (stream, body) = upload(&server);
    assert!(signal::send("TERM", server.id()));
    server.wait_for_no_connections();
    let mut stream = stream.into_inner();
    stream.write_all(body.as_bytes()).unwrap();
    assert_eq!(text(&read_reply(stream)), expected);
    assert_eq!(server.ended().0, Some(0));
}

#[test]
fn a_body_that_does_not_come_ends_with_the_time_after_a_signal() {
    let server = Server::start(DEMO, &["--shutdown-timeout", "0"]);
    let (_stream, _) = upload(&server);
    assert!(signal::send("TERM", server.id()));
    assert_eq!(server.ended().0, Some(143));
}

#[test]
fn a_second_signal_waits_for_nothing() {
    let server = Server::start(DEMO, &["--shutdown-timeout", "600"]);
    let (_stream, _) = upload(&server);
    assert!(signal::send("INT", server.id()));
    server.wait_for_no_connections();
    assert!(signal::send("INT", server.id()));
    assert_eq!(server.ended().0, Some(130));
}
